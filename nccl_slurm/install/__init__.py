"""Puts nccl-slurm onto nodes and controllers, checks it there, and takes it away. Python 3.8, standard library only."""

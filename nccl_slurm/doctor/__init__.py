"""``nccl-slurm doctor``: what is wrong with a cluster, its nodes or a job now. Reads and judges, changes nothing."""

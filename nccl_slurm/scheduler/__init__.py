"""Slurm, asked by its own commands, or by pyslurm."""

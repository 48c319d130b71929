"""nccl-slurm: who stalled first in a distributed GPU job on Slurm, why, and what to do with the node."""

__version__ = "0.1.0"

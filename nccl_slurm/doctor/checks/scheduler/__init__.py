"""What Slurm itself says: controllers, nodes, jobs, its configuration. Reads, changes nothing."""

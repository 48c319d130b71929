"""Facts of all ranks → a verdict with evidence. No clock, no file, no Slurm."""

"""What happened to each run and each machine: the store."""

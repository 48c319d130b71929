"""The loop on the controller that joins node records with Slurm and writes comments and reports."""

"""Tests mirror the package; cluster/ needs a real Slurm."""

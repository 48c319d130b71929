"""Tests on a real Slurm that they start themselves, on one machine."""

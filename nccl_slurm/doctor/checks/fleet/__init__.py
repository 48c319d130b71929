"""Checks over all nodes. Each module has ``CHECKS``."""

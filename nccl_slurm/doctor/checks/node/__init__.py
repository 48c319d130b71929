"""Checks of one node. Each module has ``CHECKS``."""

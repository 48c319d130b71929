"""Bytes → facts. Never raises on any input. Python ≥ 3.8 and its standard library alone."""

"""Readers of what nodes and commands say: text → values. Pure; what isn't understood is None, nothing raises."""

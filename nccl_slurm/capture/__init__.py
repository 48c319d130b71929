"""Node side: what hooks start. Python ≥ 3.8 and its standard library alone."""

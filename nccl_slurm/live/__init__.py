"""Jobs that still run: what their ranks left until now, read where it lies, and who is behind or silent."""

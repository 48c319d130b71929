"""What commands and kernel files print → typed values. Pure; junk is None or empty, never an exception."""

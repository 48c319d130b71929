"""Node records on their way to the daemon."""

"""Real torchrun runs that fail in a known way, and what is made of what they leave behind."""

"""A job's report → a script of a few processes that shows its failure."""

"""What the ranks of a job have, say and use, compared with one another."""

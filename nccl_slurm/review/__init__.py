"""Recommendations in front of a person: the queue, what was decided, what came of it."""

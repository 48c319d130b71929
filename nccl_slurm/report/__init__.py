"""The report object, its text, its JSON and the one line for the job's comment."""

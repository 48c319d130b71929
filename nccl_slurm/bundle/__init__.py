"""A job's case for somebody outside: report, facts, extracts and what a vendor's support asks, in one tar or folder.
Nothing is sent anywhere."""

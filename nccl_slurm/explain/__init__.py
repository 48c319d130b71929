"""What a word of a report means: class, pattern row, reading, Xid, reason, action."""

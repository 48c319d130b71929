"""The checks: one module a check or a close family. Each module has ``CHECKS``, and one line in `doctor.registry`."""

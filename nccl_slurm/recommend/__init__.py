"""Verdict and roles → what a person may do."""

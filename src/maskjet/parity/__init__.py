"""Comparing two variants of a detector."""

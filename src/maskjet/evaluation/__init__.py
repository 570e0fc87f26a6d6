"""Scores of a model on annotated images, and its speed on the user's own source."""

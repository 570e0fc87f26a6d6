"""The patch embedding of a vision transformer."""

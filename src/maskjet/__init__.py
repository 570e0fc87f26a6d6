"""Instance masks."""

__version__ = "0.1.0"

"""The demo model, whose weights are part of the package."""

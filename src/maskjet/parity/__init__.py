"""What changed between two variants."""

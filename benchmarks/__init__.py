"""The laboratory: what proves the product's speed, and the results."""

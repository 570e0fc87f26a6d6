"""A linear layer fused with its neighbours: a norm before or behind it, an activation and a residual."""

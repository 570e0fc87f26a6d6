"""Instance masks from frames as fast as the hardware allows, with proof that the answer did not change."""

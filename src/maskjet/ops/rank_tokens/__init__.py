"""The tokens with the highest scores, which a two-stage transformer proposes as queries."""

"""Softmax attention from packed projections."""

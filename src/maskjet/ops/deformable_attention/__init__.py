"""Deformable attention: each head samples a few points around its query's box."""

"""Engines: what runs the steps of a frame, one after the other or as one graph."""

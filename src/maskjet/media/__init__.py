"""Frames in, from images, files and cameras; results out, as files and pictures."""

"""Masks that are never dense: RLE, outlines, strips and stray pixels."""

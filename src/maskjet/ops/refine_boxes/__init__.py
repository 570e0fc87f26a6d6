"""The last layer of a box head: moves reference boxes, and encodes them as sines."""

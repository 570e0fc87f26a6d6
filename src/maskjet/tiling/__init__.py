"""Small things in large images: frames cut into overlapping tiles, and the detections of tiles merged."""

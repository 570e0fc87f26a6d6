"""Small instances in large images: cut frames into overlapping tiles, and merge the detections."""

"""Masks of every frame where only every N-th is detected: detections moved by the motion in the images."""

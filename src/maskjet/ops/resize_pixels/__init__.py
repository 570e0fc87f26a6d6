"""Bilinear resizing of channels-last feature maps."""

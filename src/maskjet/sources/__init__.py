"""Read frames from images, videos, cameras and network streams."""

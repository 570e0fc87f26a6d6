"""Reading frames from images, videos and cameras, and writing results to files."""

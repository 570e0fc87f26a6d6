"""The engine: runs the steps of a frame, one after the other or as one CUDA graph; knows no network."""

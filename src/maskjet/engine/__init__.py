"""The engine: runs the steps of a batch eagerly or as one CUDA graph; independent of the network family."""

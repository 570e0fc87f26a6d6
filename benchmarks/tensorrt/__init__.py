"""TensorRT beside our network: a program that builds and runs engines, and the benchmark that calls it."""

"""The laboratory: benchmarks and parity studies, with their results."""

"""Many files, many GPUs, many machines: jobs cut into segments, each of which becomes one Parquet part."""

"""The networks maskjet runs: inference only, static shapes, capturable."""

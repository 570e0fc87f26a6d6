"""What changed between two variants; and the defaults of its commands, which are stated without importing PyTorch."""

FIRST_SEED = 20_000_000
"""Of generated streets; the demo model was trained on others."""
OURS = "maskjet"
"""The program that variants are of unless another's pipeline is given."""
RESAMPLES = 200
"""Draws of images that an interval is made of, unless told otherwise."""
THRESHOLD = 0.05
"""Of dumps: COCO's metrics want the uncertain detections as well."""

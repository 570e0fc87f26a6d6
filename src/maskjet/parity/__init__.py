"""Comparing two variants of a detector; here, the commands' defaults, which must not need PyTorch to be imported."""

FIRST_SEED = 20_000_000
"""Default seed of the first generated street; the demo model was trained on streets of other seeds."""
LOWEST = 0.001
"""Confidence threshold of an evaluation, as usual for COCO."""
THRESHOLD = 0.05
"""Default confidence threshold of dumps; low, because COCO's metrics need uncertain detections as well."""

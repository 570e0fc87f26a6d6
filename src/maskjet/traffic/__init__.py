"""Synthetic street scenes with exact instance masks: frames, videos and COCO data sets.

Examples:
    >>> import maskjet
    >>> maskjet.traffic.sample(seed=3, size_hw=(96, 160)).image.shape
    (96, 160, 3)
"""

from maskjet.traffic.bodies import CLASSES
from maskjet.traffic.dataset import write_coco, write_video
from maskjet.traffic.street import FPS, MIN_PIXELS, SIZES_HW, Street, TrafficFrame, sample

__all__ = ["CLASSES", "FPS", "MIN_PIXELS", "SIZES_HW", "Street", "TrafficFrame", "sample", "write_coco", "write_video"]

"""Detections of one image, and conversions: JSON, pictures, crops, and other packages' types."""

from maskjet.detections.data import Detections, assemble, join
from maskjet.detections.fields import are_finite, check_finite
from maskjet.detections.json_types import CocoKind, coco_annotations

__all__ = ["CocoKind", "Detections", "are_finite", "assemble", "check_finite", "coco_annotations", "join"]

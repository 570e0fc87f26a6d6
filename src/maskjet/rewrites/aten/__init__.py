"""torchvision's Faster and Mask R-CNN as ATen graphs, and rewrites of them that keep their results.

program = capture(model, images)
FOLD_NMS.apply(program.module, expected=2 * len(images))
PICK_LEVELS.apply(program.module, expected=2)  # of Mask R-CNN; Faster R-CNN pools once
detections = program.detect(images)
"""

from maskjet.extras import require

require("torchvision", extra="bench", purpose="maskjet.rewrites.aten")

from maskjet.rewrites.aten.capture import Detections, Program, capture
from maskjet.rewrites.aten.nms_topk import FOLD as FOLD_NMS
from maskjet.rewrites.aten.pooler import GATHER as GATHER_LEVELS
from maskjet.rewrites.aten.pooler import PICK as PICK_LEVELS
from maskjet.rewrites.rewriting import Report, Rewrite

__all__ = [
    "FOLD_NMS",
    "GATHER_LEVELS",
    "PICK_LEVELS",
    "Detections",
    "Program",
    "Report",
    "Rewrite",
    "capture",
]

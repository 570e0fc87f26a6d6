"""torchvision's Faster and Mask R-CNN as ATen graphs, and rewrites that keep their results.

program = capture(model, images)
FOLD_NMS.apply(program.module)
PICK_LEVELS.apply(program.module)
detections = program.detect(images)
"""

from maskjet.host.extras import require

require("torchvision", extra="bench", purpose="benchmarks.aten")

from benchmarks.aten.capture import Detections, Program, capture
from benchmarks.aten.nms_topk import FOLD as FOLD_NMS
from benchmarks.aten.pooler import GATHER as GATHER_LEVELS
from benchmarks.aten.pooler import PICK as PICK_LEVELS
from maskjet.networks.torchvision.layers.rewriting import Rewrite

__all__ = [
    "FOLD_NMS",
    "GATHER_LEVELS",
    "PICK_LEVELS",
    "Detections",
    "Program",
    "Rewrite",
    "capture",
]

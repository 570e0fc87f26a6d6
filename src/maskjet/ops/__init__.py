"""Ops around a network, usable on their own: each has a reference and faster, equal implementations.

Examples:
    >>> import maskjet, torch
    >>> frame = torch.zeros(4, 6, 3, dtype=torch.uint8)
    >>> inputs = maskjet.ops.preprocess(frame, size=(2, 2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> inputs.shape
    torch.Size([1, 3, 2, 2])
"""

from collections.abc import Mapping
from importlib import import_module

from maskjet.config import Implementation
from maskjet.ops.canvas import Canvas, Letterbox
from maskjet.ops.encode_masks import encode_masks
from maskjet.ops.nms import nms
from maskjet.ops.paint import paint
from maskjet.ops.paste_masks import paste_masks
from maskjet.ops.preprocess import preprocess
from maskjet.ops.preprocess.yuv import YUVFrames, yuv_conversion
from maskjet.ops.record import FALLBACKS, Choice, Op
from maskjet.ops.roi_align import roi_align
from maskjet.ops.select import select
from maskjet.ops.selection import Selection

RECORDS: Mapping[str, Op] = {
    name: import_module(f"{__name__}.{name}").RECORD
    for name in ("preprocess", "select", "encode_masks", "nms", "roi_align", "paint")
}

__all__ = [
    "FALLBACKS",
    "RECORDS",
    "Canvas",
    "Choice",
    "Implementation",
    "Letterbox",
    "Op",
    "Selection",
    "YUVFrames",
    "encode_masks",
    "nms",
    "paint",
    "paste_masks",
    "preprocess",
    "roi_align",
    "select",
    "yuv_conversion",
]

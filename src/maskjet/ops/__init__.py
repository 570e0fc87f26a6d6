"""The steps around a network, each usable on its own, with a reference and faster equal implementations.

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
from maskjet.ops.attention import attention
from maskjet.ops.canvas import Canvas, Letterbox
from maskjet.ops.deformable_attention import deformable_attention
from maskjet.ops.depthwise_norm import depthwise_norm
from maskjet.ops.embed_patches import embed_patches
from maskjet.ops.encode_masks import encode_masks
from maskjet.ops.linear import fold_norm, linear, split_terms
from maskjet.ops.linear.reference import Norm
from maskjet.ops.mask_logits import mask_logits
from maskjet.ops.nms import nms
from maskjet.ops.paint import paint
from maskjet.ops.paste_masks import paste_masks
from maskjet.ops.preprocess import preprocess
from maskjet.ops.preprocess.yuv import YUVFrames, yuv_conversion
from maskjet.ops.rank_tokens import rank_tokens
from maskjet.ops.record import FALLBACKS, Choice, Op
from maskjet.ops.refine_boxes import refine_boxes
from maskjet.ops.resize_pixels import resize_pixels
from maskjet.ops.roi_align import roi_align
from maskjet.ops.select import select
from maskjet.ops.selection import Selection

RECORDS: Mapping[str, Op] = {
    name: import_module(f"{__name__}.{name}").RECORD
    for name in (
        *("preprocess", "select", "encode_masks", "paste_masks", "nms", "roi_align"),
        *("linear", "attention", "embed_patches", "rank_tokens", "refine_boxes", "deformable_attention"),
        *("resize_pixels", "depthwise_norm", "mask_logits", "paint"),
    )
}

__all__ = [
    "FALLBACKS",
    "RECORDS",
    "Canvas",
    "Choice",
    "Implementation",
    "Letterbox",
    "Norm",
    "Op",
    "Selection",
    "YUVFrames",
    "attention",
    "deformable_attention",
    "depthwise_norm",
    "embed_patches",
    "encode_masks",
    "fold_norm",
    "linear",
    "mask_logits",
    "nms",
    "paint",
    "paste_masks",
    "preprocess",
    "rank_tokens",
    "refine_boxes",
    "resize_pixels",
    "roi_align",
    "select",
    "split_terms",
    "yuv_conversion",
]

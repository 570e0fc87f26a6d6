"""The steps around a network, each usable on its own, with a reference and faster equal implementations.

Examples:
    >>> import maskjet, torch
    >>> frame = torch.zeros(4, 6, 3, dtype=torch.uint8)
    >>> inputs = maskjet.ops.preprocess(frame, size=(2, 2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> inputs.shape
    torch.Size([1, 3, 2, 2])
"""

from collections.abc import Mapping

from maskjet.config import Implementation
from maskjet.ops import attention as _attention
from maskjet.ops import deformable_attention as _deformable_attention
from maskjet.ops import depthwise_norm as _depthwise_norm
from maskjet.ops import embed_patches as _embed_patches
from maskjet.ops import encode_masks as _encode_masks
from maskjet.ops import linear as _linear
from maskjet.ops import mask_logits as _mask_logits
from maskjet.ops import nms as _nms
from maskjet.ops import paste_masks as _paste_masks
from maskjet.ops import preprocess as _preprocess
from maskjet.ops import rank_tokens as _rank_tokens
from maskjet.ops import refine_boxes as _refine_boxes
from maskjet.ops import resize_pixels as _resize_pixels
from maskjet.ops import roi_align as _roi_align
from maskjet.ops import select as _select
from maskjet.ops.canvas import Canvas, Letterbox
from maskjet.ops.linear.reference import Norm
from maskjet.ops.preprocess.yuv import YUVFrames, yuv_conversion
from maskjet.ops.record import FALLBACKS, Choice, Op
from maskjet.ops.selection import Selection

RECORDS: Mapping[str, Op] = {
    module.RECORD.name: module.RECORD
    for module in (
        *(_preprocess, _select, _encode_masks, _paste_masks, _nms, _roi_align),
        *(_linear, _attention, _embed_patches, _rank_tokens, _refine_boxes, _deformable_attention),
        *(_resize_pixels, _depthwise_norm, _mask_logits),
    )
}
preprocess = _preprocess.preprocess
roi_align = _roi_align.roi_align
select = _select.select
encode_masks = _encode_masks.encode_masks
attention = _attention.attention
linear = _linear.linear
fold_norm = _linear.fold_norm
split_terms = _linear.split_terms
deformable_attention = _deformable_attention.deformable_attention
depthwise_norm = _depthwise_norm.depthwise_norm
embed_patches = _embed_patches.embed_patches
mask_logits = _mask_logits.mask_logits
rank_tokens = _rank_tokens.rank_tokens
refine_boxes = _refine_boxes.refine_boxes
resize_pixels = _resize_pixels.resize_pixels
nms = _nms.nms
paste_masks = _paste_masks.paste_masks

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

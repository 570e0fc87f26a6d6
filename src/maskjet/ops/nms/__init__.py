"""Non-maximum suppression with an output of fixed size: the most confident of overlapping boxes stays."""

from __future__ import annotations

import math

import numpy as np
import torch

from maskjet.checks import as_int, check_count, check_fraction
from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.nms import cpu, reference
from maskjet.ops.nms.reference import Kept
from maskjet.ops.record import Variant, describe, needs_cpu


def nms(
    boxes: torch.Tensor,
    count: torch.Tensor | None = None,
    *,
    iou_threshold: float,
    groups: torch.Tensor | None = None,
    max_output: int | None = None,
    implementation: Implementation = "auto",
) -> Kept:
    """Drop every box that overlaps a more confident kept box of its group.

    Keeps the first `max_output` boxes that torchvision's `nms` or `batched_nms` keeps, whichever strategy the latter
    takes, except for boxes that overlap only because shifted coordinates were rounded. Shapes don't depend on values.
    On a GPU it is two launches for all images, after copies of strided arguments and fills of omitted ones; they
    never wait and can be captured in a CUDA graph.

    Args:
        boxes: float32 [B, N, 4] xyxy, each image's in descending order of confidence.
        count: int32 [B]: number of boxes per image; later ones are ignored. None takes all, as does a number above N.
        iou_threshold: 0..1; a box is dropped if its intersection over union with a kept one is larger. It is rounded
            down to float32, which equals the comparison in torchvision's CPU code.
        groups: int32 [B, N]; boxes of different groups (classes, levels) don't suppress each other. None: one group.
        max_output: Largest number of boxes kept per image, at least 1; None for N.
        implementation: "auto", "reference", "triton" or "cpu".

    Returns:
        Positions of the kept boxes, most confident first.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these boxes.

    Equal to the reference in every position. A box without area overlaps nothing, nor does one with a NaN.

    Examples:
        >>> boxes = torch.tensor([[[0.0, 0, 10, 10], [1, 0, 10, 10], [20, 0, 30, 10]]])
        >>> kept = nms(boxes, iou_threshold=0.5)
        >>> kept.index[0, : kept.count[0]]
        tensor([0, 2], dtype=torch.int32)
    """
    if not isinstance(boxes, torch.Tensor) or boxes.dtype != torch.float32 or boxes.ndim != 3 or boxes.shape[2] != 4:
        raise InputError(f"boxes must be a float32 tensor [B, N, 4], got {describe(boxes)}.")
    batch, most = boxes.shape[:2]
    if count is None:
        count = torch.full((batch,), most, dtype=torch.int32, device=boxes.device)
    if groups is None:
        groups = torch.zeros((batch, most), dtype=torch.int32, device=boxes.device)
    for name, value, shape in (("count", count, [batch]), ("groups", groups, [batch, most])):
        is_tensor = isinstance(value, torch.Tensor)
        if not is_tensor or value.dtype != torch.int32 or list(value.shape) != shape or value.device != boxes.device:
            raise InputError(f"{name} must be int32 {shape} on {boxes.device}, got {describe(value)}.")
    check_fraction("iou_threshold", iou_threshold)
    if max_output is not None:
        check_count("max_output", as_int(max_output))
    kept: Kept = RECORD.choose(implementation, boxes).run(
        boxes.detach(),
        count,
        groups,
        threshold=round_down(float(iou_threshold)),
        max_output=most if max_output is None else int(max_output),
    )
    return kept


def round_down(value: float) -> float:
    """The largest float32 that is not above a number."""
    rounded = np.float32(value)
    return float(rounded if float(rounded) <= value else np.nextafter(rounded, np.float32(-math.inf)))


RECORD = make_op(nms, Variant(reference.nms), dtypes=(torch.float32,), cpu=Variant(cpu.nms, needs_cpu))

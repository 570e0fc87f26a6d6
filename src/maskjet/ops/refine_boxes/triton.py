"""refine_boxes on an NVIDIA GPU: one launch; four products in float32, then the boxes and their sines."""

from __future__ import annotations

import torch
import triton

from maskjet.ops.gpu import Launchers
from maskjet.ops.refine_boxes.kernels import refine_boxes_kernel

_LAUNCHERS = Launchers(refine_boxes_kernel)
_ROWS_OF_FEW, _ROWS_OF_MANY = 1, 4
_MANY = 1024


def refine_boxes(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    references: torch.Tensor,
    *,
    rows: torch.Tensor | None,
    offsets: torch.Tensor | None,
    frequencies: torch.Tensor | None,
    out: torch.Tensor,
    out_embedding: torch.Tensor | None,
) -> None:
    """Write the boxes and their embedding; see the reference."""
    count, inputs = hidden.shape
    if not count:
        return
    rows_of_program = _ROWS_OF_MANY if count >= _MANY else _ROWS_OF_FEW
    _LAUNCHERS.of(hidden.device, 4, 1)(
        (triton.cdiv(count, rows_of_program), 1, 1),
        (hidden.device, hidden.dtype),
        hidden,
        weight,
        bias,
        references,
        bias if rows is None else rows,
        bias if offsets is None else offsets,
        bias if frequencies is None else frequencies,
        out,
        out if out_embedding is None else out_embedding,
        count,
        INPUTS=inputs,
        REFERENCES=len(references),
        OFFSETS=0 if offsets is None else len(offsets),
        FREQUENCIES=0 if frequencies is None else len(frequencies),
        HAS_ROWS=rows is not None,
        ROWS=rows_of_program,
    )

"""The last layer of a box head: moves reference boxes, and encodes them as sines."""

from __future__ import annotations

import torch

from maskjet.config import Implementation
from maskjet.errors import InputError
from maskjet.ops.gpu import make_op
from maskjet.ops.record import HALVES, check_like, describe, is_packed
from maskjet.ops.refine_boxes import reference

_SIDES = 4


def refine_boxes(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    references: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    frequencies: torch.Tensor | None = None,
    implementation: Implementation = "auto",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Move reference boxes by hidden @ weightᵀ + bias, in float32: a shift in units of their size, and a log scale.

    On a GPU it is one launch on the current stream, which never waits.

    Args:
        hidden: float16 or bfloat16 [M, K], contiguous.
        weight: float32 [4, K], contiguous: dx, dy, log of the width's and of the height's factor.
        bias: float32 [4].
        references: float32 [M, 4] cxcywh, contiguous; or a table [R, 4], with `rows`.
        rows: int32 [M], at least 0: rows of the table, modulo R, as `rank_tokens` gives them.
        offsets: float32 [Q, 4], contiguous: a second move, of each Q boxes in turn; Q divides M.
        frequencies: float32 [D], contiguous: angles per unit of a coordinate.
        implementation: "auto", "reference" or "triton".

    Returns:
        Boxes, float32 [M, 4] cxcywh; and with `frequencies`, of the type of hidden, [M, 4 × D]: sines of the even
        angles of cy, cx, w, h and cosines of the odd ones (DAB-DETR), else None.

    Raises:
        InputError: An argument is not as above.
        UnsupportedError: The implementation asked for can't serve these tensors.

    Boxes are equal to the reference within 1e-5 of the largest coordinate, sines within an ULP more.

    Examples:
        >>> hidden, zeros = torch.ones(1, 2, dtype=torch.float16), torch.zeros(4)
        >>> weight = torch.tensor([[0.5, 0.5], [0, 0], [0, 0], [0, 0]])
        >>> refine_boxes(hidden, weight, zeros, torch.tensor([[0.5, 0.5, 0.25, 0.125]]))[0].tolist()
        [[0.75, 0.5, 0.25, 0.125]]
    """
    if not is_packed(hidden, HALVES, 2) or not hidden.shape[1]:
        raise InputError(f"hidden must be float16 or bfloat16 [M, K], contiguous, got {describe(hidden)}.")
    (count, inputs), device = hidden.shape, hidden.device
    check_like("weight", weight, torch.float32, (_SIDES, inputs), device)
    check_like("bias", bias, torch.float32, (_SIDES,), device)
    if rows is not None:
        check_like("rows", rows, torch.int32, (count,), device)
    table = len(references) if rows is not None and isinstance(references, torch.Tensor) and len(references) else count
    check_like("references", references, torch.float32, (table, _SIDES), device)
    if offsets is not None:
        queries = len(offsets) if isinstance(offsets, torch.Tensor) and offsets.ndim else 0
        check_like("offsets", offsets, torch.float32, (queries, _SIDES), device)
        if not queries or count % queries:
            raise InputError(f"offsets must be [Q, 4], where Q divides {count}, got {describe(offsets)}.")
    out = torch.empty(count, _SIDES, dtype=torch.float32, device=device)
    embedding = None
    if frequencies is not None:
        waves = len(frequencies) if isinstance(frequencies, torch.Tensor) and frequencies.ndim else 0
        check_like("frequencies", frequencies, torch.float32, (waves,), device)
        embedding = torch.empty(count, _SIDES * waves, dtype=hidden.dtype, device=device)
    RECORD.choose(implementation, hidden).run(
        hidden,
        weight,
        bias,
        references,
        rows=rows,
        offsets=offsets,
        frequencies=frequencies,
        out=out,
        out_embedding=embedding,
    )
    return out, embedding


RECORD = make_op(refine_boxes, reference.refine_boxes)

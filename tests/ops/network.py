"""The ops within RF-DETR's network with records like those of `maskjet.ops`; their functions allocate the outputs."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.ops import RECORDS
from maskjet.ops.gpu import make_op
from maskjet.ops.linear.reference import Norm
from maskjet.ops.linear.tiles import Workspace, count_partials
from maskjet.ops.record import Op, Variant

Run = Callable[..., None]
"""An implementation, which writes to the outputs that it is given."""


def linear(
    run: Run,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    gives: str = "values",
    norm: Norm | None = None,
    last_norm: Norm | None = None,
    **given: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The output and, with gives="sums", its sums; with "float32" in float32, with "maxima" those of blocks of it."""
    rows, outputs = len(given.get("rows", x)), len(weight)
    is_whole = norm is not None or last_norm is not None
    parts = count_partials(rows, weight.shape[1], outputs, x.shape[1], is_whole=is_whole)
    dtype = torch.float32 if gives in ("float32", "maxima") else x.dtype
    out = torch.empty(rows, parts if gives == "maxima" else outputs, dtype=dtype, device=x.device)
    sums = torch.empty(rows, 2, parts, dtype=torch.float32, device=x.device) if gives == "sums" else None
    options = {"norm": norm, "last_norm": last_norm, "gives_maxima": gives == "maxima", "workspace": Workspace()}
    run(x, weight, bias, out=out, out_sums=sums, **options, **given)
    return out, sums


def attention(run: Run, projections: torch.Tensor) -> torch.Tensor:
    """See its reference."""
    batch, length, _, heads, side = projections.shape
    out = projections.new_empty(batch, length, heads * side)
    run(projections, out)
    return out


def embed_patches(
    run: Run, images: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor, *, windows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and the sums of their rows."""
    side = math.isqrt(weight.shape[1] // 3)
    tokens = images.shape[2] // side * (images.shape[3] // side) + windows**2
    assert len(positions) == tokens
    rows, outputs = len(images) * tokens, len(weight)
    out = images.new_empty(rows, outputs)
    sums = positions.new_empty(rows, 2, count_partials(rows, 64, outputs))
    run(images, weight, positions, windows=windows, out=out, out_sums=sums)
    return out, sums


def rank_tokens(run: Run, scores: torch.Tensor, *, count: int) -> torch.Tensor:
    """See its reference."""
    out = torch.empty(len(scores), count, dtype=torch.int32, device=scores.device)
    run(scores, out=out)
    return out


def refine_boxes(
    run: Run,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    references: torch.Tensor,
    *,
    rows: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    frequencies: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Boxes and, with frequencies, their sines."""
    out = bias.new_empty(len(hidden), 4)
    sines = None if frequencies is None else hidden.new_empty(len(hidden), 4 * len(frequencies))
    given = {"rows": rows, "offsets": offsets, "frequencies": frequencies, "out": out, "out_embedding": sines}
    run(hidden, weight, bias, references, **given)
    return out, sines


def deformable_attention(
    run: Run, projections: torch.Tensor, boxes: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """See its reference."""
    out = values.new_empty(*boxes.shape[:2], values.shape[3])
    run(projections, boxes, values, out=out)
    return out


def resize_pixels(run: Run, image: torch.Tensor, *, size: tuple[int, int]) -> torch.Tensor:
    """See its reference."""
    out = image.new_empty(len(image), *size, image.shape[3])
    run(image, out=out)
    return out


def depthwise_norm(
    run: Run, image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float = 1e-6
) -> torch.Tensor:
    """See its reference."""
    out = torch.empty_like(image)
    run(image, weight, bias, eps=eps, out=out)
    return out


def mask_logits(run: Run, queries: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """See its reference."""
    out = pixels.new_empty(len(queries), queries.shape[1], *pixels.shape[1:3])
    run(queries, pixels, out=out)
    return out


def _record(allocate: Callable[..., Any], dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)) -> Op:
    name = allocate.__name__
    module = f"maskjet.ops.{name}"
    reference = Variant(getattr(importlib.import_module(f"{module}.reference"), name))

    def public(*args: Any, implementation: str = "auto", **given: Any) -> Any:
        first = next(iter((*args, *given.values())))
        return allocate(OPS[name].choose(implementation, first).run, *args, **given)

    public.__name__, public.__module__ = name, module  # where `make_op` looks
    return make_op(public, reference, dtypes=dtypes)


OPS: Mapping[str, Op] = {
    **RECORDS,
    "linear": _record(linear),
    "attention": _record(attention),
    "embed_patches": _record(embed_patches),
    "rank_tokens": _record(rank_tokens, (torch.float32,)),
    "refine_boxes": _record(refine_boxes),
    "deformable_attention": _record(deformable_attention),
    "resize_pixels": _record(resize_pixels),
    "depthwise_norm": _record(depthwise_norm),
    "mask_logits": _record(mask_logits),
}
"""The records of all ops by name: those of `maskjet.ops`, and those within the network."""


def run_by_references(monkeypatch: Any) -> None:
    """Let passes on a CPU run by the references, unless kernels are interpreted, which takes seconds."""
    launch = Forward._run

    def run(forward: Forward, op: str, first: torch.Tensor, *args: Any, **given: Any) -> None:
        if first.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            OPS[op].variants["reference"].run(first, *args, **given)
        else:
            launch(forward, op, first, *args, **given)

    monkeypatch.setattr(Forward, "_run", run)

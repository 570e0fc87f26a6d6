"""Inputs on which every implementation of rank_tokens must agree, and how closely."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from tests.ops.cases.tolerances import bytes_of


def _case(
    batch: int = 1,
    tokens: int = 30,
    parts: int = 1,
    count: int = 7,
    *,
    edit: Callable[[torch.Tensor], object] = torch.Tensor.size,
) -> Callable[[torch.device], dict[str, Any]]:
    def build(device: torch.device) -> dict[str, Any]:
        scores = torch.randn(batch, tokens, parts, generator=torch.Generator().manual_seed(batch + tokens + parts))
        edit(scores)
        return {"scores": scores.to(device), "count": count}

    return build


def _non_finite(scores: torch.Tensor) -> None:
    scores[:, ::3] = torch.nan
    scores[:, 1::3] = -torch.inf
    scores[:, 5] = torch.inf


CASES: Mapping[str, Callable[[torch.device], dict[str, Any]]] = {
    "some": _case(),
    "one token": _case(tokens=1, count=1),
    "one of many": _case(tokens=100, count=1),
    "all of them": _case(count=30),
    "none of them": _case(count=0),
    "three parts": _case(parts=3),
    "more than a block of rivals": _case(tokens=1100, count=300, parts=2),
    "many tokens of many images": _case(batch=3, tokens=1500, count=40),
    "ties": _case(edit=lambda scores: scores.round_()),
    "ties among blocks": _case(tokens=1100, count=600, edit=lambda scores: scores.round_()),
    "ties among blocks of many images": _case(batch=4, tokens=1100, count=600, edit=lambda scores: scores.round_()),
    "all alike": _case(edit=torch.Tensor.zero_, tokens=40, count=20),
    "not finite": _case(edit=_non_finite, count=30, parts=2),
    "batch": _case(batch=4),
    "no images": _case(batch=0),
}


def tolerance_used(_inputs: dict[str, Any], expected: torch.Tensor, actual: torch.Tensor) -> float:
    """Zero if they are equal: rows are exact."""
    return 0.0 if torch.equal(expected, actual) else float("inf")


def bytes_moved(inputs: dict[str, Any]) -> int:
    """Bytes of the scores and of the rows."""
    return bytes_of(inputs) + len(inputs["scores"]) * int(inputs["count"]) * 4

"""Tests of the loop that `predict` and `stream` share."""

from __future__ import annotations

import torch

from maskjet.engine.pipeline import _AHEAD, _gather
from maskjet.sources.source import Frame

_MOST = 4


def test_images_of_one_kind_are_gathered_from_a_bounded_number_of_images() -> None:
    heights = [number % 7 + 1 for number in range(100)]
    loaded = 0

    def load(number: int) -> torch.Tensor:
        nonlocal loaded
        loaded += 1
        return torch.zeros(heights[number], 2, 3, dtype=torch.uint8)

    seen: list[int] = []
    sizes = []
    frames = (Frame(number, None, load(number), "images", "") for number in range(100))
    for batch in _gather(lambda size_hw: size_hw, frames, _MOST):
        seen += [frame.index for frame in batch.items]
        sizes.append(len(batch.items))
        assert len({heights[frame.index] for frame in batch.items}) == 1
        assert loaded - len(seen) < _AHEAD * _MOST
    assert sorted(seen) == list(range(100))
    assert max(sizes) <= _MOST
    assert len(sizes) < 50, "no better than pairs"

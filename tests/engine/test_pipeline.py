"""Tests of the loop that `predict` and `stream` share."""

from __future__ import annotations

import torch

from maskjet.engine.pipeline import _AHEAD, _gather

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
    for batch in _gather(lambda size_hw: size_hw, ((number, load(number)) for number in range(100)), _MOST):
        seen += batch.items
        sizes.append(len(batch.items))
        assert len({heights[number] for number in batch.items}) == 1
        assert loaded - len(seen) < _AHEAD * _MOST
    assert sorted(seen) == list(range(100))
    assert max(sizes) <= _MOST
    assert len(sizes) < 50, "no better than pairs"

"""The shapes of linear's launches, by the size of the product."""

from __future__ import annotations

from typing import NamedTuple

_MULTIPROCESSORS = 132  # of an H100 or H200
_STEPS = (64, 32, 16)


class Tile(NamedTuple):
    """The shape of a launch."""

    rows: int
    """Rows of the output per program."""
    columns: int
    """Columns of the output per program."""
    step: int
    """Inputs per step."""
    warps: int
    """Warps per program."""
    stages: int
    """Steps whose inputs are under way at once."""


def choose_tile(rows: int, inputs: int, outputs: int, *, is_whole: bool = False) -> Tile:
    """The shape for a product: small tiles where there are few, so that all multiprocessors have some.

    Args:
        rows: Rows of the output.
        inputs: Inputs of each.
        outputs: Columns of the output.
        is_whole: Whether a program must have whole rows, as a norm behind the product needs them.
    """
    step = next(side for side in _STEPS if inputs % side == 0)
    if is_whole:
        return Tile(64 if rows >= 64 * _MULTIPROCESSORS else 16, outputs, step, 4, 3)
    columns = next(side for side in (128, *_STEPS) if outputs % side == 0)
    if -(-rows // 128) * (outputs // columns) >= 2 * _MULTIPROCESSORS:
        return Tile(128, columns, step, 8, 3)
    return Tile(64 if rows > 64 else 16, min(columns, 64), step, 4, 4)

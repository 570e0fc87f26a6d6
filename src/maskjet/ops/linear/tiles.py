"""The shapes of linear's launches, by the size of the product."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from maskjet.ops.gpu import MULTIPROCESSORS, fitting_stages, shared_memory

TABLE = Path(__file__).with_name("tiles.json")
"""What `tools/choose_tiles.py` found on an H200: [rows, width, outputs, inputs, is whole], and the tile."""
_STEPS = (64, 32, 16)
_SIDES = (256, 128, 64, 32, 16)
_NARROW = 32  # columns: narrower tiles fetch more than they multiply
_MOST_VALUES = 256 * 128  # of a tile: its sums are in registers
_FEW_VALUES = 64 * 128  # up to so many are four warps', else eight's
SHARED = 200 * 1024  # bytes of a multiprocessor's shared memory, in which steps are under way
_VALUE_BYTES = 4  # of shared memory, by which a tile's values are handed from threads that multiply to those that store
_SPLITS = (1, 2, 4, 8, 16)
# Of an H200, roughly, by some launches that were timed. Microseconds that a launch takes besides its steps, that adding
# a tile's parts takes, and that a step takes besides its bytes.
_LAUNCH_US, _PARTS_US, _STEP_US = 2.0, 1.5, 0.12
# Bytes that all multiprocessors fetch from the second-level cache in a microsecond, that one fetches, and products that
# it adds; tiles of less than 64 rows are too low for Hopper's instruction.
_CACHE_BYTES_PER_US, _BYTES_PER_US = 7e6, 150e3
_PRODUCTS_PER_US = {16: 0.7e6, 32: 0.7e6, 64: 1.4e6, 128: 1.6e6, 256: 1.6e6}


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
    splits: int = 1
    """Programs that share the sum of a tile."""
    programs: int = 0
    """Programs per multiprocessor that compute one tile after the other, with what they need copied in blocks; 0 where
    each has one tile, and copies by itself. It is for inputs that lie as they are needed, on GPUs that copy blocks."""


class Workspace:
    """Memory in which programs share the sums of tiles; for launches that never run at the same time."""

    def __init__(self) -> None:
        self._parts: torch.Tensor | None = None
        self._arrived: torch.Tensor | None = None

    def take(self, tile: Tile, rows: int, outputs: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for a launch: float32 values of all parts, and an int32 zero per tile, which the launch leaves so."""
        tiles = -(-rows // tile.rows) * (outputs // tile.columns)
        values = tiles * tile.splits * tile.rows * tile.columns
        if self._parts is None or len(self._parts) < values:
            self._parts = torch.empty(values, dtype=torch.float32, device=device)
        if self._arrived is None or len(self._arrived) < tiles:
            self._arrived = torch.zeros(tiles, dtype=torch.int32, device=device)
        return self._parts, self._arrived


@lru_cache(maxsize=4096)
def choose_tile(rows: int, width: int, outputs: int, *, inputs: int | None = None, is_whole: bool = False) -> Tile:
    """The shape for a product: what was the fastest on an H200, for as many rows or the most similar number.

    For products of other networks it is what should be the fastest by a rough count.

    Args:
        rows: Rows of the output.
        width: Columns of the weight.
        outputs: Columns of the output.
        inputs: Columns of x, if the weight is wider.
        is_whole: Whether a program must have whole rows, as a norm behind the product needs them.
    """
    inputs = inputs or width
    timed = _timed().get((width, outputs, inputs, is_whole))
    if timed is not None:
        return timed[min(timed, key=lambda other: abs(math.log(other / max(rows, 1))))]
    found = candidates(rows, width, outputs, step_of(width, inputs), is_whole=is_whole)
    return min(found, key=lambda tile: estimate(tile, rows, width, outputs))


def fit(tile: Tile, device: torch.device) -> Tile:
    """The tile with as many rows and stages as a GPU's shared memory takes."""
    shared = shared_memory(device)
    while tile.rows > _SIDES[-1] and _VALUE_BYTES * tile.rows * tile.columns > shared:
        tile = tile._replace(rows=tile.rows // 2)
    return tile._replace(stages=fitting_stages(tile.stages, 2 * (tile.rows + tile.columns) * tile.step, device))


@cache
def _timed() -> dict[tuple[int, int, int, bool], dict[int, Tile]]:
    """The tiles of each product by its rows."""
    found: dict[tuple[int, int, int, bool], dict[int, Tile]] = {}
    for (rows, *product), tile in json.loads(TABLE.read_text()):
        found.setdefault(tuple(product), {})[rows] = Tile(*tile)
    return found


def step_of(width: int, inputs: int) -> int:
    """Inputs per step: a power of two that divides both."""
    return next(side for side in _STEPS if math.gcd(width, inputs) % side == 0)


def candidates(rows: int, width: int, outputs: int, step: int, *, is_whole: bool) -> Iterator[Tile]:
    """The tiles that may serve a product; see `choose_tile`."""
    steps = width // step
    for columns in _widths(outputs, is_whole=is_whole):
        for height in _SIDES:
            if height * columns > _MOST_VALUES or height >= 2 * max(rows, _SIDES[-1]):
                continue
            warps = 8 if height * columns > _FEW_VALUES else 4
            for splits in _SPLITS:
                if steps % splits == 0 and (splits == 1 or steps // splits >= 2):
                    programs = -(-rows // height) * (outputs // columns) * splits
                    shared = SHARED // (2 if programs > MULTIPROCESSORS else 1)
                    stages = min(4, max(2, shared // (2 * (height + columns) * step)))
                    yield Tile(height, columns, step, warps, stages, splits)


def _widths(outputs: int, *, is_whole: bool) -> list[int]:
    fitting = [outputs] if is_whole else [side for side in _SIDES if outputs % side == 0]
    return [side for side in fitting if side >= _NARROW] or fitting


def estimate(tile: Tile, rows: int, width: int, outputs: int) -> float:
    """Microseconds, roughly: a program's steps wait for their bytes, and programs share multiprocessors."""
    programs = -(-rows // tile.rows) * (outputs // tile.columns) * tile.splits
    steps = width // tile.step // tile.splits
    fetched = 2 * (tile.rows + tile.columns) * tile.step / _BYTES_PER_US
    multiplied = tile.rows * tile.columns * tile.step / _PRODUCTS_PER_US[tile.rows]
    busy = max(programs / MULTIPROCESSORS, 1.0) * steps * max(fetched, multiplied)
    added = 0.0
    if tile.splits > 1:
        values = -(-rows // tile.rows) * outputs * tile.rows * tile.splits * 8
        added = _PARTS_US + values / _BYTES_PER_US / min(programs, MULTIPROCESSORS)
    shared = programs * steps * 2 * (tile.rows + tile.columns) * tile.step / _CACHE_BYTES_PER_US
    return _LAUNCH_US + max(busy, shared, steps * (_STEP_US + fetched)) + added

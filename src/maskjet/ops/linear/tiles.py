"""Launch shapes of linear, by the size of the product."""

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
"""Fastest tiles on an H200, by `tools/choose_tiles.py`: pairs of [rows, width, outputs, inputs, is_whole] and tile."""
_STEPS = (64, 32, 16)
_SIDES = (256, 128, 64, 32, 16)
_NARROW = 32  # columns; narrower tiles fetch more than they multiply
_MOST_VALUES = 256 * 128  # most values of a tile: its accumulators stay in registers
_FEW_VALUES = 64 * 128  # 4 warps up to this many accumulators per tile, else 8
SHARED = 200 * 1024  # bytes of a multiprocessor's shared memory for pipeline stages
_VALUE_BYTES = 4  # shared memory per value of a tile, for exchanging the result between threads
_SPLITS = (1, 2, 4, 8, 16)
# Rough costs on an H200, fitted to timed launches, in microseconds: a launch, adding up a tile's partial sums, and
# the fixed part of a step.
_LAUNCH_US, _PARTS_US, _STEP_US = 2.0, 1.5, 0.12
# Rates per microsecond: L2 bytes for the whole GPU, bytes per multiprocessor, and multiply-adds per multiprocessor
# by rows of the tile. Tiles of fewer than 64 rows can't use Hopper's matrix instruction.
_CACHE_BYTES_PER_US, _BYTES_PER_US = 7e6, 150e3
_PRODUCTS_PER_US = {16: 0.7e6, 32: 0.7e6, 64: 1.4e6, 128: 1.6e6, 256: 1.6e6}


class Tile(NamedTuple):
    """Launch shape of a linear layer."""

    rows: int
    """Rows of the output per program."""
    columns: int
    """Columns of the output per program."""
    step: int
    """Columns of x per step of the inner loop."""
    warps: int
    """Warps per program."""
    stages: int
    """Pipeline stages (`num_stages`)."""
    splits: int = 1
    """Programs that each compute a partial sum of one tile (split-K)."""
    programs: int = 0
    """Persistent programs per multiprocessor, with bulk copies; 0 for one program per tile, without. Bulk copies need
    inputs that are not gathered, and a GPU of `has_bulk_copies`."""


class Workspace:
    """Memory for partial sums of tiles; shared by launches that never run at the same time."""

    def __init__(self) -> None:
        self._parts: torch.Tensor | None = None
        self._arrived: torch.Tensor | None = None

    def take(self, tile: Tile, rows: int, outputs: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory for a launch: float32 partial sums, and an int32 zero per tile, which is zero again afterwards."""
        tiles = -(-rows // tile.rows) * (outputs // tile.columns)
        values = tiles * tile.splits * tile.rows * tile.columns
        if self._parts is None or len(self._parts) < values:
            self._parts = torch.empty(values, dtype=torch.float32, device=device)
        if self._arrived is None or len(self._arrived) < tiles:
            self._arrived = torch.zeros(tiles, dtype=torch.int32, device=device)
        return self._parts, self._arrived


@lru_cache(maxsize=4096)
def choose_tile(rows: int, width: int, outputs: int, *, inputs: int | None = None, is_whole: bool = False) -> Tile:
    """Choose the tile of a product: the fastest on an H200 for the nearest timed number of rows.

    A product that was not timed gets the fastest shape by a rough estimate. `width` is that of the weight, and `inputs`
    that of x, if the weight is wider. With `is_whole` a tile must span whole rows, for a norm behind the product.
    """
    inputs = inputs or width
    timed = _timed().get((width, outputs, inputs, is_whole))
    if timed is not None:
        return timed[min(timed, key=lambda other: abs(math.log(other / max(rows, 1))))]
    found = candidates(rows, width, outputs, step_of(width, inputs), is_whole=is_whole)
    return min(found, key=lambda tile: estimate(tile, rows, width, outputs))


def count_partials(rows: int, width: int, outputs: int, inputs: int | None = None, *, is_whole: bool = False) -> int:
    """Count the partial sums or maxima that a layer writes per row: the tiles across its output; see `choose_tile`."""
    return outputs // choose_tile(rows, width, outputs, inputs=inputs, is_whole=is_whole).columns


def fit(tile: Tile, device: torch.device) -> Tile:
    """Reduce a tile's rows and stages until it fits into a GPU's shared memory."""
    shared = shared_memory(device)
    while tile.rows > _SIDES[-1] and _VALUE_BYTES * tile.rows * tile.columns > shared:
        tile = tile._replace(rows=tile.rows // 2)
    return tile._replace(stages=fitting_stages(tile.stages, 2 * (tile.rows + tile.columns) * tile.step, device))


@cache
def _timed() -> dict[tuple[int, int, int, bool], dict[int, Tile]]:
    """The fastest timed tiles of each product, by number of rows."""
    found: dict[tuple[int, int, int, bool], dict[int, Tile]] = {}
    for (rows, *product), tile in json.loads(TABLE.read_text()):
        found.setdefault(tuple(product), {})[rows] = Tile(*tile)
    return found


def step_of(width: int, inputs: int) -> int:
    """Columns of x per step: a power of two that divides both."""
    return next(side for side in _STEPS if math.gcd(width, inputs) % side == 0)


def candidates(rows: int, width: int, outputs: int, step: int, *, is_whole: bool) -> Iterator[Tile]:
    """Candidate tiles of a product; see `choose_tile`."""
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
    """Estimate the time of a launch in microseconds, from memory traffic, multiply-adds and occupancy."""
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

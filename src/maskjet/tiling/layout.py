"""Layout of the tiles of a frame."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from maskjet.checks import parse_hw
from maskjet.errors import InputError

TileSize = tuple[int, int] | int | Literal["auto"]
"""Side of square tiles, or (height, width), in pixels; "auto" derives it from the network's input."""
MOST, MOST_AUTO = 256, 64
"""Most tiles of a frame, not counting the whole frame: in general, and for "auto" or a service's request."""
_LEAST_SIDE, _MOST_OVERLAP = 32, 0.9  # this overlap still leaves a step of two pixels


class Tile(NamedTuple):
    """A rectangle of a frame, in its pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Tiling:
    """Options of cutting frames into tiles; the arguments of `Model.predict`, and the command line's help.

    Raises:
        InputError: A field is not as `cut_tiles` takes it, or others are given without `tile`.
    """

    tile: Annotated[
        TileSize | None,
        "Detect on overlapping tiles of this size; auto: the model's input, enlarged until there are at most 64.",
    ] = None
    overlap: Annotated[float, "Least overlap, 0 to 0.9 of a side. Not given: 0.2."] = 0.2
    full: Annotated[bool, "Whether to detect on whole frames, too; by default so."] = True

    def __post_init__(self) -> None:
        tile, overlap = self.tile, self.overlap
        sides: Sequence[Any] = tile if isinstance(tile, tuple | list) and len(tile) == 2 else (tile, tile)
        is_given = tile is not None and not (isinstance(tile, str) and tile == "auto")
        if is_given and not all(type(side) is int and _LEAST_SIDE <= side < 2**31 for side in sides):
            raise InputError(f"tile must be {_LEAST_SIDE} pixels or more, (height, width) or 'auto', got {tile!r}.")
        if isinstance(overlap, bool) or not isinstance(overlap, int | float) or not 0 <= overlap <= _MOST_OVERLAP:
            raise InputError(f"overlap must be 0..{_MOST_OVERLAP}, a share of a tile's side, got {overlap!r}.")
        if not isinstance(self.full, bool):
            raise InputError(f"full must be True or False, got {self.full!r}.")
        if tile is None and (overlap != Tiling.overlap or not self.full):
            raise InputError(f"tile must be given with overlap and full, got None with {overlap} and {self.full}.")


UNCUT = Tiling()


def parse_tile(text: str | None) -> TileSize | None:
    """Parse a tile size: N, WIDTHxHEIGHT or auto; raises InputError."""
    if text in (None, "auto"):
        return text  # type: ignore[return-value]
    if re.fullmatch(r"\d{1,5}", text, re.ASCII):
        return int(text)
    return parse_hw(text, "tile", "a side in pixels, WIDTHxHEIGHT or auto")


def cut_tiles(
    size_hw: tuple[int, int], tile: TileSize, overlap: float, input_hw: tuple[int, int], full: bool, *, most: int = MOST
) -> list[Tile]:
    """Cut a frame into tiles of one size that cover it, row by row, evenly spread.

    Where a side of the frame is even, so are the tiles' offsets and sides: NV12 has a chroma sample for 2 × 2 pixels.

    Args:
        size_hw: (height, width) of the frame in pixels, at least 1.
        tile: Side of a tile in pixels, 32 or more; (height, width); or "auto", the network's input, enlarged by the
            least factor that gives at most 64 tiles. Where the frame's side is shorter, a tile's is that.
        overlap: Least overlap of neighbours, 0..0.9 of a tile's side.
        input_hw: Size of the network's input for such a frame.
        full: Whether the last tile is the whole frame, unless the only one is.
        most: Most tiles, without the whole frame.

    Raises:
        InputError: An argument is not as above, or there would be more tiles; the error names a size that works.

    Examples:
        >>> cut_tiles((720, 1280), 640, 0.2, (312, 312), full=True)[-2:]
        [Tile(top=80, left=640, height=640, width=640), Tile(top=0, left=0, height=720, width=1280)]
    """
    Tiling(tile, overlap, full)  # raises for invalid values
    if isinstance(tile, str):  # "auto"
        height, width = (max(side, _LEAST_SIDE) for side in input_hw)
        asked = _enlarge(size_hw, (height, width), overlap, min(most, MOST_AUTO))
    else:
        asked = (tile, tile) if isinstance(tile, int) else (tile[0], tile[1])
        if (count := _count(size_hw, asked, overlap)) > most:
            least = _enlarge(size_hw, asked, overlap, most)
            raise InputError(
                f"tile must be {least[0] if isinstance(tile, int) else least} or larger, or 'auto', for frames of "
                f"{size_hw[1]} × {size_hw[0]} pixels with overlap {overlap}: at most {most} tiles, got {tile}, which "
                f"gives {count:,}."
            )
    (height, tops), (width, lefts) = (_cut_side(*each, overlap) for each in zip(size_hw, asked, strict=True))
    tiles = [Tile(top, left, height, width) for top in tops for left in lefts]
    return [*tiles, Tile(0, 0, *size_hw)] if full and len(tiles) > 1 else tiles


def _cut_side(side: int, asked: int, overlap: float) -> tuple[int, list[int]]:
    """Tile side and tile offsets along one side of a frame."""
    length, grain, gaps = _spread(side, asked, overlap)
    return length, [grain * (number * ((side - length) // grain) // max(gaps, 1)) for number in range(gaps + 1)]


def _spread(side: int, asked: int, overlap: float) -> tuple[int, int, int]:
    """Tile side, alignment of side and offsets, and number of tiles minus one, along one side of a frame."""
    grain = 2 - side % 2
    length = min(side, -(-asked // grain) * grain)
    longest = (length - math.ceil(overlap * length)) // grain  # largest step between tiles
    return length, grain, -(-(side - length) // grain // longest) if side > length else 0


def _count(size_hw: tuple[int, int], tile_hw: tuple[int, int], overlap: float) -> int:
    return math.prod(1 + _spread(*each, overlap)[2] for each in zip(size_hw, tile_hw, strict=True))


def _enlarge(size_hw: tuple[int, int], tile_hw: tuple[int, int], overlap: float, most: int) -> tuple[int, int]:
    """Enlarge the tile size by the least factor that gives at most `most` tiles."""
    longer = max(tile_hw)

    def enlarged(long: int) -> tuple[int, int]:
        return -(-tile_hw[0] * long // longer), -(-tile_hw[1] * long // longer)

    sizes = range(longer, 1 + longer * max(-(-size_hw[0] // tile_hw[0]), -(-size_hw[1] // tile_hw[1]), 1))
    return enlarged(sizes[bisect_left(sizes, -most, key=lambda long: -_count(size_hw, enlarged(long), overlap))])

"""Where the tiles of a frame lie."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

from maskjet.errors import InputError

TileSize = int | tuple[int, int] | Literal["auto"]
"""Side of square tiles, or their (height, width), in pixels; "auto" goes by the network's input."""

MOST = 256
"""Most tiles of a frame, without the whole frame."""
MOST_AUTO = 64
"""Most tiles of a frame that "auto" makes, and that a request may ask for."""
_LEAST_SIDE = 32  # pixels; a share of 0.9 of it still leaves a step of two pixels
_MOST_OVERLAP = 0.9
_MOST_SIDE = 2**31 - 1


class Tiling(NamedTuple):
    """How frames are cut; arguments of `cut_tiles`."""

    tile: TileSize
    overlap: float = 0.2
    full: bool = True


class Tile(NamedTuple):
    """A rectangle of a frame, in its pixels."""

    top: int
    left: int
    height: int
    width: int

    def borders(self, size_hw: tuple[int, int]) -> tuple[bool, bool, bool, bool]:
        """Whether its top, left, bottom and right are the border of a frame of (height, width)."""
        height, width = size_hw
        return self.top == 0, self.left == 0, self.top + self.height == height, self.left + self.width == width


def check_tiling(tile: Any, overlap: Any, full: Any) -> None:
    """Check how frames are to be cut, before there is a frame.

    Raises:
        InputError: An argument is not as `cut_tiles` takes it.
    """
    sides = tile if isinstance(tile, tuple | list) and len(tile) == 2 else (tile, tile)
    are_whole = all(isinstance(side, int) and not isinstance(side, bool) for side in sides)
    if tile != "auto" and not (are_whole and all(_LEAST_SIDE <= side <= _MOST_SIDE for side in sides)):
        raise InputError(
            f"tile must be {_LEAST_SIDE} pixels or more, a (height, width) of such, or 'auto', got {tile!r}."
        )
    is_number = isinstance(overlap, int | float) and not isinstance(overlap, bool)
    if not is_number or not 0 <= overlap <= _MOST_OVERLAP:
        raise InputError(f"overlap must be 0..{_MOST_OVERLAP}, a share of a tile's side, got {overlap!r}.")
    if not isinstance(full, bool):
        raise InputError(f"full must be True or False, got {full!r}.")


def cut_tiles(
    size_hw: tuple[int, int],
    tile: TileSize,
    overlap: float,
    input_hw: tuple[int, int],
    full: bool,
    *,
    most: int = MOST,
) -> list[Tile]:
    """Cut a frame into tiles of one size that cover it, row by row.

    Tiles that the frame's sides are no multiple of lie closer, evenly spread; a side of the frame that is shorter than
    a tile's is the tiles' side. Where the frame's side is even, so are offsets and sides: NV12 has a chroma sample for
    2 × 2 pixels.

    Args:
        size_hw: (height, width) of the frame in pixels, at least 1.
        tile: Side of a tile in pixels, 32 or more; (height, width); or "auto", the network's input, enlarged by the
            least factor that gives at most 64 tiles.
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
    check_tiling(tile, overlap, full)
    if tile == "auto":
        height, width = (max(side, _LEAST_SIDE) for side in input_hw)
        asked = _enlarge(size_hw, (height, width), overlap, min(most, MOST_AUTO))
    else:
        asked = (tile, tile) if isinstance(tile, int) else (tile[0], tile[1])
    if (count := _count(size_hw, asked, overlap)) > most:
        least = _enlarge(size_hw, asked, overlap, most)
        works = least[0] if isinstance(tile, int) else least
        raise InputError(
            f"tile must be {works} or larger, or 'auto', for frames of {size_hw[1]} × {size_hw[0]} pixels with "
            f"overlap {overlap}: at most {most} tiles, got {tile}, which gives {count:,}."
        )
    rows, columns = (_cut_side(*each, overlap) for each in zip(size_hw, asked, strict=True))
    tiles = [Tile(top, left, height, width) for top, height in rows for left, width in columns]
    return [*tiles, Tile(0, 0, *size_hw)] if full and len(tiles) > 1 else tiles


def _steps(side: int, asked: int, overlap: float) -> tuple[int, int, int, int]:
    """A tile's side, the pixels that offsets are multiples of, the number of tiles, and the last one's offset."""
    grain = 2 - side % 2
    length = min(side, -(-asked // grain) * grain)
    longest = (length - math.ceil(overlap * length)) // grain  # from a tile to the next, in grains
    last = side - length
    return length, grain, 1 + (-(-last // grain // longest) if last else 0), last


def _count(size_hw: tuple[int, int], tile_hw: tuple[int, int], overlap: float) -> int:
    """The number of tiles."""
    return math.prod(_steps(*each, overlap)[2] for each in zip(size_hw, tile_hw, strict=True))


def _cut_side(side: int, asked: int, overlap: float) -> list[tuple[int, int]]:
    """(offset, length) of the tiles along one side of a frame, of which there must be few."""
    length, grain, count, last = _steps(side, asked, overlap)
    return [(grain * (number * (last // grain) // max(count - 1, 1)), length) for number in range(count)]


def _enlarge(size_hw: tuple[int, int], tile_hw: tuple[int, int], overlap: float, most: int) -> tuple[int, int]:
    """The tile size enlarged by the least factor that gives at most so many tiles."""
    longer = max(tile_hw)

    def enlarged(long: int) -> tuple[int, int]:
        return -(-tile_hw[0] * long // longer), -(-tile_hw[1] * long // longer)

    low, high = longer, longer * max(-(-size_hw[0] // tile_hw[0]), -(-size_hw[1] // tile_hw[1]), 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _count(size_hw, enlarged(middle), overlap) <= most else (middle + 1, high)
    return enlarged(low)

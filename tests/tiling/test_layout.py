"""Tiles cover a frame, are of one size, and overlap as much as was asked."""

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskjet.errors import InputError
from maskjet.tiling.layout import MOST, MOST_AUTO, Tile, Tiling, cut_tiles, parse_tile

SIDES = st.integers(1, 3000)
TILES = st.one_of(st.just("auto"), st.integers(32, 4000), st.tuples(st.integers(32, 900), st.integers(32, 900)))


@given(SIDES, SIDES, TILES, st.floats(0, 0.9), st.booleans())
def test_tiles_cover_the_frame_and_overlap_as_asked(height, width, tile, overlap, full):
    size_hw = height, width
    try:
        tiles = cut_tiles(size_hw, tile, overlap, (78, 104), full)
    except InputError as error:
        assert tile != "auto"
        works = re.match(r"tile must be \(?(\d+)(?:, (\d+)\))? or larger", str(error)).groups()
        if works[1] is None:
            with pytest.raises(InputError):
                cut_tiles(size_hw, int(works[0]) - 1, overlap, (78, 104), full)
        tile = int(works[0]) if works[1] is None else tuple(map(int, works))
        tiles = cut_tiles(size_hw, tile, overlap, (78, 104), full)
    cut = tiles[:-1] if full and len(tiles) > 1 else tiles
    assert len(cut) <= (MOST_AUTO if tile == "auto" else MOST)
    assert tiles == cut or (tiles[-1] == (0, 0, *size_hw) and len(cut) > 1)
    assert len({each[2:] for each in cut}) == 1
    for axis, side in enumerate(size_hw):
        length = cut[0][2 + axis]
        offsets = sorted({each[axis] for each in cut})
        assert (offsets[0], offsets[-1] + length) == (0, side)
        assert all(
            after > before and before + length - after >= overlap * length for before, after in pairwise(offsets)
        )
        steps = [after - before for before, after in pairwise(offsets)]
        assert max(steps, default=0) - min(steps, default=0) <= 2
        assert side % 2 or not any(number % 2 for number in (*offsets, length))
    assert cut == [
        Tile(top, left, *cut[0][2:]) for top in sorted({e[0] for e in cut}) for left in sorted({e[1] for e in cut})
    ]


@pytest.mark.parametrize(
    ("size_hw", "tile", "expected"),
    [
        ((1, 1), 640, [(0, 0, 1, 1)]),
        ((640, 640), 640, [(0, 0, 640, 640)]),
        ((100, 641), 640, [(0, 0, 100, 640), (0, 1, 100, 640), (0, 0, 100, 641)]),
        ((100, 642), 640, [(0, 0, 100, 640), (0, 2, 100, 640), (0, 0, 100, 642)]),
        ((64, 100), (64, 33), [(0, left, 64, 34) for left in (0, 22, 44, 66)] + [(0, 0, 64, 100)]),
        ((312, 200), "auto", [(0, 0, 312, 200)]),
    ],
)
def test_tiles_of_frames_hardly_larger_than_one(size_hw, tile, expected):
    assert cut_tiles(size_hw, tile, 0.2, (312, 312), True) == expected


@pytest.mark.parametrize("tile", [32, (32, 640), "auto"])
def test_huge_frames_are_refused_or_cut_without_counting_to_a_billion(tile):
    size_hw = 10**9, 2 * 10**9
    if tile == "auto":
        tiles = cut_tiles(size_hw, tile, 0.2, (312, 312), True)
        assert 32 < len(tiles) <= MOST_AUTO + 1
        return
    with pytest.raises(
        InputError, match=r"^tile must be .* or larger, or 'auto', .* at most 256 tiles, got .*, which gives"
    ):
        cut_tiles(size_hw, tile, 0.2, (312, 312), True)


@pytest.mark.parametrize(
    ("tile", "overlap", "full", "match"),
    [
        (31, 0.2, True, r"^tile must be 32 pixels or more, a \(height, width\) of such, or 'auto', got 31\.$"),
        (True, 0.2, True, "^tile must be"),
        ("640", 0.2, True, "^tile must be"),
        ((640,), 0.2, True, "^tile must be"),
        ((640, 2**31), 0.2, True, "^tile must be"),
        (640, 0.95, True, "^overlap must be 0..0.9, a share of a tile's side, got 0.95"),
        (640, math.nan, True, "^overlap must be"),
        (640, 0.2, 1, "^full must be True or False, got 1"),
    ],
)
def test_arguments_are_checked(tile, overlap, full, match):
    with pytest.raises(InputError, match=match):
        Tiling(tile, overlap, full)


@pytest.mark.parametrize(
    ("text", "expected"), [("640", 640), ("640x480", (480, 640)), ("auto", "auto"), (None, None), ("99999", 99999)]
)
def test_a_text_states_a_size(text, expected):
    assert parse_tile(text) == expected


@pytest.mark.parametrize("text", ["", "640x", "1e3", "-640", "123456", "٦٤٠", "all"])
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match=r"^tile must be a side in pixels, WIDTHxHEIGHT or auto, got "):
        parse_tile(text)

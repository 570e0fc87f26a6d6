"""Tiles cover a frame, are of one size, and overlap as much as was asked."""

import math
import re
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskjet.errors import InputError
from maskjet.tiling.layout import MOST, MOST_AUTO, Tiling, cut_tiles, parse_tile

SIDES = st.integers(1, 3000)
TILES = st.one_of(st.just("auto"), st.integers(32, 4000), st.tuples(st.integers(32, 900), st.integers(32, 900)))


@given(SIDES, SIDES, TILES, st.floats(0, 0.9), st.booleans())
def test_tiles_cover_the_frame_and_overlap_as_asked(height, width, tile, overlap, full):
    size_hw = height, width
    try:
        tiles = cut_tiles(size_hw, tile, overlap, (78, 104), full)
    except InputError as error:
        works = [int(each) for each in re.findall(r"\d+", str(error).split(" or larger")[0])]
        if isinstance(tile, int):
            (tile,) = works
            with pytest.raises(InputError):
                cut_tiles(size_hw, tile - 1, overlap, (78, 104), full)
        else:
            tile = tuple(works)
        tiles = cut_tiles(size_hw, tile, overlap, (78, 104), full)
    cut = tiles[:-1] if full and len(tiles) > 1 else tiles
    assert tiles == cut or tiles[-1] == (0, 0, *size_hw)
    assert len(cut) <= (MOST_AUTO if tile == "auto" else MOST)
    sides, offsets = cut[0][2:], [sorted({each[axis] for each in cut}) for axis in range(2)]
    assert cut == [(*place, *sides) for place in product(*offsets)]
    for side, length, starts in zip(size_hw, sides, offsets, strict=True):
        steps = [after - before for before, after in pairwise(starts)]
        assert (starts[0], starts[-1] + length) == (0, side)
        assert all(step > 0 and length - step >= overlap * length for step in steps)
        assert max(steps, default=0) - min(steps, default=0) <= 2
        assert side % 2 or not any(number % 2 for number in (*starts, length))


@pytest.mark.parametrize(
    ("size_hw", "tile", "expected"),
    [
        ((1, 1), 640, [(0, 0, 1, 1)]),
        ((100, 641), 640, [(0, 0, 100, 640), (0, 1, 100, 640), (0, 0, 100, 641)]),
        ((64, 100), (64, 33), [(0, left, 64, 34) for left in (0, 22, 44, 66)] + [(0, 0, 64, 100)]),
        ((312, 200), "auto", [(0, 0, 312, 200)]),
    ],
)
def test_tiles_of_frames_hardly_larger_than_one(size_hw, tile, expected):
    assert cut_tiles(size_hw, tile, 0.2, (312, 312), True) == expected


def test_huge_frames_are_refused_or_cut_without_counting_to_a_billion():
    size_hw = 10**9, 2 * 10**9
    assert 32 < len(cut_tiles(size_hw, "auto", 0.2, (312, 312), True)) <= MOST_AUTO + 1
    for tile in (32, (32, 640)):
        with pytest.raises(InputError, match=r"^tile must be .* or larger, or 'auto', .* at most 256 tiles, got .*"):
            cut_tiles(size_hw, tile, 0.2, (312, 312), True)


def test_arguments_are_checked():
    wrong = [((tile,), "tile") for tile in (31, True, "640", (640,), (640, 2**31), np.full(2, 640))]
    wrong += [((640, overlap), "overlap") for overlap in (0.95, -0.1, math.nan, "0.5", True)]
    for arguments, name in (*wrong, ((None, 0.3), "tile"), ((None, 0.2, False), "tile"), ((640, 0.2, 1), "full")):
        with pytest.raises(InputError) as caught:
            Tiling(*arguments)
        assert caught.value.argument == name


def test_a_text_states_a_size():
    texts = {"640": 640, "640x480": (480, 640), "auto": "auto", None: None, "99999": 99999}
    assert {text: parse_tile(text) for text in texts} == texts
    for text in ("", "640x", "1e3", "-640", "123456", "٦٤٠", "all"):
        with pytest.raises(InputError, match=r"^tile must be a side in pixels, WIDTHxHEIGHT or auto, got "):
            parse_tile(text)

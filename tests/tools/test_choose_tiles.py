"""Which products the tiles are chosen for; timing them needs a GPU."""

import json
import math

from maskjet.ops.linear.tiles import TABLE, Tile, choose_tile
from tools.choose_tiles import BULK_ROWS, BULK_STEP, candidates, find_products


def test_all_products_of_a_network_are_found_and_have_tiles_to_try():
    timed = json.loads(TABLE.read_text())
    products = find_products(["rf-detr-seg-nano"], [1, 16])
    for rows in (677, 16 * 677):
        for inputs, outputs in ((384, 1152), (384, 384), (384, 1536), (1536, 384)):
            assert (rows, inputs, outputs, inputs, False) in products
    assert (676, 9 * 128, 128, 128, True) in products
    assert len(products) > 40
    for rows, width, outputs, inputs, is_whole in products:
        key = (rows, width, outputs, inputs, is_whole)
        plain = {*candidates(key, is_plain=True)} - {*candidates(key, is_plain=False)}
        assert all(tile.programs for tile in plain)
        assert bool(plain) == (rows >= BULK_ROWS and width % BULK_STEP == 0 and outputs % 128 == 0)
        tried = [*candidates(key, is_plain=True)]
        assert len({*tried}) == len(tried) >= 3
        for tile in tried:
            assert inputs % tile.step == outputs % tile.columns == (width // tile.step) % tile.splits == 0
        found = choose_tile(rows, width, outputs, inputs=inputs, is_whole=is_whole)
        like = [(key[0], Tile(*tile)) for key, tile in timed if key[1:] == [width, outputs, inputs, is_whole]]
        nearest = min(like, key=lambda other: abs(math.log(other[0] / rows)), default=(0, tried[0]))
        assert found == nearest[1]

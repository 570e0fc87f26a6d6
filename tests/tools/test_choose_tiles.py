"""Which products the tiles are chosen for; timing them needs a GPU."""

import torch

from benchmarks.planted import TINY
from maskjet.ops.linear import tiles
from maskjet.ops.linear.tiles import Tile, choose_tile
from tools import choose_tiles
from tools.choose_tiles import BULK_ROWS, BULK_STEP, candidates, find_products


def test_all_products_of_a_network_are_found_and_have_tiles_to_try():
    products, launches = find_products(["rf-detr-seg-nano"], [1, 16])
    assert launches.keys() == products.keys()
    assert launches[677, 384, 1536, 384, False] == launches[16 * 677, 384, 1536, 384, False] == 12
    assert (16 * 677, 384, 1152, 384, False) in products
    assert (676, 9 * 128, 128, 128, True) in products
    for rows, width, outputs, inputs, is_whole in products:
        key = (rows, width, outputs, inputs, is_whole)
        plain = {*candidates(key, is_plain=True)} - {*candidates(key, is_plain=False)}
        assert all(tile.programs for tile in plain)
        assert bool(plain) == (rows >= BULK_ROWS and width % BULK_STEP == 0 and outputs % 128 == 0)
        tried = [*candidates(key, is_plain=True)]
        assert len({*tried}) == len(tried) >= 3
        for tile in tried:
            assert inputs % tile.step == outputs % tile.columns == (width // tile.step) % tile.splits == 0


def test_within_a_pass_the_tables_tile_stays_unless_another_is_faster(monkeypatch):
    slow, fast, even = Tile(16, 16, 16, 4, 2), Tile(32, 16, 16, 4, 2), Tile(64, 16, 16, 4, 2)
    gains, gains_not = (48, 144), (192, 48)  # width and outputs

    class FakePass:
        def __init__(self, weights, batch):
            assert (weights.spec, batch) == (TINY, 2)
            self._us = 0
            for key, count in find_products(["tiny"], [2])[1].items():
                us = {slow: 10, fast: 8, even: 9.999}.get(choose_tiles.tile_of(key), 10)
                self._us += count * us

        def time(self):
            return self._us

    def rank(key, _example, _on_wrong):
        best = {gains: fast, gains_not: even}.get(key[1:3])
        return {best: 8.0} if best else {slow: 0.0}

    monkeypatch.setattr(choose_tiles, "SPECS", {"tiny": TINY})
    monkeypatch.setattr(choose_tiles, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(choose_tiles, "Pass", FakePass)
    monkeypatch.setattr(choose_tiles, "rank", rank)
    table = {key[1:]: {key[0]: slow} for key in find_products(["tiny"], [2])[0]}
    monkeypatch.setattr(tiles, "_timed", lambda: table)
    choose_tile.cache_clear()
    chosen = {}
    try:
        choose_tiles.choose_within("tiny", 2, lambda key, tile, _: chosen.setdefault(key, tile), print)
    finally:
        choose_tile.cache_clear()
    assert {key[1:3]: tile for key, tile in chosen.items()} == {gains: fast, gains_not: slow}

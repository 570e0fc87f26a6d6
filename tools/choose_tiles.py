"""Choose the shapes of linear's launches for RF-DETR's sizes on this GPU, by timing those that look best.

    python -m tools.choose_tiles --batch 1 --batch 4 --batch 8 --batch 16

writes src/maskjet/ops/linear/tiles.json; entries of products that are not timed now stay. Each candidate is launched
ten times in a CUDA graph, with rotated inputs; the median of its replays counts. Those whose results differ from those
of the first are not chosen, and make the program fail in the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.network import capture, time_graph
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import fold
from maskjet.ops.gpu import compiling_ahead
from maskjet.ops.linear import tiles
from maskjet.ops.linear import triton as launching
from maskjet.ops.linear.reference import Norm
from maskjet.spec import SPECS

DEVICE = torch.device("cuda")
WHOLE, SPLIT = 6, 2  # shapes that are tried, without and with shared sums
LAUNCHES, INPUTS = 10, 4
NORMS = ("residual_norm", "norm", "last_norm")
SAME = ("activation", "eps", "gives_maxima", "image_hw")  # arguments that are no tensors
MOST_VALUES = 32 * 128  # per warp: more don't fit into its registers
FEW, MANY = 4, 20  # replays of all candidates, and of the best of them
FINALISTS = 3
BULK_ROWS = 1024  # from here on tiles that are copied in blocks are tried
BULK_STEP = 64
BULK = ((128, 128, 8, 3), (128, 128, 8, 4), (256, 128, 8, 3), (128, 256, 8, 3), (64, 128, 4, 4), (64, 256, 8, 3))
BULK_PROGRAMS = (1, 2, 64)  # per multiprocessor; 64: no program has a second tile


class Recording(Forward):
    """A pass that launches nothing, and remembers its linear layers."""

    def _run(self, op, first, *args, **given):
        if op == "linear":
            weight, _ = args
            self.products[_key(first, weight, given)] = (first.shape, weight.shape, given)


def _key(x, weight, given):
    is_whole = given.get("norm") is not None or given.get("last_norm") is not None
    return (len(given["out"]), weight.shape[1], len(weight), x.shape[1], is_whole)


def find_products(sizes, batches):
    """Linear layers of networks by what `choose_tile` is asked: one example of each."""
    products = {}
    with patch.object(Recording, "products", products, create=True):
        for size in sizes:
            weights = fold_shapes(size)
            for batch in batches:
                Recording(weights, batch)
    return products


def fold_shapes(size):
    """A network's folded weights without their values."""
    with torch.device("meta"):
        weights = fold(RFDETR(SPECS[size]).eval(), torch.float16)
    return dataclasses.replace(weights, is_inside=torch.ones(weights.is_inside.shape, dtype=torch.bool))


def candidates(key, *, is_plain):
    """The tiles that look best, the rule's first; each also with longer steps, other stages and other warps."""
    rows, width, outputs, inputs, is_whole = key
    yield from _candidates(rows, width, outputs, inputs, is_whole)
    if is_plain and rows >= BULK_ROWS and width % BULK_STEP == 0:
        for (height, columns, warps, stages), programs in itertools.product(BULK, BULK_PROGRAMS):
            if outputs % columns == 0:
                yield tiles.Tile(height, columns, BULK_STEP, warps, stages, 1, programs)


def _candidates(rows, width, outputs, inputs, is_whole):
    found = tiles.candidates(rows, width, outputs, tiles.step_of(width, inputs), is_whole=is_whole)
    found = sorted(found, key=lambda tile: tiles.estimate(tile, rows, width, outputs))
    best = [tile for tile in found if tile.splits == 1][:WHOLE] + [tile for tile in found if tile.splits > 1][:SPLIT]
    wanted = found[:1]
    for shape in best:
        variants = []
        for step, programs in itertools.product((shape.step, 2 * shape.step), (1, 2)):  # programs of a multiprocessor
            bytes_of_a_stage = 2 * (shape.rows + shape.columns) * step
            stages = min(4, width // step, tiles.SHARED // programs // bytes_of_a_stage)
            variants.append(shape._replace(step=step, stages=stages))
        wanted += [*variants, variants[0]._replace(warps=12 - shape.warps)]
    for tile in dict.fromkeys(wanted):
        divides = inputs % tile.step == 0 and (width // tile.step) % tile.splits == 0
        if divides and tile.stages >= 2 and tile.rows * tile.columns // tile.warps <= MOST_VALUES:
            yield tile


class Product:
    """A linear layer with inputs of its own."""

    def __init__(self, key, example):
        (count, width, outputs, _, _), (x_shape, _, given) = key, example
        self.x = [torch.randn(x_shape, device=DEVICE).half() for _ in range(INPUTS)]
        self.weight = (torch.randn(outputs, width, device=DEVICE) * width**-0.5).half()
        self.bias = torch.zeros(outputs, device=DEVICE)
        self.given = {name: given[name] for name in SAME if name in given}
        for name in NORMS:
            if given.get(name) is not None:
                self.given[name] = Norm(torch.ones(outputs, device=DEVICE), torch.zeros(outputs, device=DEVICE), 1e-6)
        if given.get("rows") is not None:
            self.given["rows"] = torch.randint(0, len(self.x[0]), (count,), device=DEVICE).int()
        if given.get("residual") is not None:
            self.given["residual"] = torch.randn(count, outputs, device=DEVICE).half()
        for name in ("sums", "residual_sums"):
            if given.get(name) is not None:
                self.given[name] = torch.ones_like(given[name], device=DEVICE)
        self.is_plain = given["out"].dtype == torch.float16 and not {"rows", "image_hw", *NORMS} & self.given.keys()
        self.gives_sums, self.out = given.get("out_sums") is not None, given["out"]
        self.workspace = tiles.Workspace()

    def bind(self, tile):
        """The launch with a tile, as a function of the turn; and its output."""
        parts = len(self.weight) // tile.columns
        columns = parts if self.given.get("gives_maxima") else self.out.shape[1]
        out = torch.empty(len(self.out), columns, dtype=self.out.dtype, device=DEVICE)
        sums = torch.empty(len(out), 2, parts, device=DEVICE) if self.gives_sums else None

        def launch(turn):
            with patch.object(launching, "choose_tile", lambda *_, **__: tile):
                launching.linear(
                    self.x[turn % INPUTS],
                    self.weight,
                    self.bias,
                    out=out,
                    out_sums=sums,
                    workspace=self.workspace,
                    **self.given,
                )

        return launch, out


def choose(key, example, before, on_wrong):
    """The best tile, its time and that of the first, the rule's or `before`; beside that only blocks are tried."""
    product = Product(key, example)
    wanted = [*candidates(key, is_plain=product.is_plain)]
    if before is not None:
        wanted = [before, *(tile for tile in wanted if tile.programs and tile != before)]
    tried = [(tile, *product.bind(tile)) for tile in wanted]
    with compiling_ahead(DEVICE):
        for _, launch, _ in tried:
            launch(0)
    times, graphs, first = {}, {}, None
    for tile, launch, out in tried:
        turns = itertools.count()
        graphs[tile] = capture(lambda launch=launch, turns=turns: launch(next(turns)), LAUNCHES)
        times[tile] = time_graph(graphs[tile], FEW)
        launch(0)
        first = out.clone() if first is None else first
        if out.shape == first.shape:  # parts of maxima are those of the tile
            difference = float((out.float() - first.float()).abs().max())
            if not difference <= 2**-8 * float(first.abs().max()):
                on_wrong(f"{key} {tile}: {difference}")
                del times[tile]
    finalists = {tried[0][0], *heapq.nsmallest(FINALISTS, times, key=times.get)}
    us = {tile: 1000 * time_graph(graphs[tile], MANY) / LAUNCHES for tile in finalists}
    best = min(us.keys() & times.keys(), key=us.get)
    return best, us[best], us[tried[0][0]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", choices=SPECS)
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--rows", type=int, default=1, help="leave out products with fewer")
    parser.add_argument("--blocks", action="store_true", help="try blocks only, beside the tile in the table")
    parser.add_argument("--out", type=Path, default=tiles.TABLE)
    options = parser.parse_args()
    products = find_products(options.size or SPECS, options.batch or [1])
    chosen = {tuple(key): tile for key, tile in json.loads(tiles.TABLE.read_text())}
    wrong = []
    for key, example in products.items():
        if key[0] < options.rows:
            continue
        with torch.inference_mode():
            before = chosen.get(key) if options.blocks else None
            tile, us, first_us = choose(key, example, before and tiles.Tile(*before), wrong.append)
        chosen[key] = list(tile)
        print(*key, "->", *tile, f"{us:.2f} us, the first {first_us:.2f}", flush=True)
        lines = ",\n".join(json.dumps([list(key), tile]) for key, tile in sorted(chosen.items()))
        options.out.write_text(f"[\n{lines}\n]\n")  # each time: a machine may be taken away
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()

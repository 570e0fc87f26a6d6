"""Choose the shapes of linear's launches for RF-DETR's sizes on this GPU, by timing those that look best.

    python -m tools.choose_tiles --batch 1 --batch 4 --batch 8 --batch 16

writes src/maskjet/ops/linear/tiles.json; entries of products that are not timed now stay. Each candidate is launched
ten times in a CUDA graph, with rotated inputs; the median of its replays counts. Those whose results differ from those
of the first are not chosen, and make the program fail in the end.

Among other kernels a tile may be slower than behind itself. With --within the best few of the products that take most
of a pass are tried in the whole pass, in turns, and the table's tile stays unless one is faster there.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import heapq
import itertools
import json
import statistics
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.network import capture, time_graph
from benchmarks.planted import randomise
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import fold
from maskjet.ops.gpu import compiling_ahead
from maskjet.ops.linear import tiles
from maskjet.ops.linear import triton as launching
from maskjet.ops.linear.reference import Norm
from maskjet.spec import SPECS

DEVICE = torch.device("cuda")
WHOLE, SPLIT = 6, 6  # shapes that are tried, without and with shared sums
LAUNCHES, INPUTS = 10, 4
NORMS = ("residual_norm", "norm", "last_norm")
SAME = ("activation", "eps", "gives_maxima", "image_hw")  # arguments that are no tensors
MOST_VALUES = 32 * 128  # per warp: more don't fit into its registers
FEW, MANY = 4, 20  # replays of all candidates, and of the best of them
FINALISTS = 5
ROUNDS = 3  # turns of each of them within a pass
HEAVY = 0.03  # of a pass's time: products that take less are not tried within it
GAIN = 0.995  # of it: what is less faster is noise
BULK_ROWS = 1024  # from here on tiles that are copied in blocks are tried
BULK_STEP = 64
BULK = ((128, 128, 8, 3), (128, 128, 8, 4), (256, 128, 8, 3), (128, 256, 8, 3), (64, 128, 4, 4), (64, 256, 8, 3))
BULK_PROGRAMS = (1, 2, 64)  # per multiprocessor; 64: no program has a second tile


class Recording(Forward):
    """A pass that launches nothing, and remembers its linear layers."""

    def _run(self, op, first, *args, **given):
        if op == "linear":
            weight, _ = args
            key = _key(first, weight, given)
            self.products[key] = (first.shape, weight.shape, given)
            self.launches[key] += 1


def _key(x, weight, given):
    is_whole = given.get("norm") is not None or given.get("last_norm") is not None
    return (len(given["out"]), weight.shape[1], len(weight), x.shape[1], is_whole)


def find_products(sizes, batches):
    """Linear layers of networks by what `choose_tile` is asked: one example of each; and how many launches they are."""
    products, launches = {}, collections.Counter()
    with patch.multiple(Recording, products=products, launches=launches, create=True):
        for size in sizes:
            weights = fold_shapes(size)
            for batch in batches:
                Recording(weights, batch)
    return products, launches


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


def rank(key, example, on_wrong):
    """The best tiles and their times, the fastest first."""
    product = Product(key, example)
    tried = [(tile, *product.bind(tile)) for tile in candidates(key, is_plain=product.is_plain)]
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
    finalists = heapq.nsmallest(FINALISTS, times, key=times.get)
    us = {tile: 1000 * time_graph(graphs[tile], MANY) / LAUNCHES for tile in finalists}
    return dict(sorted(us.items(), key=lambda item: item[1]))


class Pass:
    """A network's whole pass, with the tiles that are in the table when it is made."""

    def __init__(self, weights, batch):
        self._images = torch.randn(INPUTS, batch, 3, *weights.spec.input_hw, device=DEVICE, dtype=torch.float16)
        self._given, self._forward = self._images[0].clone(), Forward(weights, batch)
        self._graph = capture(lambda: self._forward(self._given))
        self._times = []

    def time(self):
        """Microseconds: the median of this and earlier rounds."""
        ms = time_graph(self._graph, MANY, lambda turn: self._given.copy_(self._images[turn % INPUTS]))
        self._times.append(1000 * ms)
        return statistics.median(self._times)


def choose_within(size, batch, on_chosen, on_wrong):
    """Try the best tiles of each product that takes much of a pass within it, those that take most first."""
    network = RFDETR(SPECS[size]).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict())
    weights = fold(network.to(DEVICE), torch.float16)
    products, launches = find_products([size], [batch])
    total = Pass(weights, batch).time()
    ranked = {}
    for key, count in launches.items():
        if count > 1:
            us = rank(key, products[key], on_wrong)
            if count * min(us.values()) >= HEAVY * total:
                ranked[key] = us
    for key, us in sorted(ranked.items(), key=lambda item: -launches[item[0]] * min(item[1].values())):
        before, passes = tile_of(key), {}
        for tile in dict.fromkeys([before, *us]):
            set_tile(key, tile)
            passes[tile] = Pass(weights, batch)
        for _ in range(ROUNDS):
            times = {tile: each.time() for tile, each in passes.items()}
        best = min(times, key=times.get)
        best = best if times[best] < GAIN * times[before] else before
        set_tile(key, best)
        on_chosen(key, best, f"{times[best]:.1f} us of {size} at batch {batch}, before {times[before]:.1f}")


def tile_of(key):
    """What `choose_tile` answers."""
    rows, width, outputs, inputs, is_whole = key
    return tiles.choose_tile(rows, width, outputs, inputs=inputs, is_whole=is_whole)


def set_tile(key, tile):
    """Let `choose_tile` answer so in this process."""
    rows, *product = key
    tiles._timed().setdefault(tuple(product), {})[rows] = tile
    tiles.choose_tile.cache_clear()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", choices=SPECS)
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--rows", type=int, default=1, help="leave out products with fewer")
    parser.add_argument("--within", action="store_true", help="try what takes most within a pass")
    parser.add_argument("--out", type=Path, default=tiles.TABLE)
    options = parser.parse_args()
    sizes, batches = options.size or SPECS, options.batch or [1]
    chosen = {tuple(key): tile for key, tile in json.loads(tiles.TABLE.read_text())}
    wrong = []

    def keep(key, tile, text):
        chosen[key] = list(tile)
        print(*key, "->", *tile, text, flush=True)
        lines = ",\n".join(json.dumps([list(key), tile]) for key, tile in sorted(chosen.items()))
        options.out.write_text(f"[\n{lines}\n]\n")  # each time: a machine may be taken away

    with torch.inference_mode():
        if options.within:
            for batch, size in itertools.product(batches, sizes):
                choose_within(size, batch, keep, wrong.append)
        else:
            products, _ = find_products(sizes, batches)
            for key, example in products.items():
                if key[0] >= options.rows:
                    us = rank(key, example, wrong.append)
                    best = next(iter(us))
                    keep(key, best, f"{us[best]:.2f} us")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()

"""How the kernels' tile shapes were chosen: each kernel with several, GPU time per launch.

    python -m tools.tune_kernels out.json [name of a kernel ...]

Launches are captured in one CUDA graph, each with inputs of its own, and replayed: the time between its ends over the
number of launches, median of 20 replays. Gaps between the kernels of a graph, about 1 µs each, are in it. The first
shape of each list is the one in use; all results are compared with those of that one.
"""

from __future__ import annotations

import importlib
import itertools
import json
import statistics
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.network import capture, time_graph
from benchmarks.workloads import GPU_WORKLOADS, WORKLOADS, projections, to_device
from maskjet.host.machine import describe_machine
from maskjet.ops.attention.triton import Blocks
from maskjet.ops.canvas import stretch
from maskjet.ops.encode_masks import triton as encode
from maskjet.ops.gpu import Launcher, compiling_ahead, table
from maskjet.ops.preprocess import triton as preprocess
from maskjet.ops.select import triton as select
from maskjet.ops.selection import SizeTable, mask_queries
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.ops.network import OPS

GPU_AND_CPU = {op: {**WORKLOADS[op], **GPU_WORKLOADS.get(op, {})} for op in WORKLOADS}
SEQUENCES = ((1, 1940), (4, 485), (32, 485), (8, 1940), (32, 1025), (8, 4100))  # of rf-detr-large and -seg-2xlarge
GPU_AND_CPU["attention"] |= {f"{batch} × {length} tokens": projections(batch, length) for batch, length in SEQUENCES}
DEVICE = torch.device("cuda")
INPUTS = 16
REPLAYS = 20


def launcher(module, name, warps):
    """A launcher like the module's own, but with another number of warps."""
    own = getattr(module, name)
    return Launcher(own._kernel, **{**own._options, "num_warps": warps})


def time_us(calls):
    """GPU time of one of the calls, in a graph of all."""
    graph = capture(lambda: [call() for call in calls])
    return 1000 * time_graph(graph, REPLAYS) / len(calls)


def inputs_of(op, workload):
    """As many different inputs as a graph has launches."""
    build = GPU_AND_CPU[op][workload]
    return [to_device(build(torch.Generator().manual_seed(seed)), DEVICE) for seed in range(INPUTS)]


def tune_preprocess():
    inputs = inputs_of("preprocess", "1080p to 312 × 312")
    outs = [torch.empty(1, 3, 312, 312, device=DEVICE) for _ in inputs]
    fixed = {"region": stretch((312, 312)), "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "order": "rgb"}
    for tile, warps in [
        ((4, 32), 4),
        ((2, 32), 2),
        ((8, 32), 4),
        ((2, 64), 4),
        ((4, 64), 4),
        ((1, 128), 4),
        ((1, 256), 4),
    ]:
        with (
            patch.object(preprocess, "_TILE_HW", tile),
            patch.object(
                preprocess,
                "_launch",
                {"bilinear": Launcher(preprocess.preprocess_kernel, num_warps=warps)},
            ),
        ):
            calls = [
                lambda frame=given["frames"][None], out=out: preprocess.preprocess(
                    frame, out, resample="bilinear", **fixed
                )
                for given, out in zip(inputs, outs, strict=True)
            ]
            yield f"tile {tile}, {warps} warps", time_us(calls), outs[0].clone()


def tune_select():
    inputs = inputs_of("select", "100 queries, 91 classes, 25 found")
    fixed = {
        "thresholds": table((0.5,) * 91, torch.float32, DEVICE),
        "class_map": table(tuple(range(91)), torch.int32, DEVICE),
        "max_detections": 100,
        "num_select": 100,
    }
    for tile, ranked, warps in [
        (2048, 64, 8),
        (1024, 64, 8),
        (2048, 32, 8),
        (2048, 128, 8),
        (2048, 64, 16),
        (4096, 64, 16),
    ]:
        with (
            patch.object(select, "_TILE", tile),
            patch.object(select, "_RANKED", ranked),
            patch.object(select, "_launch", launcher(select, "_launch", warps)),
        ):
            calls = [
                partial(
                    select.select,
                    given["logits"],
                    given["boxes"],
                    SizeTable.of(given["image_sizes"], DEVICE),
                    **fixed,
                )
                for given in inputs
            ]
            yield f"tile {tile}, {ranked} ranked, {warps} warps", time_us(calls), calls[0]().query[0, :25].clone()


def tune_encode(size):
    inputs = inputs_of("encode_masks", f"{size}, 25 masks")
    width = inputs[0]["image_sizes"][0][1]
    queries = [mask_queries(given["query"], 1, 100, DEVICE) for given in inputs]
    for columns, rows, find, tile, write in [
        (16, 16, 4, 1024, 16), (16, 32, 4, 1024, 16), (32, 16, 4, 1024, 16), (16, 8, 2, 1024, 16),
        (16, 16, 2, 1024, 16), (16, 16, 4, 1024, 8), (16, 16, 4, 512, 8), (16, 16, 4, 2048, 16),
    ]:  # fmt: skip
        with (
            patch.object(encode, "_COLUMNS", columns),
            patch.object(encode, "_ROWS", rows),
            patch.object(encode, "_TILE", tile),
            patch.object(encode, "_find_edges", launcher(encode, "_find_edges", find)),
            patch.object(encode, "_write_strings", launcher(encode, "_write_strings", write)),
        ):
            buffers = [encode.Buffers.allocate(1, query.query.shape[1], width, DEVICE) for query in queries]
            calls = [
                lambda given=given, query=query, buffer=buffer: encode.launch(
                    given["mask_logits"], query, SizeTable.of(given["image_sizes"], DEVICE), buffer
                )
                for given, query, buffer in zip(inputs, queries, buffers, strict=True)
            ]
            spent = time_us(calls)
            (cut,) = encode.DeviceStrings(buffers[0]).read(buffers[0].head.cpu().numpy(), 1)
            yield f"{columns} columns × {rows} rows, {find} warps; {tile} counts, {write} warps", spent, cut()


def tune_network(op, workload, choices):
    """A kernel of the network, whose module has the attributes of each choice."""
    module = importlib.import_module(f"maskjet.ops.{op}.triton")
    inputs = inputs_of(op, workload)
    run = partial(OPS[op].public, implementation="triton")
    with compiling_ahead(DEVICE):
        for changes in choices:
            with changed(module, changes):
                run(**inputs[0])
    for changes in choices:
        with changed(module, changes):
            # Sums in another order differ in the last bit; the ops' tests compare them.
            yield ", ".join(map(str, changes.values())), time_us([partial(run, **given) for given in inputs]), 0


@contextmanager
def changed(module, changes):
    with ExitStack() as stack:
        for name, value in changes.items():
            stack.enter_context(patch.object(module, name, value))
        yield


class Always:
    """A choice of blocks that is always the same."""

    def __init__(self, *blocks):
        self.blocks = Blocks(*blocks)

    def __call__(self, *_):
        return self.blocks

    def __str__(self):
        return " ".join(map(str, self.blocks))


def choices(**values):
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


NETWORK = {
    "attention": [
        {"choose_blocks": Always(*blocks)}
        for blocks in (
            *itertools.product((64,), (64, 128), (4,), (2, 3, 4)),
            *itertools.product((128,), (64, 128), (8,), (2, 3)),
            (128, 64, 4, 3),
        )
    ],
    "deformable_attention": choices(_ROWS=(1, 2, 4, 8)),
    "resize_pixels": [
        dict(zip(("_ROWS", "_COLUMNS", "_WARPS"), chosen, strict=True))
        for chosen in ((4, 4, 4), (2, 8, 4), (4, 2, 2), (2, 4, 4), (4, 8, 8), (2, 2, 2))
    ],
    "depthwise_norm": choices(_PAIRS=(2, 4), _ROWS_OF_FEW=(3, 2, 4, 6))
    + choices(_PAIRS=(2, 4), _ROWS_OF_MANY=(39, 20, 13)),
    "mask_logits": choices(_ROWS=(128, 64), _COLUMNS=(128, 64, 256)),
    "rank_tokens": choices(_FEW=((8, 512), (8, 1024), (8, 256), (4, 1024), (4, 512)))
    + choices(_MANY=((16, 256), (16, 128), (32, 128), (32, 256), (8, 256))),
    "refine_boxes": choices(_ROWS_OF_FEW=(1, 2, 4, 8)) + choices(_ROWS_OF_MANY=(4, 1, 2, 8)),
}


def compare_launches():
    """Host time of a launch with twenty arguments, through Triton and through a `Launcher`."""
    import time

    given = inputs_of("encode_masks", "312, 25 masks")[0]
    query = mask_queries(given["query"], 1, 100, DEVICE)
    buffers = encode.Buffers.allocate(1, 25, 312, DEVICE)
    sizes = SizeTable.of(given["image_sizes"], DEVICE)

    class Direct:
        def __init__(self, own):
            self.own = own

        def __call__(self, grid, _types, *args, **constants):
            self.own._kernel[grid](*args, **constants, **self.own._options)

    for name, wrap in (("Launcher", lambda own: own), ("Triton", Direct)):
        with (
            patch.object(encode, "_find_edges", wrap(encode._find_edges)),
            patch.object(encode, "_write_strings", wrap(encode._write_strings)),
        ):
            times = []
            for _ in range(200):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                encode.launch(given["mask_logits"], query, sizes, buffers)
                times.append(1e6 * (time.perf_counter() - begin) / 2)
            yield f"host, per launch, through {name}", statistics.median(times), 0


def main(path, *only):
    tuned = {
        "preprocess 1080p": tune_preprocess(),
        "select 100 × 91": tune_select(),
        **{f"encode_masks {size}, 25 masks": tune_encode(size) for size in ("312", "1080p")},
        **{
            f"{op}, {workload}": tune_network(op, workload, shapes)
            for op, shapes in NETWORK.items()
            for workload in GPU_AND_CPU[op]
        },
        "launch": compare_launches(),
    }
    results = {}
    for name, shapes in tuned.items():
        if only and not name.startswith(only):
            continue
        results[name] = {}
        first = None
        for shape, spent_us, result in shapes:
            first = result if first is None else first
            equal = torch.equal(result, first) if isinstance(result, torch.Tensor) else result == first
            assert equal, f"{name}: {shape} gives another result"
            results[name][shape] = round(spent_us, 2)
            print(f"{name:32}{shape:56}{spent_us:8.2f} µs", flush=True)
    machine = asdict(describe_machine())
    path.write_text(json.dumps({"machine": machine, "gpu_us": results}, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

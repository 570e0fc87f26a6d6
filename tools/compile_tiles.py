"""Compile what tools.choose_tiles and fused passes launch on an H100 or H200, on a machine without one.

    TRITON_CACHE_DIR=/tmp/kernels python -m tools.compile_tiles --batch 1 --batch 8

Time on a GPU is dear, and most of what those tools would take there is the compiler's. The folder serves another
machine at the same path, with the same versions of Python and Triton. Only the binaries are kept in it.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.ops import gpu
from maskjet.spec import SPECS

KEPT = {".json", ".cubin"}


class Driver:
    """As much of Triton's driver as compiling asks for."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0


def as_hopper():
    """Let the kernels' launchers, which must not be imported yet, believe that they run on Hopper."""
    triton.runtime.driver.set_active(Driver())
    gpu.has_dependent_launches = lambda _: True


def compile_share(sizes, batches, share, shares):
    """Compile every so-manieth product's candidates and network's pass."""
    as_hopper()
    from tools import choose_tiles

    choose_tiles.DEVICE = torch.device("meta")
    products, _ = choose_tiles.find_products(sizes, batches)
    for key, example in [*products.items()][share::shares]:
        product = choose_tiles.Product(key, example)
        with gpu.compiling_ahead(choose_tiles.DEVICE):
            for tile in choose_tiles.candidates(key, is_plain=product.is_plain):
                product.bind(tile)[0](0)
    for size in sizes[share::shares]:
        weights = choose_tiles.fold_shapes(size)
        for batch in batches:
            Forward(weights, batch)
    return len(products)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", choices=SPECS)
    parser.add_argument("--batch", action="append", type=int)
    options = parser.parse_args()
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    shares = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(shares, mp_context=get_context("spawn")) as pool:
        given = (options.size or [*SPECS], options.batch or [1])
        found = [pool.submit(compile_share, *given, share, shares) for share in range(shares)]
        print(found[0].result(), "products", *(each.result() for each in found[1:]))
    for path in folder.glob("*/*"):
        if path.suffix not in KEPT:
            path.unlink()


if __name__ == "__main__":
    main()

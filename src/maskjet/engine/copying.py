"""Copying frames on the host: fast, and without taking the cores from whoever decodes the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

_SMALL = 2**18  # bytes of an image; PyTorch takes a thread for each 32 KB
_PARTS = 2  # on an H200's host 1,230 frames/s of 1080p from memory with two, 1,080 with one, 1,160 with four


class Copier:
    """Copies images into rows of a batch.

    PyTorch copies large images with all cores, which is fastest, but OpenMP's threads then spin for a while, and a
    decoder that needs the cores gave a fifth of its frames beside it (H200's host, 720p). Threads that sleep instead
    take 0.5 ms for 1080p, where all cores take 0.1. Small images are PyTorch's in any case: one thread takes three
    times as long where sixteen decoding threads want the interpreter.
    """

    def __init__(self) -> None:
        self._helpers = ThreadPoolExecutor(_PARTS - 1, "maskjet-copy")

    def copy(self, rows: Sequence[torch.Tensor], images: Sequence[torch.Tensor], *, all_cores: bool) -> None:
        """Copy each image to its row.

        Args:
            rows: uint8 [H, W, 3], at least as many as images.
            images: uint8 [H, W, 3], of that size, any strides; those on a GPU are copied on the current stream.
            all_cores: Whether all may be taken, because nothing is being decoded.
        """
        first = images[0]
        if first.is_cuda or all_cores or first.numel() <= _SMALL:
            for row, image in zip(rows, images, strict=False):
                row.copy_(image, non_blocking=True)
            return
        helped = [self._helpers.submit(_copy_part, rows, images, part) for part in range(1, _PARTS)]
        _copy_part(rows, images, 0)
        for each in helped:
            each.result()

    def close(self) -> None:
        """End the threads; may be called twice."""
        self._helpers.shutdown()


def _copy_part(rows: Sequence[torch.Tensor], images: Sequence[torch.Tensor], part: int) -> None:
    """One of the horizontal stripes of every image."""
    for row, image in zip(rows, images, strict=False):
        height = len(row)
        stripe = slice(height * part // _PARTS, height * (part + 1) // _PARTS)
        np.copyto(row[stripe].numpy(), image[stripe].numpy())

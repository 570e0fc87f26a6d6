"""Copy frames into a batch without holding Python's interpreter lock."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from maskjet.jit import compiled

_SMALL_BATCH = 2**19  # bytes: waking a second thread takes as long as copying these

Addresses = NDArray[np.uint64]


class Rows:
    """The destination of a batch of images.

    Args:
        batch: uint8 [B, ...], contiguous; one row per image.
    """

    def __init__(self, batch: torch.Tensor) -> None:
        self.tensors = batch.unbind()
        """One per image."""
        self.shape, self.dtype, self.nbytes = batch.shape[1:], batch.dtype, batch[0].nbytes
        """Shape, type and size of each row."""
        self.addresses: Addresses = np.array([row.data_ptr() for row in self.tensors], dtype=np.uint64)
        """Where each row begins, if it is on the host."""


class Copier:
    """Copies images into rows of a batch.

    PyTorch copies with all cores, which is fastest for large batches. But OpenMP's threads then spin: a decoder beside
    them gave a fifth of its frames (H200's host, 720p), and sixteen sources of 312 × 176 took 630 µs of CPU time per
    frame, against 240 with one copying thread (two cores, 2,250 frames/s). So while frames are being decoded, one
    thread copies, and a second one helps with large batches. Each releases the interpreter lock once per batch, not
    per image, since decoding threads delay getting it back. Small batches are always copied by one thread: even with
    nothing being decoded, all cores took longer for 312 × 176, and 14 ms of CPU time (16 cores).
    """

    def __init__(self) -> None:
        self._halves: SimpleQueue[_SecondHalf | None] = SimpleQueue()
        self._helper = threading.Thread(target=_help, args=(self._halves,), name="maskjet-copy", daemon=True)
        self._starting = threading.Lock()
        self._end = weakref.finalize(self, self._halves.put, None)  # also if nobody calls `close`

    def copy(self, rows: Rows, images: Sequence[torch.Tensor], *, all_cores: bool) -> None:
        """Copy each image to its row.

        Args:
            rows: At least as many as images.
            images: uint8 of the rows' shape, any strides; copied on the current stream if on a GPU.
            all_cores: Whether PyTorch may copy with all cores, because nothing is being decoded.

        Raises:
            ValueError: An image differs from its row in shape or type.
        """
        size = rows.nbytes
        is_small = size * len(images) <= _SMALL_BATCH
        if images[0].is_cuda or (all_cores and not is_small):
            for row, image in zip(rows.tensors, images, strict=False):
                row.copy_(image, non_blocking=True)
            return
        images = [image.contiguous() for image in images]
        for image in images:
            if image.shape != rows.shape or image.dtype != rows.dtype:
                raise ValueError(
                    f"images must be {rows.dtype} {list(rows.shape)}, got {image.dtype} {list(image.shape)}."
                )
        into = rows.addresses[: len(images)]
        origins = np.array([image.data_ptr() for image in images], dtype=np.uint64)
        if is_small:
            _copy_memory(into, origins, size)
            return
        self._start()
        first = size // 2
        second = _SecondHalf(into + np.uint64(first), origins + np.uint64(first), size - first)
        self._halves.put(second)
        _copy_memory(into, origins, first)
        second.finish()

    def _start(self) -> None:
        """Start the helper thread, unless it runs."""
        with self._starting:
            if self._helper.ident is None:
                self._helper.start()

    def close(self) -> None:
        """End the helper thread; may be called twice."""
        self._end()
        if self._helper.ident is not None:
            self._helper.join()


class _SecondHalf:
    """A task: copy the second half of every image, in the thread that takes it first."""

    def __init__(self, into: Addresses, origins: Addresses, size: int) -> None:
        self._arguments = into, origins, size
        self._taken, self._copying = threading.Lock(), threading.Lock()  # an Event costs ten times as much
        self._copying.acquire()

    def copy(self) -> bool:
        """Copy, unless another thread has taken the task; returns whether this one did."""
        if not self._taken.acquire(blocking=False):
            return False
        _copy_memory(*self._arguments)
        self._copying.release()
        return True

    def finish(self) -> None:
        """Copy, or wait for the thread that has taken the task."""
        if not self.copy():
            self._copying.acquire()


def _help(halves: SimpleQueue[_SecondHalf | None]) -> None:
    while (half := halves.get()) is not None:
        half.copy()


@intrinsic
def _memcpy(_typing: Any, _into: Any, _origin: Any, _size: Any) -> Any:
    """C's memcpy between two addresses, callable from numba-compiled functions."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        into, origin, size = arguments
        to, start = (builder.inttoptr(address, cgutils.voidptr_t) for address in (into, origin))
        cgutils.raw_memcpy(builder, to, start, size, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), generate


@compiled("void(uint64[::1], uint64[::1], int64)")
def _copy_memory(into: Addresses, origins: Addresses, size: int) -> None:
    """Copy `size` bytes from each origin; the memory must not be freed meanwhile."""
    for i in range(len(into)):
        _memcpy(into[i], origins[i], size)  # type: ignore[call-arg] # the first parameter is numba's own

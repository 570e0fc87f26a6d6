"""Copy frames into one buffer without holding Python's global interpreter lock."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet.jit import compiled

_SMALL_BATCH = 2**19  # bytes; below this, waking a second thread costs as much as it saves

Addresses = NDArray[np.uint64]


class Copier:
    """Copies the images of a batch into one buffer.

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

    def copy(
        self, memory: torch.Tensor, offsets: Sequence[int], images: Sequence[torch.Tensor], *, all_cores: bool
    ) -> None:
        """Copy each image to its place.

        Args:
            memory: uint8 [bytes], on the host.
            offsets: The byte of `memory` where each image begins; it must hold them all.
            images: uint8, on the host, of any shapes and strides.
            all_cores: Whether PyTorch may copy with all cores, because nothing is being decoded.

        Raises:
            ValueError: An image does not fit.
        """
        sizes = [image.nbytes for image in images]
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        if min(offsets) < 0 or max(ends) > len(memory):
            raise ValueError(f"images must end within {len(memory)} bytes, got offsets {offsets} and sizes {sizes}.")
        is_small = sum(sizes) <= _SMALL_BATCH
        if all_cores and not is_small:
            for offset, end, image in zip(offsets, ends, images, strict=True):
                memory[offset:end].view(image.shape).copy_(image)
            return
        images = [image.contiguous() for image in images]
        begin = memory.data_ptr()
        if is_small and all_cores:  # no contention for the interpreter lock: skip importing numba, 1 s
            for offset, size, image in zip(offsets, sizes, images, strict=True):
                ctypes.memmove(begin + offset, image.data_ptr(), size)
            return
        into = np.array([begin + offset for offset in offsets], dtype=np.uint64)
        origins = np.array([image.data_ptr() for image in images], dtype=np.uint64)
        lengths = np.array(sizes, dtype=np.int64)
        if is_small:
            _copy_memory(into, origins, lengths)
            return
        self._start()
        firsts = lengths // 2
        skipped = firsts.astype(np.uint64)
        second = _SecondHalf(into + skipped, origins + skipped, lengths - firsts)
        self._halves.put(second)
        _copy_memory(into, origins, firsts)
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
    """A task that either thread may claim: copy the second half of every image."""

    def __init__(self, into: Addresses, origins: Addresses, lengths: NDArray[np.int64]) -> None:
        self._arguments = into, origins, lengths
        self._taken, self._copying = threading.Lock(), threading.Lock()  # locks; an Event costs ten times as much
        self._copying.acquire()

    def copy(self) -> bool:
        """Copy unless another thread has claimed the task; returns whether this thread copied."""
        if not self._taken.acquire(blocking=False):
            return False
        _copy_memory(*self._arguments)
        self._copying.release()
        return True

    def finish(self) -> None:
        """Copy, or wait for the thread that has claimed the task."""
        if not self.copy():
            self._copying.acquire()


def _help(halves: SimpleQueue[_SecondHalf | None]) -> None:
    while (half := halves.get()) is not None:
        half.copy()


class _Memcpy:
    """C's memcpy between two addresses, for compiled functions."""

    @property
    def _numba_type_(self) -> Any:
        import numba

        return numba.types.ExternalFunction("memcpy", numba.uint64(numba.uint64, numba.uint64, numba.int64))


_memcpy: Any = _Memcpy()


@compiled("void(uint64[::1], uint64[::1], int64[::1])")
def _copy_memory(into: Addresses, origins: Addresses, lengths: NDArray[np.int64]) -> None:
    """Copy `lengths[i]` bytes from `origins[i]` to `into[i]`; the memory must not be freed meanwhile."""
    for i in range(len(into)):
        _memcpy(into[i], origins[i], lengths[i])

"""Copy decoded pictures within GPU memory by CUDA driver calls that release the interpreter lock.

32 decoding threads wait for that lock, and the driver has locks of its own: a thread that waits for one of those while
it holds the interpreter's stops all others. Through PyTorch (DLPack, two copies, an event) a frame takes the
interpreter's lock five times; this compiled call takes it once, at its end.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import av
import torch

_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_EVENT_FLAGS = 1 | 2  # CU_EVENT_BLOCKING_SYNC (waiting threads sleep), CU_EVENT_DISABLE_TIMING
_DEFAULT_STREAM = 0  # FFmpeg writes surfaces on this stream
_compiling = threading.Lock()  # decoders may be opened concurrently


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D: rows of bytes from one place to another."""

    _place = (
        ("{}_x", ctypes.c_size_t),
        ("{}_y", ctypes.c_size_t),
        ("{}_type", ctypes.c_int),
        ("{}_host", ctypes.c_void_p),
        ("{}", ctypes.c_uint64),
        ("{}_array", ctypes.c_void_p),
        ("{}_pitch", ctypes.c_size_t),
    )
    _fields_ = (
        *((name.format("source"), kind) for name, kind in _place),
        *((name.format("target"), kind) for name, kind in _place),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class SurfaceCopier:
    """Copies pictures out of a decoder's few surfaces. Construct it while the GPU's context is current.

    Not thread-safe. Its methods raise RuntimeError if the driver failed.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        context, event = ctypes.c_uint64(), ctypes.c_uint64()
        _check(_driver().cuCtxGetCurrent(ctypes.byref(context)))
        _check(_driver().cuEventCreate(ctypes.byref(event), _EVENT_FLAGS))
        weakref.finalize(self, _driver().cuEventDestroy_v2, event)
        self._context, self._event = context.value, event.value
        self._luma, self._chroma = (_Copy(source_type=_DEVICE, target_type=_DEVICE) for _ in range(2))
        with _compiling:
            self._copy_both = _compiled_copies()

    def copy(self, surface: av.VideoFrame) -> torch.Tensor:
        """Copy a picture; the copy is finished on return, so the surface may be given back and any stream may read it.

        Takes the decoder's picture: NV12 in GPU memory, of even size. Gives uint8 [H × 3 / 2, W] on the GPU: the rows
        of luma, then those of chroma, U and V in turn.
        """
        height, width = surface.height, surface.width
        memory = torch.empty((height // 2 * 3, width), dtype=torch.uint8, device=self._device)
        stream = torch.cuda.current_stream(self._device).cuda_stream  # this stream owns the new memory
        copies, target = (self._luma, self._chroma), memory.data_ptr()
        for copy, plane, rows in zip(copies, surface.planes, (height, height // 2), strict=True):
            copy.source, copy.source_pitch = plane.buffer_ptr, plane.line_size
            copy.target, copy.target_pitch = target, width
            copy.width, copy.height = width, rows
            target += width * rows
        _check(self._copy_both(self._context, self._event, stream, *map(ctypes.addressof, copies)))
        return memory


@cache
def _driver() -> Any:
    """CUDA driver functions; handles and addresses are integers, as numba takes no pointers."""
    driver = ctypes.CDLL("libcuda.so.1")
    word = ctypes.c_uint64
    for name, types in {
        "cuCtxPushCurrent_v2": (word,),
        "cuCtxPopCurrent_v2": (word,),
        "cuEventDestroy_v2": (word,),
        "cuEventRecord": (word, word),
        "cuEventSynchronize": (word,),
        "cuStreamWaitEvent": (word, word, ctypes.c_uint),
        "cuMemcpy2DAsync_v2": (word, word),
    }.items():
        getattr(driver, name).argtypes = types
    return driver


@cache
def _compiled_copies() -> Callable[..., int]:
    """One compiled function for both planes of a picture; takes 0.5 s, and numba can't cache it on disk."""
    import numba

    driver = _driver()
    push, pop, copy_rows = driver.cuCtxPushCurrent_v2, driver.cuCtxPopCurrent_v2, driver.cuMemcpy2DAsync_v2
    record, let_wait, synchronize = driver.cuEventRecord, driver.cuStreamWaitEvent, driver.cuEventSynchronize

    @numba.njit(numba.int32(*[numba.uint64] * 5), nogil=True)
    def copy_both(context: int, event: int, stream: int, luma: int, chroma: int) -> Any:
        error = push(context)
        if error != 0:
            return error
        if stream != _DEFAULT_STREAM:
            error = record(event, _DEFAULT_STREAM) or let_wait(stream, event, 0)
        error = error or copy_rows(luma, stream) or copy_rows(chroma, stream) or record(event, stream)
        pop(0)
        return error or synchronize(event)

    return copy_both


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"the CUDA driver failed with error {error}")

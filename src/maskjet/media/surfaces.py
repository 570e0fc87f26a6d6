"""Copies of what decoders leave in GPU memory, made by few calls of the CUDA driver.

With 32 decoding threads the interpreter's lock is what they wait for. Through PyTorch (DLPack, two copies, an event) a
frame takes it five times; here once.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any

import av
import torch

_DEVICE = 2  # CU_MEMORYTYPE_DEVICE
_EVENT_FLAGS = 1 | 2  # CU_EVENT_BLOCKING_SYNC: who waits sleeps; CU_EVENT_DISABLE_TIMING
_DEFAULT_STREAM = None  # on which FFmpeg fills surfaces


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D: rows of bytes from one place to another."""

    _fields_ = (
        ("source_x", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_type", ctypes.c_int),
        ("source_host", ctypes.c_void_p),
        ("source", ctypes.c_uint64),
        ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("target_x", ctypes.c_size_t),
        ("target_y", ctypes.c_size_t),
        ("target_type", ctypes.c_int),
        ("target_host", ctypes.c_void_p),
        ("target", ctypes.c_uint64),
        ("target_array", ctypes.c_void_p),
        ("target_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


class SurfaceCopier:
    """Copies pictures out of one decoder's memory, of which there is little. Made while the GPU's context is current.

    Args:
        device: The GPU, "cuda:N".

    Raises:
        RuntimeError: The driver failed.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._context, self._event = ctypes.c_void_p(), ctypes.c_void_p()
        _check(_driver().cuCtxGetCurrent(ctypes.byref(self._context)))
        _check(_driver().cuEventCreate(ctypes.byref(self._event), _EVENT_FLAGS))
        weakref.finalize(self, _driver().cuEventDestroy_v2, self._event)

    def copy(self, surface: av.VideoFrame) -> torch.Tensor:
        """Copy a picture; the copy is finished on return, so the surface may be given back and any stream may read it.

        Args:
            surface: What the decoder gave: NV12 in GPU memory, of even size.

        Returns:
            uint8 [H × 3 / 2, W] on the GPU: the rows of luma, then those of chroma, U and V in turn.

        Raises:
            RuntimeError: The driver failed.
        """
        height, width = surface.height, surface.width
        memory = torch.empty((height // 2 * 3, width), dtype=torch.uint8, device=self._device)
        stream = torch.cuda.current_stream(self._device).cuda_stream or _DEFAULT_STREAM  # which owns the memory
        luma, chroma = surface.planes
        driver, address = _driver(), memory.data_ptr()
        _check(driver.cuCtxPushCurrent_v2(self._context))
        try:
            if stream is not _DEFAULT_STREAM:
                _check(driver.cuEventRecord(self._event, _DEFAULT_STREAM))
                _check(driver.cuStreamWaitEvent(stream, self._event, 0))
            for plane, target, rows in ((luma, address, height), (chroma, address + height * width, height // 2)):
                copy = _Copy(
                    source_type=_DEVICE,
                    source=plane.buffer_ptr,
                    source_pitch=plane.line_size,
                    target_type=_DEVICE,
                    target=target,
                    target_pitch=width,
                    width=width,
                    height=rows,
                )
                _check(driver.cuMemcpy2DAsync_v2(ctypes.byref(copy), stream))
            _check(driver.cuEventRecord(self._event, stream))
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        _check(_waiting_driver().cuEventSynchronize(self._event))
        return memory


@cache
def _driver() -> Any:
    """CUDA's driver; calls keep the interpreter's lock, as they only hand work over."""
    return _declared(ctypes.PyDLL("libcuda.so.1"))


@cache
def _waiting_driver() -> Any:
    """CUDA's driver; calls let go of the interpreter's lock."""
    return _declared(ctypes.CDLL("libcuda.so.1"))


def _declared(driver: Any) -> Any:
    pointer = ctypes.c_void_p
    for name, types in {
        "cuCtxGetCurrent": (pointer,),
        "cuCtxPushCurrent_v2": (pointer,),
        "cuCtxPopCurrent_v2": (pointer,),
        "cuEventCreate": (pointer, ctypes.c_uint),
        "cuEventDestroy_v2": (pointer,),
        "cuEventRecord": (pointer, pointer),
        "cuEventSynchronize": (pointer,),
        "cuStreamWaitEvent": (pointer, pointer, ctypes.c_uint),
        "cuMemcpy2DAsync_v2": (pointer, pointer),
    }.items():
        getattr(driver, name).argtypes = types
    return driver


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"the CUDA driver failed with error {error}")

"""Decode JPEGs into GPU memory by the GPU's hardware decoder, through NVIDIA's nvJPEG."""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from maskjet.errors import UnsupportedError, first_line
from maskjet.host.extras import missing
from maskjet.ops.gpu import capturing, on_device
from maskjet.sources.plain_jpegs import PlainJPEG

_CUDA = 13  # major version of the library and of PyTorch's runtime
_LIBRARY = f"cu{_CUDA}/lib/libnvjpeg.so.{_CUDA}"  # relative to the namespace package `nvidia`
_PURPOSE = "Decoding JPEGs on a GPU"
_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE
_INTERPOLATED = 1 << 5  # NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION, as libjpeg-turbo upsamples chroma
_RGB = 5  # NVJPEG_OUTPUT_RGBI: interleaved
_MOST_TOGETHER = 32  # images per call
_STATES = 2  # batches in flight: one is decoded while the next is submitted
_MIRRORED = {2: (1,), 3: (0, 1), 4: (0,), 6: (1,), 7: (0, 1), 8: (0,)}  # axes to flip, by EXIF orientation
_making = threading.Lock()


class _Image(ctypes.Structure):
    """nvjpegImage_t: where an image's planes begin, and the bytes of their rows."""

    _fields_ = (("channel", ctypes.c_void_p * 4), ("pitch", ctypes.c_size_t * 4))


def jpeg_decoder(device: str) -> JPEGDecoder:
    """The process's JPEG decoder of a GPU, "cuda:N", created on first use.

    Raises:
        UnsupportedError: The GPU can't be used or has no decoder of JPEGs, or PyTorch is not for CUDA 13.
        MissingDependencyError: nvJPEG is not installed.
    """
    with _making:
        return _make_decoder(device)


class JPEGDecoder:
    """Hardware JPEG decoder of an NVIDIA GPU; one per process and GPU (`jpeg_decoder`), thread-safe."""

    def __init__(self, device: str) -> None:
        library, self._device = _load_library(), torch.device(device)
        handle, engines, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        self._free: queue.SimpleQueue[_State] = queue.SimpleQueue()
        with ExitStack() as stack:
            try:
                stack.enter_context(on_device(self._device))
                torch.zeros(1, dtype=torch.uint8, device=self._device)  # creates the context in a new thread
            except (RuntimeError, AssertionError) as error:  # AssertionError: no CUDA
                raise UnsupportedError(f"device={device!r} can't be used: {first_line(error)}") from error
            stack.enter_context(capturing)
            undo = stack.enter_context(ExitStack())
            status = library.nvjpegCreateEx(_HARDWARE, None, None, _INTERPOLATED, ctypes.byref(handle))
            if status == 0:
                undo.callback(library.nvjpegDestroy, handle)
                status = library.nvjpegGetHardwareDecoderInfo(handle, ctypes.byref(engines), ctypes.byref(cores))
            if status or not engines.value:
                raise UnsupportedError(
                    f"device={device!r} must have a decoder of JPEGs, as A100, H100, L4 and Orin do, got none "
                    f"(nvJPEG's status {status}): use decoder='cpu'."
                )
            submitting = threading.Lock()
            for _ in range(_STATES):
                state = _State(library, handle, submitting, self._device)
                undo.callback(state.close)
                self._free.put(state)
            undo.pop_all()

    def decode(self, images: Sequence[PlainJPEG]) -> list[torch.Tensor | None]:
        """Decode JPEGs, which differ from libjpeg-turbo's by at most 1; up to 32 together.

        Images are any number, of any sizes, each bounded before by `limits.image_pixels`.

        Returns:
            uint8 [H, W, 3] RGB on the GPU, upright; None for each that the GPU refused. They are finished, so any
            stream may read them; their memory belongs to the stream that is current.
        """
        results: list[torch.Tensor | None] = []
        for start in range(0, len(images), _MOST_TOGETHER):
            batch = images[start : start + _MOST_TOGETHER]
            state = self._free.get()
            try:
                decoded = state.decode(batch)
                if decoded is None:  # one image may have caused it
                    alone = [state.decode([image]) for image in batch] if len(batch) > 1 else [None]
                    results += [found[0] if found else None for found in alone]
                else:
                    results += decoded
            finally:
                self._free.put(state)
        return results


_make_decoder = cache(JPEGDecoder)


class _State:
    """nvJPEG's state of one batch, with a stream of its own. Made while no graph is captured; not thread-safe.

    `submitting` is held while work is submitted to the handle. The device is current.
    """

    def __init__(self, library: Any, handle: ctypes.c_void_p, submitting: threading.Lock, device: torch.device) -> None:
        self._library, self._handle, self._submitting, self._device = library, handle, submitting, device
        self._state, self._batch = ctypes.c_void_p(), 0
        self._room = (0, 0, 0)
        cuda: Any = torch.cuda  # PyTorch has no types for these
        self._stream, self._done = cuda.Stream(device), cuda.Event(blocking=True)  # blocking: waiting threads sleep
        status = library.nvjpegJpegStateCreate(handle, ctypes.byref(self._state))
        if status:
            raise UnsupportedError(f"nvJPEG can't be used, it failed with status {status}: use decoder='cpu'.")

    def close(self) -> None:
        """Free nvJPEG's state."""
        self._library.nvjpegJpegStateDestroy(self._state)

    def decode(self, images: Sequence[PlainJPEG]) -> list[torch.Tensor] | None:
        """Decode a batch as `JPEGDecoder` does, and wait for it; None if nvJPEG refused it."""
        with on_device(self._device):
            stored = [self._empty(*image.size_hw) for image in images]
            upright = [
                pixels if image.orientation == 1 else self._empty(*image.size_hw[:: -1 if image.orientation > 4 else 1])
                for image, pixels in zip(images, stored, strict=True)
            ]
            # The current stream may still write this memory, and nvJPEG's internal streams do not wait for it.
            owner = torch.cuda.current_stream(self._device)
            if not owner.query():
                self._done.record(owner)
                self._done.synchronize()
            try:
                with self._stream:
                    status = self._submit(images, stored)
                    for image, pixels, turned in zip(images, stored, upright, strict=True):
                        if turned is not pixels and status == 0:
                            turned.copy_(_turn(pixels, image.orientation))
            finally:  # also after a failure: part of the batch may still be written
                self._done.record(self._stream)
                self._done.synchronize()
        return upright if status == 0 else None

    def _empty(self, height: int, width: int) -> torch.Tensor:
        return torch.empty((height, width, 3), dtype=torch.uint8, device=self._device)

    def _submit(self, images: Sequence[PlainJPEG], targets: Sequence[torch.Tensor]) -> int:
        """Submit a batch to nvJPEG on the state's stream; returns nvJPEG's status."""
        count = len(images)
        data = (ctypes.c_char_p * count)(*(image.data for image in images))
        lengths = (ctypes.c_size_t * count)(*(len(image.data) for image in images))
        places = (_Image * count)()
        for place, target in zip(places, targets, strict=True):
            place.channel[0], place.pitch[0] = target.data_ptr(), target.stride(0)
        needed = (count, max(lengths), max(target.numel() for target in targets))
        room = tuple(map(max, self._room, needed))
        # Allocating more memory may synchronise the device, which would abort a graph capture.
        with capturing if room != self._room else nullcontext(), self._submitting:
            self._room = room
            status, handle, state = 0, self._handle, self._state
            if count != self._batch:
                status = self._library.nvjpegDecodeBatchedInitialize(handle, state, count, 1, _RGB)
            if status == 0:
                stream = self._stream.cuda_stream
                status = self._library.nvjpegDecodeBatched(handle, state, data, lengths, places, stream)
            self._batch = count if status == 0 else 0
        return int(status)


def _turn(pixels: torch.Tensor, orientation: int) -> torch.Tensor:
    """Rotate or mirror an image upright, as `pillow_images.turn` on the CPU."""
    turned = pixels.transpose(0, 1) if orientation > 4 else pixels
    return turned.flip(_MIRRORED[orientation]) if orientation in _MIRRORED else turned


@cache
def _load_library() -> Any:
    """Load nvJPEG from the package nvidia-nvjpeg; its calls release the interpreter lock."""
    if torch.version.cuda is None or torch.version.cuda.partition(".")[0] != str(_CUDA):
        raise UnsupportedError(
            f"PyTorch must be built for CUDA {_CUDA} to decode JPEGs on a GPU, got {torch.version.cuda}: use "
            "decoder='cpu'."
        )
    folders = import_module("nvidia").__path__ if find_spec("nvidia") else ()
    paths = [str(path) for folder in folders if (path := Path(folder) / _LIBRARY).exists()]
    if not paths:
        raise missing("nvidia-nvjpeg", extra="gpu", purpose=_PURPOSE)
    try:
        library: Any = ctypes.CDLL(paths[0])
    except OSError as error:
        raise missing("nvidia-nvjpeg", extra="gpu", purpose=_PURPOSE, why=first_line(error)) from error
    word, number, pointer = ctypes.c_void_p, ctypes.c_int, ctypes.POINTER
    for name, types in {
        "nvjpegCreateEx": (number, word, word, ctypes.c_uint, pointer(word)),
        "nvjpegDestroy": (word,),
        "nvjpegGetHardwareDecoderInfo": (word, pointer(ctypes.c_uint), pointer(ctypes.c_uint)),
        "nvjpegJpegStateCreate": (word, pointer(word)),
        "nvjpegJpegStateDestroy": (word,),
        "nvjpegDecodeBatchedInitialize": (word, word, number, number, number),
        "nvjpegDecodeBatched": (word, word, word, word, word, word),
    }.items():
        getattr(library, name).argtypes = types
    return library

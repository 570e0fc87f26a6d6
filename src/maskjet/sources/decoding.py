"""Where videos and JPEGs are decoded: on the CPU, or on an NVIDIA GPU (NVDEC, nvJPEG), in whose memory they stay."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import av
from av.codec.hwaccel import HWAccel

from maskjet.errors import InputError, UnsupportedError, first_line
from maskjet.sources.orientation import read_orientation

if TYPE_CHECKING:
    from maskjet.config import EngineConfig
    from maskjet.sources.nvjpeg import JPEGDecoder

_CODECS = ("h264", "hevc", "vp8", "vp9")  # FFmpeg decoders with NVDEC support; decoding of these codecs is bit-exact
_FORMATS = ("yuv420p", "yuvj420p", "cuda")  # "cuda" is the format once a GPU decodes
_LEAST_PIXELS = 1280 * 720  # 16 cores decode smaller videos as fast (benchmarks/reach.md)
_LEAST_LIVE = 3  # live streams: their sizes are unknown before decoding


@dataclass(frozen=True)
class Decoding:
    """Where the videos and images of a stream are decoded."""

    device: str = "cpu"
    """"cpu", or "cuda:N" for a GPU."""
    is_automatic: bool = False
    """Whether the GPU decodes only videos that it decodes faster than the CPU."""
    streams: int = 1
    """Number of videos decoded in parallel."""
    takes_jpegs: bool = True
    """Whether the GPU decodes JPEGs, too."""

    def jpeg_decoder(self) -> JPEGDecoder:
        """The GPU's decoder of JPEGs; raises UnsupportedError or MissingDependencyError if it has none."""
        from maskjet.sources.nvjpeg import jpeg_decoder

        return jpeg_decoder(self.device)

    def is_worth_it(self, width: int | None = None, height: int | None = None) -> bool:
        """Whether the GPU should decode a video of this size in pixels, None if still unknown."""
        if self.device == "cpu" or not self.is_automatic:
            return self.device != "cpu"
        if width is None or height is None:
            return self.streams >= _LEAST_LIVE
        return width * height >= _LEAST_PIXELS

    @contextmanager
    def accelerated(self) -> Iterator[HWAccel]:
        """Make PyTorch's CUDA context current; yields the `hwaccel` argument of `av.open`, which decodes in it.

        FFmpeg could find that context by itself, but refuses it if it was made with other flags than FFmpeg's own.

        Raises:
            UnsupportedError: PyTorch can't use the GPU.
        """
        import torch

        from maskjet.ops.gpu import on_device

        device = torch.device(self.device)
        options: dict[str, object] = {"primary_ctx": "0", "current_ctx": "1"}
        with ExitStack() as stack:
            try:
                stack.enter_context(on_device(device))
                torch.zeros(1, dtype=torch.uint8, device=device)  # creates the context in a new thread
            except (RuntimeError, AssertionError) as error:  # the latter without CUDA
                raise UnsupportedError(f"device={self.device!r} can't be used: {first_line(error)}") from error
            yield HWAccel("cuda", str(device.index), options=options, is_hw_owned=True)

    def alone(self) -> AbstractContextManager[Any]:
        """A context in which decoders may be made and freed: no graph is captured meanwhile."""
        if self.device == "cpu":
            return nullcontext()
        from maskjet.ops.gpu import capturing

        return capturing


ON_CPU = Decoding()
"""Decode on the CPU."""


def choose_decoding(config: EngineConfig, streams: int = 1) -> Decoding:
    """Choose the decoding device for `streams` parallel videos; raises as `EngineConfig.resolve_device`."""
    device = config.resolve_device()
    if config.decoder == "cpu" or device.type == "cpu":
        return ON_CPU
    return Decoding(str(device), config.decoder == "auto", streams)


def choose_for_call(decoder: str, config: EngineConfig) -> Decoding:
    """Choose where a call of `predict` decodes JPEGs: "cpu", or "cuda" for the model's GPU.

    Raises:
        InputError: It is neither.
        UnsupportedError: The model is not on a GPU, or as `Decoding.jpeg_decoder`.
        MissingDependencyError: As there.
    """
    if decoder == "cpu":
        return ON_CPU
    if decoder != "cuda":
        raise InputError(f"decoder must be 'cpu' or 'cuda', got {decoder!r}.")
    device = config.resolve_device()
    if device.type == "cpu":
        raise UnsupportedError("decoder='cuda' needs a model on a GPU; leave it out on a CPU.")
    decoding = Decoding(str(device))
    decoding.jpeg_decoder()
    return decoding


def name_nvjpeg() -> str:
    """Name and version of nvJPEG, on which decoded pixels depend; "cpu" if not installed. Uses no CUDA."""
    try:
        return f"nvJPEG {version('nvidia-nvjpeg')}"
    except PackageNotFoundError:
        return "cpu"


def check_decoder(decoder: str | Decoding) -> Decoding:
    """Parse the argument `decoder`; raises InputError unless it is "cpu", "cuda" or "cuda:N"."""
    if isinstance(decoder, Decoding):
        return decoder
    if not isinstance(decoder, str) or not re.fullmatch(r"cpu|cuda(:\d{1,4})?", decoder):
        raise InputError(f"decoder must be 'cpu', 'cuda' or 'cuda:N', got {decoder!r}.")
    return Decoding("cuda:0" if decoder == "cuda" else decoder)


def why_not_decoded(context: av.VideoCodecContext) -> str | None:
    """Why a GPU can't decode a video bit-identically to the CPU; None if it can."""
    if context.name not in _CODECS:
        return f"the codec is {context.name}, not one of {', '.join(_CODECS)}"
    if context.pix_fmt is not None and context.pix_fmt not in _FORMATS:
        return f"pictures are {context.pix_fmt}, not yuv420p"
    return "the size is odd" if context.width % 2 or context.height % 2 else None


def why_not_kept(picture: av.VideoFrame) -> str | None:
    """Why a decoded picture can't stay in GPU memory as it is; None if it can."""
    if picture.format.name != "cuda" or picture.sw_format is None:
        return "the GPU does not decode this profile, level or size"
    if picture.sw_format.name != "nv12":
        return f"pictures are {picture.sw_format.name}, not nv12"
    return "pictures are rotated or mirrored" if read_orientation(picture) != 1 else None


def download(picture: av.VideoFrame) -> av.VideoFrame:
    """Download a picture from GPU memory, in the format of the CPU decoder: planar, in host memory."""
    assert picture.sw_format is not None
    name = picture.sw_format.name
    host = picture.reformat(format=name)
    # Via yuv420p: converting NV12 to RGB directly, swscale would interpolate chroma, unlike on the CPU.
    return host.reformat(format="yuv420p") if name == "nv12" else host

"""Where videos are decoded: on the CPU, or on an NVIDIA GPU (NVDEC), whose pictures stay in its memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

import av
from av.codec.hwaccel import HWAccel

from maskjet.errors import InputError

_CODECS = {"h264", "hevc", "vp9"}  # FFmpeg's own decoders, which hand their work to NVDEC
_FORMATS = {"yuv420p", "yuvj420p"}
_LEAST_PIXELS = 1280 * 720
_LEAST_STREAMS = 4


@dataclass(frozen=True)
class Decoding:
    """Where the videos of a stream are decoded."""

    device: str = "cpu"
    """"cpu", or "cuda:N" for a GPU."""
    is_automatic: bool = False
    """Whether the GPU decodes only what it decodes faster than the CPU."""
    streams: int = 1
    """Videos that are decoded side by side."""

    def takes(self, codec: str, pixel_format: str | None, width: int, height: int) -> bool:
        """Whether the GPU is to decode such a video.

        Args:
            codec: FFmpeg's name of the codec.
            pixel_format: FFmpeg's name of the pixel format, as the stream states it.
            width: Width in pixels.
            height: Height in pixels.
        """
        if self.device == "cpu" or not self.is_automatic:
            return self.device != "cpu"
        is_large = width * height >= _LEAST_PIXELS
        return self.streams >= _LEAST_STREAMS and is_large and codec in _CODECS and pixel_format in _FORMATS

    @property
    def takes_unseen(self) -> bool:
        """Whether the GPU is to decode a live stream, of which nothing is known before it is opened."""
        return self.device != "cpu" and (not self.is_automatic or self.streams >= _LEAST_STREAMS)

    def accelerate(self) -> HWAccel:
        """What `av.open` takes to decode on the GPU, in the CUDA context that PyTorch uses."""
        return HWAccel("cuda", self.device.removeprefix("cuda:"), is_hw_owned=True)


ON_CPU = Decoding()
"""On the CPU."""


def check_decoder(decoder: str | Decoding) -> Decoding:
    """The decoding that an argument `decoder` names.

    Raises:
        InputError: It is not "cpu", "cuda" or "cuda:N".
    """
    if isinstance(decoder, Decoding):
        return decoder
    if not isinstance(decoder, str) or not re.fullmatch(r"cpu|cuda(:\d{1,4})?", decoder):
        raise InputError(f"decoder must be 'cpu', 'cuda' or 'cuda:N', got {decoder!r}.")
    return Decoding("cuda:0" if decoder == "cuda" else decoder)


def why_not_served(picture: av.VideoFrame) -> str | None:
    """Why a decoded picture can't stay in GPU memory as it is; None if it can."""
    if picture.format.name != "cuda" or picture.sw_format is None:
        return "the GPU does not decode this codec, profile or size"
    if picture.sw_format.name != "nv12":
        return f"pictures are {picture.sw_format.name}, not nv12"
    if picture.width % 2 or picture.height % 2:
        return "the size is odd"
    return "pictures are rotated" if picture.rotation else None


def download(picture: av.VideoFrame) -> av.VideoFrame:
    """A picture in GPU memory as the decoder on the CPU gives it: planar, in host memory."""
    assert picture.sw_format is not None
    name = picture.sw_format.name
    host = picture.reformat(format=name)
    # swscale only takes the planes apart; straight to RGB it would interpolate NV12's chroma, but not yuv420p's.
    return host.reformat(format="yuv420p") if name == "nv12" else host

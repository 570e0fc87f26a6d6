"""Convert decoded pictures to upright pixels: RGB on the host, at once or when asked for, or NV12 in GPU memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import av
import av.video.reformatter
import numpy as np
from numpy.typing import NDArray

from maskjet.sources.colours import FULL_RANGE, guess_matrix
from maskjet.sources.decoding import download, why_not_kept
from maskjet.sources.orientation import read_orientation
from maskjet.sources.pillow_images import turn

if TYPE_CHECKING:
    from maskjet.sources.picture import Picture

_BITS = 8  # per value of luma that is kept
_THREADS = 4  # FFmpeg's choice, 16 on 16 cores, makes decoding at 720p a fifth slower


class PictureConverter:
    """Converts the pictures of one decoder to pixels, on "cpu" or "cuda:N".

    Attributes:
        fallback: Why pictures of a GPU's decoder were converted on the CPU; None if none were.
        is_on_cpu: Whether the CPU decoded some although the GPU was to do it.
    """

    def __init__(self, device: str) -> None:
        self._to_rgb = av.video.reformatter.VideoReformatter()
        self._converting = threading.Lock()  # held pictures are converted by any thread
        self._copier = None
        self.fallback: str | None = None
        self.is_on_cpu = False
        if device != "cpu":
            from maskjet.sources.surfaces import SurfaceCopier  # imports PyTorch

            self._copier = SurfaceCopier(device)

    def convert(self, picture: av.VideoFrame) -> NDArray[np.uint8] | HeldPicture | Picture:
        """Convert a picture to pixels.

        Returns:
            uint8 [H, W, 3], RGB; the picture as it is, if the CPU decodes and it has a plane of 8-bit luma; or the
            picture in GPU memory, copied out of the decoder's.

        Raises:
            RuntimeError: The GPU failed.
        """
        matrix, host = guess_matrix(picture), picture
        if self._copier is not None:
            why_not = why_not_kept(picture)
            if why_not is None:
                from maskjet.sources.picture import Picture, conversion_of  # imports PyTorch

                is_full_range = picture.color_range == FULL_RANGE
                conversion = conversion_of(matrix or int(picture.colorspace), is_full_range=is_full_range)
                return Picture(self._copier.copy(picture), conversion)
            self.fallback = self.fallback or why_not
            if picture.format.name == "cuda":
                host = download(picture)
            else:
                self.is_on_cpu = True
        elif _has_luma(picture):
            return HeldPicture(picture, matrix, self)
        return self.to_rgb(host, matrix, read_orientation(picture))

    def to_rgb(self, host: av.VideoFrame, matrix: int | None, orientation: int) -> NDArray[np.uint8]:
        """Convert a picture on the host, of a colour matrix if not its own, to upright RGB, uint8 [H, W, 3]."""
        with self._converting:
            rgb = self._to_rgb.reformat(host, format="rgb24", src_colorspace=matrix, threads=_THREADS)
        return np.ascontiguousarray(turn(np.asarray(rgb.to_ndarray(), dtype=np.uint8), orientation))


class HeldPicture:
    """A decoded picture in the host's memory, which becomes RGB where that is asked for."""

    def __init__(self, picture: av.VideoFrame, matrix: int | None, converter: PictureConverter) -> None:
        self._picture, self._matrix, self._converter = picture, matrix, converter
        self._orientation = read_orientation(picture)

    @property
    def size_hw(self) -> tuple[int, int]:
        """(height, width) in pixels, upright."""
        height, width = self._picture.height, self._picture.width
        return (width, height) if self._orientation > 4 else (height, width)

    @property
    def luma(self) -> NDArray[np.uint8]:
        """uint8 [H, W], upright; of limited range if the video's is."""
        plane = self._picture.planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)
        return turn(rows[:, : plane.width], self._orientation)

    def to_rgb(self, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """uint8 [H, W, 3], RGB, upright: what the converter makes of others at once. `out` is overwritten."""
        rgb = self._converter.to_rgb(self._picture, self._matrix, self._orientation)
        if out is None:
            return rgb
        np.copyto(out, rgb)
        return out


def _has_luma(picture: av.VideoFrame) -> bool:
    return len(picture.planes) > 1 and not picture.format.is_rgb and picture.format.components[0].bits == _BITS

"""Convert decoded pictures to upright pixels: RGB on the host, or NV12 in GPU memory."""

from __future__ import annotations

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

_THREADS = 4  # FFmpeg's choice, 16 on 16 cores, makes decoding at 720p a fifth slower


class PictureConverter:
    """Converts the pictures of one decoder to pixels, on "cpu" or "cuda:N".

    Attributes:
        fallback: Why pictures of a GPU's decoder were converted on the CPU; None if none were.
        is_on_cpu: Whether the CPU decoded some although the GPU was to do it.
    """

    def __init__(self, device: str) -> None:
        self._to_rgb = av.video.reformatter.VideoReformatter()
        self._copier = None
        self.fallback: str | None = None
        self.is_on_cpu = False
        if device != "cpu":
            from maskjet.sources.surfaces import SurfaceCopier  # imports PyTorch

            self._copier = SurfaceCopier(device)

    def convert(self, picture: av.VideoFrame) -> NDArray[np.uint8] | Picture:
        """Convert a picture to pixels.

        Returns:
            uint8 [H, W, 3], RGB; or the picture in GPU memory, copied out of the decoder's.

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
        rgb = self._to_rgb.reformat(host, format="rgb24", src_colorspace=matrix, threads=_THREADS)
        pixels = np.asarray(rgb.to_ndarray(), dtype=np.uint8)
        return np.ascontiguousarray(turn(pixels, read_orientation(picture)))

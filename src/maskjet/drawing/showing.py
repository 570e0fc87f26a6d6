"""Pictures of detections, encoded to be written or shown."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.errors import OutputError, translate_errors
from maskjet.host.files import replacing

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
"""Suffixes of the pictures that `write` writes."""
_JPEG_QUALITY = 92


def encode(pixels: NDArray[np.uint8], suffix: str, quality: int | None = None, *, name: str = "path") -> bytes:
    """Encode a picture, uint8 [H, W, 3] in RGB, for .png also [H, W, 4] in RGBA; `name` is the path's in messages.

    The quality, 1 to 100, is that of .jpg, else 92, and of .webp, else without loss. Raises OutputError if the format
    can't hold a picture of this size.
    """
    options = []
    if suffix in (".jpg", ".jpeg"):
        options = [cv2.IMWRITE_JPEG_QUALITY, quality or _JPEG_QUALITY]
    elif suffix == ".webp" and quality is not None:
        options = [cv2.IMWRITE_WEBP_QUALITY, quality]
    message = f"{name} must be of a format that holds {pixels.shape[1]}×{pixels.shape[0]} pixels, got {suffix}"
    order = cv2.COLOR_RGB2BGR if pixels.shape[2] == 3 else cv2.COLOR_RGBA2BGRA
    with translate_errors(OutputError, message):
        is_done, data = cv2.imencode(suffix, cv2.cvtColor(pixels, order), options)
    if not is_done:
        raise OutputError(f"{message}.")
    return bytes(data)


def write(path: str | os.PathLike[str], pixels: NDArray[np.uint8]) -> None:
    """Write uint8 [H, W, 3] RGB as a picture file, which takes its name when it is whole; or raise OutputError."""
    data = encode(pixels, Path(path).suffix.lower())
    with replacing(os.fspath(path), "path") as temporary:
        temporary.write(data)

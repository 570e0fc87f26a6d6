"""Pictures of `Detections`: drawn into their image, written to files and shown in notebooks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError, suggest
from maskjet.masks import MaskPixels

if TYPE_CHECKING:
    from maskjet.sources.images import ImageLike, ImageReference

_GREY = 128  # canvas colour if there is no image


class DrawOptions(TypedDict, total=False):
    """Options of `Detections.draw` and `save`: the fields of `maskjet.drawing.DrawStyle`."""

    boxes: bool
    labels: bool
    scores: bool
    masks: bool
    outlines: bool
    ids: bool
    trails: bool
    rotated: bool
    label: str | None
    line_width: float | None
    color_by: Literal["class", "instance"]
    palette: Mapping[str, str] | None
    mask_pixels: MaskPixels


def draw(found: Any, image: NDArray[np.uint8], style: DrawOptions) -> NDArray[np.uint8]:
    """Draw `Detections` into a copy of an image; see `Detections.draw`."""
    from maskjet.drawing import DrawStyle
    from maskjet.drawing import draw as paint

    known = DrawOptions.__annotations__
    for name in style:
        if name not in known:
            raise InputError(f"style must be options of draw(), got {name!r}{suggest(name, known)}")
    return paint(image, found, DrawStyle(**style))


def pixels_of(found: Any, image: ImageLike | None, seen: ImageReference | None) -> NDArray[np.uint8]:
    """The given image, or else the one that `predict` saw; its size is checked against the detections."""
    from maskjet.sources.images import to_image

    pixels = _load(seen) if image is None else to_image(image, "image")
    if pixels is None:
        raise InputError(
            "image must be given, as the one that these detections were found on is not held any more: "
            "draw(image) or save(path, image)."
        )
    if pixels.shape[:2] != tuple(found.image_size):
        (height, width), (wanted_height, wanted_width) = pixels.shape[:2], found.image_size
        raise InputError(
            f"image must be the one of these detections, {wanted_width}×{wanted_height}, got {width}×{height}."
        )
    return pixels


def save(
    found: Any, path: str | os.PathLike[str], image: ImageLike | None, seen: ImageReference | None, style: DrawOptions
) -> None:
    """Write the image with the detections drawn in, or their JSON; see `Detections.save`."""
    from maskjet.drawing import showing
    from maskjet.host.files import is_same_file, write_json

    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        write_json(os.fspath(path), found.as_dict(), "path")
        return
    if suffix not in showing.SUFFIXES:
        raise InputError(f"path must end in {', '.join(showing.SUFFIXES)} or .json, got {os.fspath(path)!r}.")
    given = image if isinstance(image, str | os.PathLike) else None
    path_of_image = None if seen is None else seen.path
    if any(source is not None and is_same_file(path, source) for source in (given, path_of_image)):
        raise InputError(f"path must not be the image's own, {os.fspath(path)!r} would be overwritten.")
    showing.write(path, draw(found, pixels_of(found, image, seen), style))


def encode_png(found: Any, seen: ImageReference | None) -> bytes:
    """Encode a PNG for notebooks; on a grey canvas if the image is no longer available."""
    from maskjet.drawing import showing

    try:
        pixels = _load(seen)
    except InputError:  # the file is gone
        pixels = None
    if pixels is None or pixels.shape[:2] != tuple(found.image_size):
        pixels = np.full((*found.image_size, 3), _GREY, dtype=np.uint8)
    return showing.encode(draw(found, pixels, {}), ".png")


def _load(seen: ImageReference | None) -> NDArray[np.uint8] | None:
    """The image that `predict` saw; None if it is no longer available."""
    return None if seen is None else seen.image()

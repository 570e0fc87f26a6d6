"""Drawing masks, boxes and labels into a frame."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle
from maskjet.detections import Detections

# RGB, far apart in hue, light enough for dark letters; further classes reuse them in turn.
_PALETTE = (
    (78, 205, 255),
    (255, 181, 71),
    (167, 226, 86),
    (255, 126, 182),
    (190, 149, 255),
    (255, 225, 77),
    (92, 229, 195),
    (255, 138, 101),
    (130, 177, 255),
    (214, 214, 120),
)
_LETTERS = (20, 24, 28)
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_FILL = 0.42  # opacity of a mask's inside
_REFERENCE_HEIGHT = 720  # line and letter sizes are given for this height of the image
_LONGEST_NAME = 60  # characters of a class name that are drawn
_FAR = 2**15  # pixels; OpenCV's line drawing covers only part of its integers' range


def class_colour(class_id: int) -> tuple[int, int, int]:
    """The RGB colour of a class, always the same."""
    return _PALETTE[class_id % len(_PALETTE)]


def draw(image: NDArray[np.uint8], detections: Detections) -> NDArray[np.uint8]:
    """Draw detections into a copy of their image, the most confident on top; those without a finite box are left out.

    Args:
        image: uint8 [H, W, 3], RGB.
        detections: Detections of the image; without masks, only boxes and labels are drawn.

    Returns:
        uint8 [H, W, 3], RGB.
    """
    canvas = np.ascontiguousarray(image).copy()
    detections = detections[np.asarray(np.isfinite(detections.xyxy).all(axis=1))]
    scale = min(max(canvas.shape[0] / _REFERENCE_HEIGHT, 0.4), 3.0)
    order = range(len(detections) - 1, -1, -1)
    if detections.rle is not None:
        for i in order:
            _fill_mask(canvas, detections.rle[i], class_colour(int(detections.class_id[i])), scale)
    names = detections.class_name
    for i in order:
        colour = class_colour(int(detections.class_id[i]))
        left, top, right, bottom = np.rint(detections.xyxy[i].clip(-_FAR, _FAR)).astype(int).tolist()
        cv2.rectangle(canvas, (left, top), (right, bottom), colour, max(round(1.5 * scale), 1), cv2.LINE_AA)
        _write_label(canvas, f"{_drawable(names[i])} {detections.confidence[i]:.2f}", (left, top), colour, scale=scale)
    return canvas


def _fill_mask(canvas: NDArray[np.uint8], rle: coco_rle.RLE, colour: tuple[int, int, int], scale: float) -> None:
    """Tint a mask's inside and draw its outline."""
    left, top, crop = coco_rle.decode_crop(rle)
    if crop.size == 0:
        return
    patch = canvas[top : top + crop.shape[0], left : left + crop.shape[1]]
    tint = np.full_like(patch, colour)
    cv2.copyTo(cv2.addWeighted(patch, 1 - _FILL, tint, _FILL, 0), crop, patch)
    outlines, _ = cv2.findContours(crop, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE, offset=(left, top))
    cv2.drawContours(canvas, outlines, -1, colour, max(round(1.5 * scale), 1), cv2.LINE_AA)


def _drawable(name: str) -> str:
    """A class name for OpenCV, cut if long; unprintable characters become "?", as surrogates would end the process."""
    shown = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


def _write_label(
    canvas: NDArray[np.uint8], text: str, corner: tuple[int, int], colour: tuple[int, int, int], *, scale: float
) -> None:
    """Write text on a plate above a box's top left corner, or further inside if that is outside the image."""
    size, pad = 0.5 * scale, max(round(3 * scale), 1)
    weight = 1 if scale < 1.5 else 2
    (width, height), base = cv2.getTextSize(text, _FONT, size, weight)
    x = min(max(corner[0], 0), max(canvas.shape[1] - width - 2 * pad, 0))
    y = min(max(corner[1] - height - base - pad, 0), max(canvas.shape[0] - height - base - pad, 0))
    cv2.rectangle(canvas, (x, y), (x + width + 2 * pad, y + height + base + pad), colour, cv2.FILLED)
    cv2.putText(canvas, text, (x + pad, y + height + pad // 2 + 1), _FONT, size, _LETTERS, weight, cv2.LINE_AA)

"""Lines and zones drawn into a picture, with what they have counted."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.labels import place_label, write_label
from maskjet.drawing.style import measure
from maskjet.media.counts import Count, describe_count

_WHITE, _DARK = [255, 255, 255], [20, 24, 28]
_SHIFT = 4  # binary digits of a pixel's fractions in OpenCV's coordinates
_ARROW = 12  # times a line's width, its length


def draw_counts(canvas: NDArray[np.uint8], counts: Sequence[Count]) -> None:
    """Draw lines, with an arrow to the side that is "in", and zones, each with its sums, into uint8 [H, W, 3], RGB."""
    size_hw = canvas.shape[0], canvas.shape[1]
    measures = measure(size_hw, None)
    for count in counts:
        points, is_zone = np.array(count.points), count.inside_by_class is not None
        ends = np.rint(points * 2**_SHIFT).astype(np.int32)
        middle, (x, y) = points.mean(axis=0), points[1] - points[0]
        tip = middle + np.array([y, -x]) / max(np.hypot(x, y), 1e-9) * _ARROW * measures.line
        arrow = np.rint(np.stack([middle, tip]) * 2**_SHIFT).astype(np.int32)
        for colour, width in ((_DARK, 3 * measures.line), (_WHITE, measures.line)):
            cv2.polylines(canvas, [ends], is_zone, colour, width, cv2.LINE_AA, _SHIFT)
            if not is_zone:
                cv2.arrowedLine(canvas, arrow[0], arrow[1], colour, width, cv2.LINE_AA, _SHIFT, 0.4)
    for count in counts:
        text = describe_count(count.name, count.as_dict(), by_class=False)
        label = place_label(text, np.array(count.points[0]), size_hw, measures)
        if label is not None:
            write_label(canvas, label, _WHITE, measures)

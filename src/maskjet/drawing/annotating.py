"""Annotation: masks, boxes and labels drawn into a picture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from maskjet.coco_rle import Runs, to_runs
from maskjet.drawing.instances import Instances
from maskjet.drawing.labels import arrange_labels, write_label
from maskjet.drawing.shades import colour_instances
from maskjet.drawing.style import DrawStyle, measure
from maskjet.jit import compiled
from maskjet.mask_pixels import keep_in_runs

_FILL = 108  # opacity of a mask's inside, in 256ths


def annotate(
    canvas: NDArray[np.uint8], detections: Instances, style: DrawStyle, given: NDArray[np.uint8] | None = None
) -> None:
    """Draw detections into their image, the most confident on top, labels above all.

    Those whose box is not finite or lies outside the image are left out. The same detections always look the same.

    Args:
        canvas: uint8 [H, W, 3], RGB, contiguous, of the detections' size.
        detections: Instances of the image; without masks, only boxes and labels are drawn.
        style: Parts that are drawn, and their colours.
        given: uint8 [n, 3], RGB: the instances' colours; None for those that their boxes and the style give.

    Raises:
        InputError: A mask is malformed, or not of the image's size.
    """
    is_visible = _is_visible(detections.xyxy, detections.image_size)
    if not is_visible.any():
        return
    detections = detections if is_visible.all() else detections[is_visible]
    height, width = detections.image_size
    measures = measure((height, width), style.line_width)
    xyxy = detections.xyxy.astype(np.float64).clip(0, (width, height, width, height))
    if given is None:
        rgb = colour_instances(xyxy, detections.class_id, (height, width), is_by_class=style.color_by == "class")
    else:
        rgb = given[is_visible]
    frames = _frames(xyxy, (height, width), measures.line)
    if detections.rle is not None and (style.masks or style.outlines):
        runs = keep_in_runs(to_runs(detections.rle, (height, width)), detections.xyxy, style.mask_pixels)
        _paint_masks(canvas, runs, rgb, style=style, line=measures.line)
    if style.boxes:
        draw_frames(canvas, frames, rgb, measures.line)
    if style.labels or style.scores:
        colours = rgb.tolist()
        labels = arrange_labels(detections, frames, style=style, measures=measures)
        plates = np.array([label.plate for label in labels], np.int64).reshape(-1, 4)
        draw_frames(canvas, plates, rgb[[label.instance for label in labels]], height)
        for label in labels:
            write_label(canvas, label, colours[label.instance], measures)


def _paint_masks(
    canvas: NDArray[np.uint8], masks: Runs, colours: NDArray[np.uint8], *, style: DrawStyle, line: int
) -> None:
    """Tint the masks and draw their outlines."""
    import torch  # takes a second, and a style alone needs none

    from maskjet.ops import paint
    from maskjet.ops.paint.outline import WIDEST

    image = torch.from_numpy(canvas)
    opacity, line = _FILL if style.masks else 0, min(line, WIDEST) if style.outlines else 0
    paint(image, masks, torch.from_numpy(colours), opacity=opacity, line=line, out=image)


def _is_visible(xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> NDArray[np.bool_]:
    """Which boxes are finite and touch the image, bool [n]; none if the image is empty."""
    height, width = size_hw
    x, y = xyxy[:, ::2], xyxy[:, 1::2]
    touches = (x.max(axis=1) >= 0) & (x.min(axis=1) <= width) & (y.max(axis=1) >= 0) & (y.min(axis=1) <= height)
    return np.asarray(touches & np.isfinite(xyxy).all(axis=1) & (height * width > 0))


def _frames(xyxy: NDArray[np.float64], size_hw: tuple[int, int], line: int) -> NDArray[np.int64]:
    """Outer edges of the boxes' lines, which are centred on the boxes' edges as far as the image allows.

    Returns:
        int64 [n, 4], left, top, right, bottom in pixels, right and bottom exclusive, inside the image, no side shorter
        than a line's width.
    """
    height, width = size_hw
    corners = np.rint(xyxy).astype(np.int64).reshape(-1, 2, 2)
    low = (corners.min(axis=1) - line // 2).clip(0, (width - line, height - line))
    high = np.minimum(np.maximum(corners.max(axis=1) + line // 2, low + line), (width, height))
    return np.hstack([low, high])


@compiled("void(uint8[:, :, ::1], Array(int64, 2, 'C', True), Array(uint8, 2, 'A', True), int64)")
def draw_frames(canvas: NDArray[np.uint8], frames: NDArray[np.int64], colours: NDArray[np.uint8], line: int) -> None:
    """Draw the sides of boxes, the first one's on top; boxes whose sides meet are filled."""
    for i in range(len(frames) - 1, -1, -1):
        left, top, right, bottom = frames[i]
        for y in range(top, bottom):
            is_whole = y < top + line or y >= bottom - line
            for channel in range(3):
                canvas[y, left : right if is_whole else left + line, channel] = colours[i, channel]
                canvas[y, max(right - line, left) : right, channel] = colours[i, channel]

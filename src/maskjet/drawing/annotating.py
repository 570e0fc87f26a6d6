"""Annotation: masks, boxes, labels and counts drawn into a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.instances import Instances
from maskjet.drawing.labels import arrange_labels, place_label, write_label
from maskjet.drawing.shades import colour_instances, colour_tracks
from maskjet.drawing.style import DrawStyle, measure, parse_colour
from maskjet.jit import compiled
from maskjet.masks.coco_rle import Runs, to_runs
from maskjet.masks.rotated import rotated_boxes
from maskjet.masks.stray_pixels import clip_runs
from maskjet.sources.counts import Count, describe_count

_FILL = 108  # opacity of a mask's inside, in 256ths
_SHIFT = 4  # binary digits of a pixel's fractions in OpenCV's coordinates
_WHITE, _DARK = (255, 255, 255), (20, 24, 28)
_ARROW = 12  # length of an arrow, in line widths


def annotate(
    canvas: NDArray[np.uint8], detections: Instances, style: DrawStyle, trails: Sequence[NDArray[np.float64]] = ()
) -> None:
    """Draw detections into their image, uint8 [H, W, 3] in RGB, the most confident on top, labels above all.

    Those whose box is not finite or lies outside the image are left out. `trails` are float64 [k, 2] per detection,
    points (x, y) in pixels. Raises InputError for a mask that is malformed or of another size.
    """
    is_visible = _is_visible(detections.xyxy, detections.image_size)
    if not is_visible.any():
        return
    detections = detections if is_visible.all() else detections[is_visible]
    height, width = detections.image_size
    measures = measure((height, width), style.line_width)
    xyxy = detections.xyxy.astype(np.float64).clip(0, (width, height, width, height))
    if style.color_by == "instance" and detections.track_id is not None:
        rgb = colour_tracks(detections.track_id)
    else:
        rgb = colour_instances(xyxy, detections.class_id, (height, width), is_by_class=style.color_by == "class")
    for name, chosen in (style.palette or {}).items():
        rgb[detections.class_name == name] = np.array(parse_colour(chosen), np.uint8)
    colours = [(red, green, blue) for red, green, blue in rgb.tolist()]
    frames = _frames(xyxy, (height, width), measures.line)
    runs, is_rotated = None, style.boxes and style.rotated
    if detections.rle is not None and (style.masks or style.outlines or is_rotated):
        runs = to_runs(detections.rle, (height, width))
        if style.mask_pixels == "box":
            runs = clip_runs(runs, detections.xyxy)
        _paint_masks(canvas, runs, rgb, style=style, line=measures.line)
    for way, colour in zip(compress(trails, is_visible), colours, strict=False):
        _draw_line(canvas, way, colour, measures.line, is_closed=False)
    if is_rotated:
        for corners, colour in reversed([*zip(rotated_boxes(runs, xyxy), colours, strict=True)]):
            _draw_line(canvas, corners - 0.5, colour, measures.line, is_closed=True)  # OpenCV counts from centres
    elif style.boxes:
        draw_frames(canvas, frames, rgb, measures.line)
    if style.template:
        labels = arrange_labels(detections, frames, style=style, measures=measures)
        plates = np.array([label.plate for label in labels], np.int64).reshape(-1, 4)
        draw_frames(canvas, plates, rgb[[label.instance for label in labels]], height)
        for label in labels:
            write_label(canvas, label, colours[label.instance], measures)


def draw_counts(canvas: NDArray[np.uint8], counts: Sequence[Count]) -> None:
    """Draw lines, with an arrow to the side that is "in", and zones, each with its sums, into uint8 [H, W, 3], RGB."""
    size_hw = canvas.shape[0], canvas.shape[1]
    measures = measure(size_hw, None)
    for count in counts:
        points, is_zone = np.array(count.points), count.inside_by_class is not None
        middle, (x, y) = points.mean(axis=0), points[1] - points[0]
        tip = middle + np.array([y, -x]) / max(np.hypot(x, y), 1e-9) * _ARROW * measures.line
        arrow = np.rint(np.stack([middle, tip]) * 2**_SHIFT).astype(np.int32)
        for colour, width in ((_DARK, 3 * measures.line), (_WHITE, measures.line)):
            _draw_line(canvas, points, colour, width, is_closed=is_zone)
            if not is_zone:
                cv2.arrowedLine(canvas, arrow[0], arrow[1], colour, width, cv2.LINE_AA, _SHIFT, 0.4)
    for count in counts:
        text = describe_count(count.name, count.as_dict(), by_class=False)
        label = place_label(text, np.array(count.points[0]), size_hw, measures)
        if label is not None:
            draw_frames(canvas, np.array([label.plate], np.int64), np.array([_WHITE], np.uint8), size_hw[0])
            write_label(canvas, label, _WHITE, measures)


def _draw_line(
    canvas: NDArray[np.uint8], points: NDArray[np.floating], colour: tuple[int, ...], width: int, *, is_closed: bool
) -> None:
    ends = np.rint(points * 2**_SHIFT).astype(np.int32)
    cv2.polylines(canvas, [ends], is_closed, colour, width, cv2.LINE_AA, _SHIFT)


def _paint_masks(
    canvas: NDArray[np.uint8], masks: Runs, colours: NDArray[np.uint8], *, style: DrawStyle, line: int
) -> None:
    import torch  # takes a second to import; styles alone do not need it

    from maskjet.ops import paint
    from maskjet.ops.paint.outline import WIDEST

    image = torch.from_numpy(canvas)
    opacity, line = _FILL if style.masks else 0, min(line, WIDEST) if style.outlines else 0
    paint(image, masks, torch.from_numpy(colours), opacity=opacity, line=line, out=image)


def _is_visible(xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> NDArray[np.bool_]:
    """Select boxes that are finite and touch the image, bool [n]; none if the image is empty."""
    height, width = size_hw
    x, y = xyxy[:, ::2], xyxy[:, 1::2]
    touches = (x.max(axis=1) >= 0) & (x.min(axis=1) <= width) & (y.max(axis=1) >= 0) & (y.min(axis=1) <= height)
    return np.asarray(touches & np.isfinite(xyxy).all(axis=1) & (height * width > 0))


def _frames(xyxy: NDArray[np.float64], size_hw: tuple[int, int], line: int) -> NDArray[np.int64]:
    """Outer edges of drawn frames, int64 [n, 4], the last two exclusive: centred on boxes' edges, within the image."""
    height, width = size_hw
    corners = np.rint(xyxy).astype(np.int64).reshape(-1, 2, 2)
    low = (corners.min(axis=1) - line // 2).clip(0, (width - line, height - line))
    high = np.minimum(np.maximum(corners.max(axis=1) + line // 2, low + line), (width, height))
    return np.hstack([low, high])


@compiled("void(uint8[:, :, ::1], Array(int64, 2, 'C', True), Array(uint8, 2, 'A', True), int64)")
def draw_frames(canvas: NDArray[np.uint8], frames: NDArray[np.int64], colours: NDArray[np.uint8], line: int) -> None:
    """Draw the frames of boxes, the first box on top; boxes thinner than two lines are filled."""
    for i in range(len(frames) - 1, -1, -1):
        left, top, right, bottom = frames[i]
        for y in range(top, bottom):
            is_whole = y < top + line or y >= bottom - line
            for channel in range(3):
                canvas[y, left : right if is_whole else left + line, channel] = colours[i, channel]
                canvas[y, max(right - line, left) : right, channel] = colours[i, channel]

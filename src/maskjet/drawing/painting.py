"""Pictures of detections in a style."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from maskjet.drawing.annotating import annotate, draw_counts
from maskjet.drawing.instances import Instances
from maskjet.drawing.regions import HeldRegion, Region, grow, pick, unite
from maskjet.drawing.replacing import replace
from maskjet.drawing.style import DrawStyle, Redaction, Style
from maskjet.errors import InputError

if TYPE_CHECKING:
    from maskjet.sources.images import ImageLike
    from maskjet.sources.source import Frame

_DEFAULT = DrawStyle()
_HOLD = 5  # default of `Redaction.hold` for video, in frames
_LENGTH = 30  # length of a trail in frames
_MARGIN_SHARE = 0.01  # of the longer side: masks come from grids of 78 to 192 cells a side


def draw(image: ImageLike, detections: Instances, style: Style = _DEFAULT) -> NDArray[np.uint8]:
    """Annotate, redact or cut out detections in a copy of their image.

    Args:
        image: uint8 [H, W, 3] RGB array; or an image of another kind that `predict` takes.
        detections: Instances of the image. An annotation without masks has boxes and labels only.
        style: A `DrawStyle`, `Redaction` or `Cutout` of `maskjet.drawing`. For a `Redaction` of video use `Painter`,
            which also holds the regions of earlier frames.

    Returns:
        uint8 [H, W, 3], RGB; [H, W, 4], RGBA, if pixels are replaced with "transparent".

    Raises:
        InputError: The image is none, the detections are of an image of another size, a mask is malformed, or the
            style names a class that the model does not have.
        SourceError: A file can't be read.

    Examples:
        >>> import maskjet
        >>> from maskjet.drawing import Redaction
        >>> image = maskjet.traffic.sample(seed=3).image
        >>> found = maskjet.load("demo").predict(image)
        >>> redacted = maskjet.draw(image, found, Redaction(["person", "car"], replace_with="blur"))
        >>> redacted.shape == image.shape
        True
    """
    if not isinstance(image, np.ndarray):
        from maskjet.sources.images import to_image

        image = to_image(image, "image")
    _check(image, detections)
    region = _find_redacted(detections, style) if isinstance(style, Redaction) else None
    return _paint(np.array(image, order="C"), detections, style, region)


class Trails:
    """Trails of a source's tracks: bottom centres of their boxes over the last 30 frames."""

    def __init__(self) -> None:
        self._frame = 0
        self._ways: dict[int, deque[tuple[int, float, float]]] = {}  # by id: (frame, x, y), newest first

    def follow(self, xyxy: NDArray[np.float32], track_id: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """Append the next frame's tracks; returns each detection's way, float64 [k, 2], the last point first."""
        self._frame += 1
        shown = []
        for number, (x1, _, x2, y2) in zip(track_id.tolist(), xyxy.tolist(), strict=True):
            way: deque[tuple[int, float, float]] = deque()
            if number >= 0 and np.isfinite((x1, x2, y2)).all():
                way = self._ways.setdefault(number, way)
                way.appendleft((self._frame, (x1 + x2) / 2, y2))
                while way[-1][0] <= self._frame - _LENGTH:
                    way.pop()
            shown.append(np.array(way).reshape(-1, 3)[:, 1:])
        self._ways = {number: way for number, way in self._ways.items() if way[0][0] > self._frame - _LENGTH}
        return shown


class Painter:
    """Draws the frames of videos in a style; unlike `draw`, it holds redacted regions and trails, and shows counts.

    Frames of a source must come in order; those of sources that one `stream` reads side by side may be mixed. Not for
    several threads at once, but for what `prepare` returns.

    Args:
        style: A `DrawStyle`, `Redaction` or `Cutout`.
        overwrites: Whether a picture is only valid until the same thread draws the next, which may take its memory: new
            memory for each would have thousands of page faults.
        overwrites_frames: Whether it draws into the frames' arrays, where it otherwise draws into copies.

    Examples:
        >>> import maskjet
        >>> from maskjet.drawing import Painter, Redaction
        >>> model = maskjet.load("demo")
        >>> painter = Painter(Redaction(["person"], hold=10))
        >>> images = [maskjet.traffic.sample(seed=seed).image for seed in range(2)]
        >>> [painter.paint(frame, found).shape for frame, found in model.stream(images)]
        [(720, 1280, 3), (720, 1280, 3)]
    """

    def __init__(self, style: Style = _DEFAULT, *, overwrites: bool = False, overwrites_frames: bool = False) -> None:
        self._style, self._overwrites, self._overwrites_frames = style, overwrites, overwrites_frames
        self._of_thread = threading.local()  # `canvas`: the last picture, reused as memory
        self._held: dict[int, tuple[str, HeldRegion, Trails]] = {}  # by stream: source name, state

    def paint(self, frame: Frame, detections: Instances) -> NDArray[np.uint8]:
        """Draw the next frame of a source; result and errors are those of `draw`."""
        return self.prepare(frame, detections)()

    def prepare(self, frame: Frame, detections: Instances) -> Callable[[], NDArray[np.uint8]]:
        """Register the next frame of a source; returns a function that draws it, at any time, in any thread."""
        _check_size(frame.size_hw, detections)
        held, trails = self._hold(frame, detections)
        region = _find_redacted(detections, self._style, held) if isinstance(self._style, Redaction) else None
        return partial(self._draw, frame, detections, region, trails)

    def _draw(
        self, frame: Frame, detections: Instances, region: Region | None, trails: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.uint8]:
        if isinstance(frame.pixels, np.ndarray):
            _check(frame.pixels, detections)
        canvas = frame.image if self._overwrites_frames else self._copy(frame)
        painted = _paint(canvas, detections, self._style, region, trails)
        if painted.shape[2] == 3:
            draw_counts(painted, frame.counts)
        return painted

    def _copy(self, frame: Frame) -> NDArray[np.uint8]:
        """Copy the frame's image, into the memory of the thread's last picture if that may be overwritten."""
        canvas, shape = getattr(self._of_thread, "canvas", None), (*frame.size_hw, 3)
        if canvas is None or canvas.shape != shape:
            canvas = np.empty(shape, np.uint8)
        if self._overwrites:
            self._of_thread.canvas = canvas
        frame.copy_to(canvas)
        return canvas

    def _hold(self, frame: Frame, detections: Instances) -> tuple[HeldRegion | None, Sequence[NDArray[np.float64]]]:
        """Return a source's held region and its tracks' trails, None and () where the style or image needs none."""
        hold = self._style.hold if isinstance(self._style, Redaction) else 0
        drawn = self._style if isinstance(self._style, DrawStyle) else self._style.on_top
        ids = detections.track_id if drawn is not None and drawn.trails and frame.is_of_video else None
        if frame.stream not in self._held or self._held[frame.stream][0] != frame.source:
            self._held[frame.stream] = frame.source, HeldRegion(_HOLD if hold is None else hold), Trails()
        _, region, trails = self._held[frame.stream]
        return region if frame.is_of_video or hold else None, () if ids is None else trails.follow(detections.xyxy, ids)


def _paint(
    canvas: NDArray[np.uint8],
    detections: Instances,
    style: Style,
    redacted: Region | None,
    trails: Sequence[NDArray[np.float64]] = (),
) -> NDArray[np.uint8]:
    """Draw into a checked image; see `draw`. `redacted` is the redacted region, at full or half resolution."""
    if isinstance(style, DrawStyle):
        annotate(canvas, detections, style, trails)
        return canvas
    if isinstance(style, Redaction):
        assert redacted is not None
        inside = _enlarge(redacted, canvas.shape)
        painted = replace(canvas, inside, 1 - inside, style.replace_with)
    else:
        outside = 1 - unite(pick(detections, style.classes))
        painted = replace(canvas, outside, outside, style.replace_with)
    if style.on_top is not None:
        annotate(painted, detections, style.on_top, trails)
    return painted


def _find_redacted(detections: Instances, style: Redaction, held: HeldRegion | None = None) -> Region:
    """The region to redact, including held pixels; for video, where they share their chroma, of squares of 2 × 2."""
    by_size = math.ceil(max(detections.image_size) * _MARGIN_SHARE)
    margin = by_size if style.margin is None else style.margin
    square = 1 if held is None else 2
    region = grow(unite(pick(detections, style.classes), square), -(-margin // square))
    if held is not None:
        held.add_to(region)
    return region


def _enlarge(region: Region, shape: tuple[int, ...]) -> Region:
    """Upsample a region of 2 × 2 squares to the image; return one of the image's size unchanged."""
    if region.shape == shape[:2]:
        return region
    doubled = (region * np.uint16(0x0101)).view(np.uint8).repeat(2, axis=0)  # ten times as fast as cv2.resize
    return np.ascontiguousarray(doubled[: shape[0], : shape[1]])


def _check(image: NDArray[np.uint8], detections: Instances) -> None:
    """Raise InputError if an array is no image, or not of the detections' size."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InputError(f"image must be uint8 [H, W, 3], got {image.dtype} {list(image.shape)}.")
    _check_size(image.shape[:2], detections)


def _check_size(size_hw: tuple[int, ...], detections: Instances) -> None:
    if size_hw != tuple(detections.image_size):
        raise InputError(f"detections must be of the image's size {size_hw}, got {detections.image_size}.")

"""A window that shows annotated frames while they are detected."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Painter, Redaction, Style
from maskjet.errors import InputError, MissingDependencyError, UnsupportedError, first_line
from maskjet.outputs.sink import Sink
from maskjet.sources.frames import Frame

_SHORTEST_S = 1 / 60  # shortest time between shown frames of a video
_REST = 2.0  # pause after showing a frame, as a multiple of its duration
_OF_SCREEN = 0.9  # largest share of the screen
_GLANCE_S = 0.02  # polling interval of keys while the window is held
_RECENT = 60  # frames with detections, of which the title says how many were detected on
_CURE = "write a video with out instead"


class Window(Sink):
    """A window with the frames and their detections drawn in, by Tk, which comes with most Pythons.

    Frames of a video that come faster than they can be shown are left out, images of a folder are not. Where detections
    are moved to frames, the title says to how many. A frame larger than the screen is shown smaller. The keys q and Esc
    and closing the window end the stream: `closed` is set, which `Model.stream` takes as its `stop`, and nothing is
    shown from then on. All calls must come from one thread.

    Args:
        title: Title of the window.
        closed: Event, an attribute, that is set once the user closes the window; None for a new one.
        holds: Whether `close` waits until the user closes the window, so that a single image can be looked at.
        style: Whether frames are annotated, redacted or cut out, and how; transparent pixels are shown black.

    Raises:
        MissingDependencyError: This Python has no Tk.
        UnsupportedError: There is no screen.
    """

    def __init__(
        self,
        title: str = "maskjet",
        *,
        closed: threading.Event | None = None,
        holds: bool = False,
        style: Style = DrawStyle(),
    ) -> None:
        self._painter = Painter(style, overwrites=True)
        self.redacts = isinstance(style, Redaction)
        self.closed = closed or threading.Event()
        self._holds = holds
        self._next_s = 0.0  # `perf_counter` time to show the next frame of a video
        self._tk = tk = _import_tk()
        try:
            self._root: Any = tk.Tk()
        except tk.TclError as error:
            raise UnsupportedError(f"a window needs a screen, there is none ({first_line(error)}): {_CURE}.") from error
        self._root.title(title)
        self._title, self._detected = title, deque[bool](maxlen=_RECENT)
        self._root.resizable(width=False, height=False)
        self._root.protocol("WM_DELETE_WINDOW", self.closed.set)
        for key in ("q", "Q", "<Escape>"):
            self._root.bind(key, lambda _: self.closed.set())
        self._label: Any = tk.Label(self._root, borderwidth=0)
        self._label.pack()
        self._image: Any = None
        self._most_hw = (
            round(self._root.winfo_screenheight() * _OF_SCREEN),
            round(self._root.winfo_screenwidth() * _OF_SCREEN),
        )

    def write(self, frame: Frame, detections: Detections) -> None:
        """Show one frame."""
        if self._root is None:
            raise InputError("The window is closed; open another.")
        if self.closed.is_set():
            return
        if detections.moved is not None and len(detections):
            self._detected.append(not detections.moved.any())
            step = len(self._detected) / max(sum(self._detected), 1)
            self._root.title(f"{self._title} - detected on 1 frame in {step:.1f}")
        begun_s = time.perf_counter()
        if frame.is_of_video and begun_s < self._next_s:
            self._painter.prepare(frame, detections)
            self._update()
            return
        drawn = self._painter.paint(frame, detections)
        self._show(_fit(np.ascontiguousarray(drawn[..., :3]), self._most_hw))
        shown_s = time.perf_counter()
        self._next_s = max(begun_s + _SHORTEST_S, shown_s + _REST * (shown_s - begun_s))

    def _show(self, image: NDArray[np.uint8]) -> None:
        """Show an image, passed as PPM, which Tk reads without further libraries."""
        height, width = image.shape[:2]
        data = b"P6 %d %d 255 " % (width, height) + image.tobytes()
        with self._guarded():
            self._image = self._tk.PhotoImage(master=self._root, data=data, format="PPM")  # kept: Tk has no reference
            self._label.configure(image=self._image)
        self._update()

    def _update(self) -> None:
        with self._guarded():
            self._root.update()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Treat a destroyed window or a lost display as closed."""
        try:
            yield
        except self._tk.TclError:
            self.closed.set()

    def close(self) -> None:
        """Close the window; if it `holds`, wait until the user closes it."""
        while self._root is not None and self._holds and self._image is not None and not self.closed.is_set():
            self._update()
            time.sleep(_GLANCE_S)
        self.abandon()

    def abandon(self) -> None:
        """Close the window at once."""
        root, self._root, self._image = self._root, None, None
        if root is not None:
            with self._guarded():
                root.destroy()


def _import_tk() -> ModuleType:
    try:
        import tkinter
    except ImportError as error:
        package = "apt install python3-tk" if sys.platform == "linux" else "install Python from python.org"
        raise MissingDependencyError(f"a window needs Tk, which this Python lacks: {package}, or {_CURE}.") from error
    return tkinter


def _fit(image: NDArray[np.uint8], most_hw: tuple[int, int]) -> NDArray[np.uint8]:
    scale = min(1.0, *(most / side for most, side in zip(most_hw, image.shape[:2], strict=True)))
    if scale == 1.0:
        return image
    size = tuple(max(round(side * scale), 1) for side in image.shape[1::-1])
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)

"""Peers of the reach benchmark: the loops over a video file that users of rfdetr and supervision write."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np

from benchmarks.peers.loading import load_module
from benchmarks.peers.pipeline import Pipeline
from benchmarks.reach_report import PeerSpeed, Speed
from benchmarks.reach_speed import Stopwatch
from maskjet.errors import InputError

_Detect = Callable[[Any], object]
_WARM_UP = 3  # frames


class _TimeUpError(Exception):
    """Ends a loop that calls back."""


class _Counter:
    """Counts frames, and says when the time is up; the first frames don't count."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._count = seconds, -_WARM_UP
        self._watch, self._end = Stopwatch(), float("inf")
        self.speed: Speed | None = None
        """Speed until the last frame; None before one counts."""

    def add(self) -> bool:
        """Count a frame; returns whether to go on."""
        self._count += 1
        if not self._count:
            self._watch, self._end = Stopwatch(), time.perf_counter() + self._seconds
        self.speed = self._watch.stop(self._count) if self._count > 0 else None
        return time.perf_counter() < self._end


def _play_pyav(detect: _Detect, path: Path, counter: _Counter) -> None:
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        for picture in container.decode(video=0):
            detect(np.asarray(picture.to_ndarray(format="rgb24"), np.uint8))
            if not counter.add():
                return


def _play_generator(detect: _Detect, path: Path, counter: _Counter) -> None:
    for frame in _supervision().get_video_frames_generator(str(path)):
        detect(_to_rgb(frame))
        if not counter.add():
            return


def _play_process(detect: _Detect, path: Path, counter: _Counter) -> None:
    def callback(frame: Any, _index: int) -> Any:
        detect(_to_rgb(frame))
        if not counter.add():
            raise _TimeUpError
        return frame

    with TemporaryDirectory() as folder, suppress(_TimeUpError):
        _supervision().process_video(str(path), str(Path(folder) / "out.mp4"), callback)


@dataclass(frozen=True)
class Loop:
    """A loop over a video file."""

    name: str
    """Name in reports."""
    what: str
    """One line that describes it."""
    play: Callable[[_Detect, Path, _Counter], None]
    """Runs it, with rfdetr's predict on an RGB frame."""


LOOPS = (
    Loop("rfdetr", "predict on frames decoded by PyAV", _play_pyav),
    Loop("supervision frames", "get_video_frames_generator with the same predict", _play_generator),
    Loop("supervision process_video", "with the same predict; writes the video again, nothing drawn", _play_process),
)
"""The loops that are measured."""
OUTPUTS = {"masks": "dense masks", "RLE": "masks as RLE by pycocotools"}
"""What each loop ends with, by name."""


def time_loop(loop: Loop, peer: Pipeline, output: str, path: Path, size: str, seconds: float) -> PeerSpeed:
    """Run a loop over a file for some seconds; `output` is of `OUTPUTS`.

    Raises:
        InputError: The file has too few frames.
    """
    counter = _Counter(seconds)
    loop.play(peer.predict if output == "masks" else peer.detect, path, counter)
    if counter.speed is None:
        raise InputError(f"{path} must have more than {_WARM_UP} frames.")
    return PeerSpeed(f"{loop.name}, {output}", f"{loop.what}, {OUTPUTS[output]}", size, counter.speed)


def _supervision() -> Any:
    return load_module("supervision", "supervision")


def _to_rgb(frame: Any) -> Any:
    return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)

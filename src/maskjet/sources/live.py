"""Live sources: cameras and network streams, reconnected when they fail or fall silent."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TypeVar

from maskjet.errors import FrameError, SourceError, UnsupportedError
from maskjet.sources.containers import cause_of
from maskjet.sources.metering import SourceState
from maskjet.sources.selection import EVERYTHING, Selection
from maskjet.sources.source import DEFAULT_OPENING, Frame, Opening, Source
from maskjet.sources.videos import VideoSource, open_video_source

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
_HELD_S = 60.0  # after success for so long, waits start short again
_HIGHEST_FPS = 1000.0  # higher stated rates are ignored
_MOST_BAD = 1000  # entries kept in `bad_frames`, as a live source is endless
_RETRIED = (SourceError, FrameError, UnsupportedError)
_chance = random.Random()  # own generator: does not disturb the program's random sequence
_log = logging.getLogger("maskjet")
_T = TypeVar("_T")


class Retries:
    """Retries failed work for `patience_s`, with waits that double from 0.5 s to 30 s, until `stop` is set.

    Each wait is shorter by up to a half, at random, so that the sources of a host that was away don't return at once.
    """

    def __init__(self, stop: threading.Event, patience_s: float = math.inf) -> None:
        self._stop, self._patience_s = stop, patience_s
        self._wait_s = _FIRST_WAIT_S
        self._succeeded = math.inf

    def run(self, work: Callable[[], _T], on_failure: Callable[[Exception], None], *, waits: bool = False) -> _T | None:
        """Call `work` until it succeeds, and return its result; None once `stop` is set.

        `on_failure` is called with each error that is followed by another try. With `waits` it waits before the first
        try.

        Raises:
            SourceError, FrameError, UnsupportedError: The last try after `patience_s` failed. Other errors are raised
                at once.
        """
        end = time.monotonic() + self._patience_s
        if time.monotonic() - self._succeeded >= _HELD_S:
            self._wait_s = _FIRST_WAIT_S
        while not self._stop.is_set():
            if waits:
                wait_s = self._wait_s * _chance.uniform(0.5, 1)
                self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
                if self._stop.wait(min(wait_s, max(end - time.monotonic(), 0))):
                    break
            waits = True
            try:
                done = work()
            except _RETRIED as error:
                if time.monotonic() >= end:
                    raise
                on_failure(error)
            else:
                self._succeeded = time.monotonic()
                return done
        return None


class LiveSource(Source):
    """A camera or network stream across reconnections.

    When it ends, breaks off or gives nothing for 10 s, it is opened again. The time of its frames goes on by the clock;
    their index counts the frames that came. Each gap is an entry in `bad_frames`. Frames may change their size, and the
    stream its codec. `every` counts anew from the first frame after a gap. `connect` makes another connection, which
    gives some of its frames.
    """

    kind = "video"
    is_live = True

    def __init__(
        self,
        first: VideoSource,
        connect: Callable[[Selection], VideoSource],
        selection: Selection = EVERYTHING,
        reconnect_for: float = math.inf,
    ) -> None:
        super().__init__(first.name)
        self.files, self.fps = first.files, first.fps
        self._use(first)
        self._connect, self._selection = connect, selection
        self._closed = threading.Event()
        self._patience_s = reconnect_for
        self._retries = Retries(self._closed, reconnect_for)
        self._given = 0
        self._first = 0  # index of the connection's first frame
        self._starts_s: float | None = None  # time of its first frame, after a reconnection
        self._step_s = 0.0  # seconds between its frames
        self._ahead_s: float | None = None  # offset of its times; None until the first is known
        self._came = time.monotonic()  # arrival of the last frame
        self._last_s: float | None = None  # time of the last frame
        self._reconnects = 0
        self._error: str | None = None
        self._forgotten = 0  # entries dropped from `bad_frames`

    @property
    def state(self) -> SourceState:
        """Current state of the source; may be read by any thread, while another one reads frames."""
        state = super().state
        bad_frames = state.bad_frames + self._forgotten
        return replace(state, bad_frames=bad_frames, reconnects=self._reconnects, error=self._error)

    def close(self) -> None:
        """Close the connection, or end the wait for one; may be called twice, and while another thread reads."""
        self._is_closed = True
        self._closed.set()
        self._connection.close()

    def _use(self, connection: VideoSource) -> None:
        self._connection = connection
        self.size_hw, self.picture_format = connection.size_hw, connection.picture_format
        self.decoder, self.fallback = connection.decoder, connection.fallback

    def _read(self) -> Iterator[Frame]:
        while True:
            why = yield from self._read_connection()
            if self._closed.is_set() or self._given == self._selection.limit:
                return
            self._error, self._is_connected = why, False
            self._meter.begin_anew()
            _log.warning("%r broke off and is opened again: %s", self.name, why)
            if not self._open_again():
                return

    def _read_connection(self) -> Generator[Frame, None, str]:
        """Yield the frames of a connection; returns why it ended."""
        connection = self._connection
        connection.keeps_yuv = self.keeps_yuv
        with connection:
            frames = iter(connection)
            try:
                while (frame := next(frames, None)) is not None:
                    self._take_losses(connection)
                    yield self._number(frame)
            except _RETRIED as error:
                return cause_of(error)
            finally:
                self._take_losses(connection)
        return "the stream ended"

    def _number(self, frame: Frame) -> Frame:
        """Convert a frame's index and time from the connection's to the source's."""
        self._given += 1
        if self._reconnects:
            index = self._first + frame.index
            frame = replace(frame, index=index, time_s=self._time_of(frame), name=f"{self.name}#{index}")
        self._came, self._last_s = time.monotonic(), frame.time_s
        return frame

    def _time_of(self, frame: Frame) -> float | None:
        """Convert the time of a frame after a reconnection to the time of the source."""
        time_s = frame.time_s
        if self._ahead_s is None and self._starts_s is not None:
            by_rate_s = self._starts_s + frame.index * self._step_s
            if time_s is None:  # first frame of most RTSP connections
                return by_rate_s
            self._ahead_s = by_rate_s - time_s
        return None if time_s is None else time_s + (self._ahead_s or 0.0)

    def _take_losses(self, connection: VideoSource) -> None:
        """Move a connection's bad frames to the source, with the source's indices."""
        self.bad_frames += [(self._first + index, why) for index, why in connection.bad_frames]
        connection.bad_frames.clear()
        self._forgotten += max(len(self.bad_frames) - _MOST_BAD, 0)
        del self.bad_frames[:-_MOST_BAD]
        self.frames_seen = self._first + connection.frames_seen

    def _open_again(self) -> bool:
        """Reconnect; returns False if the source was closed."""
        remaining = self._selection.within(0, self._given)
        try:
            opened = self._retries.run(lambda: self._connect(remaining), self._note_error, waits=True)
        except _RETRIED as error:
            raise FrameError(
                f"{self.name!r} broke off and could not be opened again for {self._patience_s:g} s: {cause_of(error)}.",
                index=self.frames_seen,
            ) from error
        if opened is None:
            return False
        self._use(opened)
        if self._closed.is_set():  # closed during the reconnection
            opened.close()
            return False
        self._count_gap(opened)
        return True

    def _note_error(self, error: Exception) -> None:
        self._error = cause_of(error)

    def _count_gap(self, opened: VideoSource) -> None:
        """Record the gap before a reconnection, whose first frame has just arrived."""
        gap_s = time.monotonic() - self._came
        self._skip(f"{self.name}: frames are missing as it was not connected for {gap_s:.1f} s", 0)
        self._first = self.frames_seen
        self._starts_s = None if self._last_s is None else self._last_s + gap_s
        fps = (opened.fps or 0.0) * self._selection.every
        self._step_s, self._ahead_s = 1 / (fps if 0 < fps <= _HIGHEST_FPS else _HIGHEST_FPS), None
        self._error, self._is_connected = None, True
        self._reconnects += 1
        _log.info("%r is connected again after %.1f s", self.name, gap_s)


def open_stream(url: str, opening: Opening = DEFAULT_OPENING) -> Source:
    """Open a camera or URL.

    Returns:
        A `LiveSource`, or a `VideoSource` if it is no live source or not to be opened again.

    Raises:
        SourceError: It can't be opened, as with `VideoSource`.
        FrameError: It broke off before its first frame.
        InputError: The selection has a start that the source can't have.
    """

    def connect(chosen: Selection) -> VideoSource:
        return open_video_source(url, chosen, opening.decoding)

    first = connect(opening.selection)
    if not (first.is_live and opening.reconnect_for):
        return first
    return LiveSource(first, connect, opening.selection, opening.reconnect_for)

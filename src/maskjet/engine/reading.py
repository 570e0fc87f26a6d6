"""Decoding ahead: each source is read in a thread of its own, a bounded number of frames before they are needed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from maskjet.errors import InputError
from maskjet.media.frames import Frame, Source, open_source

_PATIENCE_S = 2.0  # for threads that are reading; one that waits for a camera ends when FFmpeg gives up
_GLANCE_S = 0.1  # how often a wait looks whether it should go on
_log = logging.getLogger("maskjet")


class Readers:
    """Reads sources side by side; `take` returns their frames, in order for each source.

    A source that can't be opened or breaks ends there, and the others go on; `check` raises the error.

    Args:
        sources: Whatever `open_source` takes, at least one; each is closed at its end.
        room: Frames of each that wait to be taken, at least 1; at that many reading pauses.
        drops_late: A frame that finds no room takes the place of all that wait, which are counted as dropped.
        stop: Once it is set there are no more frames, also if none comes meanwhile.
    """

    def __init__(
        self, sources: Sequence[Any], room: int, *, drops_late: bool = False, stop: threading.Event | None = None
    ) -> None:
        self._stop = stop or threading.Event()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._is_closed = False
        self._first = 0  # the lane whose turn it is
        self._lanes = [_Lane(number, self._lock) for number in range(len(sources))]
        self._threads = [
            threading.Thread(
                target=self._read, args=(lane, source, room, drops_late), name="maskjet-decode", daemon=True
            )
            for lane, source in zip(self._lanes, sources, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, most: int, *, waits: bool) -> list[Frame]:
        """Take frames of one size, from each source in turn.

        Args:
            most: How many at most.
            waits: Whether to wait for one where there is none.

        Returns:
            The frames; none where none is there, all sources have ended, or `stop` is set.
        """
        with self._lock:
            while waits and not self._stop.is_set() and not any(lane.frames for lane in self._lanes):
                if not any(lane.runs for lane in self._lanes):
                    break
                self._arrived.wait(_GLANCE_S)
            taken: list[Frame] = []
            others = []  # lanes whose next frame has another size
            number, idle = self._first, 0
            while len(taken) < most and idle < len(self._lanes) and not self._stop.is_set():
                lane = self._lanes[number]
                number = (number + 1) % len(self._lanes)
                idle += 1
                if lane.frames and (not taken or lane.frames[0].image.shape == taken[0].image.shape):
                    taken.append(lane.frames.popleft())
                    lane.has_room.notify()
                    idle = 0
                elif lane.frames:
                    others.append(lane.number)
            self._first = others[0] if others else number
            return taken

    def check(self) -> None:
        """Whether all sources that have ended did so as they should.

        Raises:
            Exception: Whatever broke one of them; what broke others is in its notes.
        """
        errors = [lane.error for lane in self._lanes if lane.error is not None]
        for error in errors[1:]:
            errors[0].add_note(f"and another source: {error}")
        if errors:
            raise errors[0]

    @property
    def dropped(self) -> int:
        """Frames dropped so far."""
        return sum(lane.dropped for lane in self._lanes)

    def close(self) -> None:
        """Stop reading and wait, a bounded time, until the threads have ended; may be called twice."""
        with self._lock:
            self._is_closed = True
            for lane in self._lanes:
                lane.has_room.notify()
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _read(self, lane: _Lane, source: Any, room: int, drops_late: bool) -> None:
        error = None
        try:
            opened = open_source(source)
            frames = iter(opened)  # before it is ours to close: another may be reading it
            with opened:
                if drops_late:
                    _check_is_live(opened)
                for frame in frames:
                    if not self._put(lane, frame, room, opened if drops_late else None):
                        return
        except BaseException as caught:
            error = caught
            if len(self._lanes) > 1:
                _log.warning("source %d broke off, the others go on: %s", lane.number, caught)
        finally:
            with self._lock:
                lane.error, lane.runs = error, False
                self._arrived.notify_all()

    def _put(self, lane: _Lane, frame: Frame, room: int, dropping: Source | None) -> bool:
        """Add a frame; False if nobody wants any more."""
        if lane.number:
            # As dataclasses.replace would in three times the time, which counts at thousands of frames per second.
            frame = Frame(
                frame.index, frame.time_s, frame.image, frame.source, frame.name, lane.number, frame.index_is_exact
            )
        with self._lock:
            if dropping is not None and len(lane.frames) >= room:
                dropping.frames_dropped += len(lane.frames)
                lane.dropped += len(lane.frames)
                lane.frames.clear()
            while len(lane.frames) >= room and not self._is_closed:
                lane.has_room.wait()
            lane.frames.append(frame)
            self._arrived.notify_all()
            return not self._is_closed


class _Lane:
    """One source's frames."""

    def __init__(self, number: int, lock: threading.Lock) -> None:
        self.number = number
        self.has_room = threading.Condition(lock)
        self.frames: deque[Frame] = deque()
        self.error: BaseException | None = None
        self.runs = True
        self.dropped = 0


def _check_is_live(source: Source) -> None:
    if source.kind == "image" or (source.kind == "video" and not source.is_live):
        raise InputError(f"drop_late must be False for {source.name!r}: it is a file, whose frames wait.")

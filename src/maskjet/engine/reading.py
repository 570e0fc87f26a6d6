"""Decoding ahead: one thread per source reads a bounded number of frames before they are needed."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from maskjet.errors import InputError
from maskjet.media.decoding import ON_CPU, Decoding
from maskjet.media.frames import Frame, Source, open_source

_PATIENCE_S = 2.0  # to wait for reading threads; one that waits for a camera ends when FFmpeg gives up
_GLANCE_S = 0.1  # how often a wait checks `stop`
_log = logging.getLogger("maskjet")


class Readers:
    """Reads sources side by side; `take` returns their frames, in order for each source.

    A source that can't be opened or breaks ends there, and the others go on; `check` raises the error.

    Args:
        sources: Arguments of `open_source`, at least one; each source is closed at its end.
        decoding: Where videos are decoded.
        on_fallback: Called with the reason why a source is not decoded there, once per source.
        room: Most frames of a source that wait to be taken, at least 1; with that many, reading pauses.
        drops_late: Whether a frame that finds no room replaces all waiting ones, which count as dropped.
        whole_batches: Whether `take` waits until a batch is full, so that the same frames always share one, whenever
            they come; for one source, with room for two batches.
        stop: Once it is set, `take` returns no more frames and stops waiting.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        room: int,
        *,
        decoding: Decoding = ON_CPU,
        on_fallback: Callable[[str], object] = lambda _: None,
        drops_late: bool = False,
        whole_batches: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._decoding, self._on_fallback, self._room = decoding, on_fallback, room
        self._stop, self._whole_batches = stop or threading.Event(), whole_batches
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._is_closed = False
        self._low = room // 2  # waking a thread costs more than the frame: it then reads several
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

    def take(self, most: int, *, waits: bool, fills: bool = False) -> list[Frame]:
        """Take frames of one size, from each source in turn.

        Args:
            most: Largest number of frames.
            waits: Whether to wait for a frame if there is none.
            fills: Whether to take none as long as more may come for the same batch.

        Returns:
            The frames; empty if none is ready, they are too few, all sources have ended, or `stop` is set.
        """
        with self._lock:
            while waits and not self._stop.is_set() and not self._has_batch(most):
                if not any(lane.runs for lane in self._lanes):
                    break
                self._arrived.wait(_GLANCE_S)
            if self._stop.is_set() or (fills and not self._is_full(most)) or not self._has_batch(most):
                return []
            taken: list[Frame] = []
            others = []  # lanes whose next frame has another size
            number, idle = self._first, 0
            while len(taken) < most and idle < len(self._lanes):
                lane = self._lanes[number]
                number = (number + 1) % len(self._lanes)
                idle += 1
                if lane.frames and (not taken or lane.frames[0].pixels.shape == taken[0].pixels.shape):
                    taken.append(lane.frames.popleft())
                    if lane.is_waiting and len(lane.frames) <= self._low:
                        lane.has_room.notify()
                    idle = 0
                elif lane.frames:
                    others.append(lane.number)
            self._first = others[0] if others else number
            return taken

    def _has_batch(self, most: int) -> bool:
        """Whether there is a frame; with `whole_batches`, whether no further frame can join the next batch."""
        if not self._whole_batches:
            return any(lane.frames for lane in self._lanes)
        (lane,) = self._lanes
        shapes = [frame.pixels.shape for frame in lane.frames]
        return bool(shapes) and (not lane.runs or len(shapes) >= most or shapes.count(shapes[0]) < len(shapes))

    def _is_full(self, most: int) -> bool:
        """Whether as many frames are ready as a batch takes, or as there can be."""
        ready = sum(len(lane.frames) for lane in self._lanes)
        return ready >= most or ready >= sum(self._room if lane.runs else len(lane.frames) for lane in self._lanes)

    def check(self) -> None:
        """Check that no source broke.

        Raises:
            Exception: The error of a source that broke; its notes hold those of others.
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
        for lane in self._lanes:
            if lane.source is not None:
                lane.source.close()  # a live one may wait to be opened again
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _read(self, lane: _Lane, source: Any, room: int, drops_late: bool) -> None:
        error = None
        try:
            opened = open_source(source, decoder=self._decoding)
            frames = iter(opened)  # raises if the source is being read already, so that it is not closed here
            lane.source = opened
            with opened:
                if drops_late:
                    _check_is_live(opened)
                for frame in frames:
                    if opened.fallback is not None and not lane.falls_back:
                        lane.falls_back = True
                        self._on_fallback(opened.fallback)
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
        """Add a frame; returns False if the readers were closed."""
        if lane.number:
            # dataclasses.replace takes three times as long, which counts at thousands of frames per second.
            frame = Frame(frame.index, frame.time_s, frame.pixels, frame.source, frame.name, lane.number)
        with self._lock:
            if dropping is not None and len(lane.frames) >= room:
                dropping.frames_dropped += len(lane.frames)
                lane.dropped += len(lane.frames)
                lane.frames.clear()
            while len(lane.frames) >= room and not self._is_closed:
                lane.is_waiting = True
                lane.has_room.wait()
            lane.is_waiting = False
            lane.frames.append(frame)
            self._arrived.notify_all()
            return not self._is_closed


class _Lane:
    """The waiting frames of one source, and how reading it ended."""

    def __init__(self, number: int, lock: threading.Lock) -> None:
        self.number = number
        self.has_room = threading.Condition(lock)
        self.is_waiting = False  # for room
        self.frames: deque[Frame] = deque()
        self.source: Source | None = None  # once it is open
        self.error: BaseException | None = None
        self.runs = True
        self.dropped = 0
        self.falls_back = False


def _check_is_live(source: Source) -> None:
    if source.kind == "image" or (source.kind == "video" and not source.is_live):
        raise InputError(f"drop_late must be False for {source.name!r}: it is a file, whose frames wait.")

"""Decode ahead: a thread per source fills a bounded queue of frames."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from maskjet.engine.deadlines import Deadlines
from maskjet.errors import InputError, SourceError
from maskjet.sources.decoding import ON_CPU, Decoding
from maskjet.sources.frames import Frame, Source, open_source

_PATIENCE_S = 2.0  # longest wait for reading threads; one that waits for a camera ends when FFmpeg gives up
_SLOWEST = 16  # largest distance of the frames taken of a source, where the machine is full
_GLANCE_S = 0.1  # how often a wait checks `stop`
_log = logging.getLogger("maskjet")


class Readers:
    """Reads sources in parallel, one thread each; `take` returns frames, in order within each source.

    If a source can't be opened or fails, the others go on, and `check` raises its error.

    Args:
        sources: Arguments of `open_source`, at least one; each source is closed at its end.
        kind_of: Tells frames apart that can't share a batch.
        decoding: Where videos and JPEGs are decoded.
        on_fallback: Called with the reason why the CPU decodes instead, once per source, or per item of a list.
        room: Capacity of a source's queue in frames, at least 1; reading pauses while it is full.
        cut: Makes of a frame those to take in its place, in the thread that reads it; they are queued together.
        keeps_yuv: As an attribute of `Source`.
        drops_late: Whether a new frame replaces the last one in the queue, which counts as dropped, but is left once
            a part of what `cut` made of it was taken.
        deadlines: Order of live frames, in place of the sources' turns, and which of them are dropped; None for none.
        whole_batches: Whether `take` waits until a batch is full, so that the same frames share a batch whatever the
            timing; for one source, with room for two batches.
        stop: Once it is set, `take` returns no more frames and stops waiting.
    """

    def __init__(
        self,
        sources: Sequence[Any],
        room: int,
        *,
        kind_of: Callable[[Frame], Hashable] = lambda _: None,
        decoding: Decoding = ON_CPU,
        on_fallback: Callable[[str], object] = lambda _: None,
        cut: Callable[[Frame], Sequence[Frame]] | None = None,
        keeps_yuv: bool = False,
        drops_late: bool = False,
        deadlines: Deadlines | None = None,
        whole_batches: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        self._kind_of, self._cut, self._room = kind_of, cut, room
        self._decoding, self._on_fallback = decoding, on_fallback
        self._keeps_yuv, self._drops_late, self._whole_batches = keeps_yuv, drops_late, whole_batches
        self._deadlines = deadlines
        self._stop = stop or threading.Event()
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._is_closed = False
        self._low = room // 2  # frames left when reading resumes: waking a thread costs more than reading a frame
        self._first = 0  # the queue to take from next
        self._wanted = 1  # batch size of the last `take`
        self._queues = [_Queue(number, self._lock) for number in range(len(sources))]
        self._threads = [
            threading.Thread(target=self._read, args=(queue, source), name="maskjet-decode", daemon=True)
            for queue, source in zip(self._queues, sources, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def take(self, most: int, *, waits: bool, fills: bool = False) -> list[Frame]:
        """Take up to `most` frames of one kind, of the sources in turn or by their deadlines; see `Feed.take`.

        Returns:
            The frames; empty if none is ready, too few are, all sources have ended, or `stop` is set.
        """
        with self._lock:
            self._wanted = most
            self._drop_hopeless()
            while waits and not self._stop.is_set() and not self._has_batch(most):
                if not any(queue.is_reading for queue in self._queues):
                    break
                self._arrived.wait(_GLANCE_S)
                self._drop_hopeless()
            if self._stop.is_set() or (fills and not self._is_full(most)) or not self._has_batch(most):
                return []
            taken: list[Frame] = []
            kind: Hashable = None
            others = []  # queues whose next frame is of another kind
            order, place, idle = self._order(), 0, 0
            while self._deadlines is not None and most > 1 and not self._deadlines.fits(order[0].frames[0], most):
                most -= 1
            while len(taken) < most and idle < len(order):
                queue = order[place]
                place = (place + 1) % len(order)
                idle += 1
                if queue.frames and (not taken or self._kind_of(queue.frames[0]) == kind):
                    kind = kind if taken else self._kind_of(queue.frames[0])
                    taken.append(queue.frames.popleft())
                    if queue.is_waiting and len(queue.frames) <= self._low:
                        queue.has_room.notify()
                    idle = 0
                elif queue.frames:
                    others.append(queue.number)
            self._first = others[0] if others else order[place].number
            if self._deadlines is not None:
                self._deadlines.begin(len(taken))
            return taken

    def _order(self) -> Sequence[_Queue]:
        """The queues in the order in which a batch takes a frame of each."""
        deadlines = self._deadlines
        if deadlines is None:
            return self._queues[self._first :] + self._queues[: self._first]
        ready = [queue for queue in self._queues if queue.frames]
        return sorted(ready, key=lambda queue: deadlines.urgency(queue.frames[0]))

    def _drop_hopeless(self) -> None:
        """Drop the frames that can't be ready in time, and let a source give way if there are too many."""
        deadlines = self._deadlines
        if deadlines is None:
            return
        for queue in self._queues:
            while queue.frames and not deadlines.fits(queue.frames[0]):
                self._drop(queue)
        verdict = deadlines.judge()
        if verdict is not None:
            self._give_way(deadlines, is_full=verdict == "full")

    def _drop(self, queue: _Queue, *, is_newest: bool = False) -> None:
        """Drop a waiting frame; of tiles all those of the newest one."""
        for _ in range(queue.last if is_newest else 1):
            queue.frames.pop() if is_newest else queue.frames.popleft()
        queue.dropped += 1
        if queue.source is not None:
            queue.source.frames_dropped += 1
        if self._deadlines is not None:
            self._deadlines.count(dropped=1)

    def _give_way(self, deadlines: Deadlines, *, is_full: bool) -> None:
        """Lower the rate of the least important source, or end it; or raise the rates of those that were lowered."""
        reading = [(each, each.source) for each in self._queues if each.is_reading and each.source is not None]
        if not is_full:
            for _, source in reading:
                source.taken_every = max(source.taken_every // 2, 1)
            return
        reading = [(queue, source) for queue, source in reading if source.taken_every < _SLOWEST]
        if not reading:
            return

        def importance(each: tuple[_Queue, Source]) -> tuple[int, int, int]:
            return deadlines.priority(each[0].number), each[1].taken_every, -each[0].number

        queue, source = min(reading, key=importance)
        why = f"of {source.name!r}, as the results of all can't be ready within {deadlines.max_latency:g} s"
        if deadlines.when_full == "refuse":
            queue.error = SourceError(f"No frames are taken {why}.")
            source.close()
            _log.warning("%s", queue.error)
        else:
            source.taken_every *= 2
            _log.warning("one frame in %d is taken %s", source.taken_every, why)

    def _has_batch(self, most: int) -> bool:
        """Whether a frame is queued; with `whole_batches`, whether the next batch is complete."""
        if not self._whole_batches:
            return any(queue.frames for queue in self._queues)
        (queue,) = self._queues
        if not queue.frames or len(queue.frames) >= most or not queue.is_reading:
            return bool(queue.frames)
        first = self._kind_of(queue.frames[0])
        return any(self._kind_of(frame) != first for frame in queue.frames)

    def _is_full(self, most: int) -> bool:
        """Whether a full batch is queued or all queues are full."""
        ready = sum(len(queue.frames) for queue in self._queues)
        return ready >= most or all(len(queue.frames) >= self._room for queue in self._queues if queue.is_reading)

    def check(self) -> None:
        """Check that no source failed.

        Raises:
            Exception: The error of the first source that failed; its notes name those of others.
        """
        errors = [queue.error for queue in self._queues if queue.error is not None]
        for error in errors[1:]:
            errors[0].add_note(f"and another source: {error}")
        if errors:
            raise errors[0]

    def done(self, frames: Sequence[Frame], taken_s: float) -> None:
        """Note that the results of a batch, taken at that time, are handed over now."""
        now = time.monotonic()
        for frame in frames:
            if frame.arrived_s is not None and (source := self._queues[frame.stream].source) is not None:
                source.note_latency(now - frame.arrived_s)
        if self._deadlines is not None and frames:
            with self._lock:
                self._deadlines.learn(taken_s)

    @property
    def dropped(self) -> int:
        """Frames dropped so far."""
        return sum(queue.dropped for queue in self._queues)

    def close(self) -> None:
        """Stop reading and wait a bounded time for the threads; may be called twice."""
        with self._lock:
            self._is_closed = True
            for queue in self._queues:
                queue.has_room.notify()
        for queue in self._queues:
            if queue.source is not None:
                queue.source.close()  # a live one may wait to be opened again
        deadline = time.monotonic() + _PATIENCE_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _read(self, queue: _Queue, source: Any) -> None:
        error = None
        try:
            opened = open_source(source, decoder=self._decoding)
            frames = iter(opened)  # raises if another reader uses the source; then it must stay as it is
            queue.source, opened.keeps_yuv = opened, self._keeps_yuv
            with opened:
                if self._drops_late or self._deadlines is not None:
                    _check_is_live(opened, "drop_late must be False" if self._drops_late else "deadlines must be None")
                opened.on_fallback = self._on_fallback
                has_told = opened.kind == "list"  # a list reports its own fallback
                for frame in frames:
                    if opened.fallback is not None and not has_told:
                        has_told = True
                        self._on_fallback(opened.fallback)
                    if not self._put(queue, frame, opened):
                        return
        except BaseException as caught:
            error = caught
            if len(self._queues) > 1:
                _log.warning("source %d broke off, the others go on: %s", queue.number, caught)
        finally:
            with self._lock:
                queue.error, queue.is_reading = queue.error or error, False
                self._arrived.notify_all()

    def _put(self, queue: _Queue, frame: Frame, source: Source) -> bool:
        """Queue a frame; returns False if the readers were closed."""
        if queue.number:
            # dataclasses.replace takes three times as long, which counts at thousands of frames per second.
            about = frame.index, frame.time_s, frame.pixels, frame.source, frame.name
            frame = Frame(*about, queue.number, (), frame.arrived_s)
        try:
            pieces = [frame] if self._cut is None else self._cut(frame)
        except InputError as error:
            if source.kind != "list":  # in a list, other images may have valid sizes
                raise
            source.bad_frames.append((frame.index, str(error)))
            return True
        with self._lock:
            if self._deadlines is not None:
                self._deadlines.count(seen=1)
                queue.read += 1
                if queue.read % source.taken_every:
                    source.frames_dropped += 1
                    queue.dropped += 1
                    return not self._is_closed
                if len(queue.frames) >= self._room:
                    self._drop(queue)
            if self._drops_late and len(queue.frames) >= queue.last > 0:
                self._drop(queue, is_newest=True)
            while len(queue.frames) >= self._room and not (self._is_closed or self._drops_late):
                queue.is_waiting = True
                queue.has_room.wait()
            queue.is_waiting, queue.last = False, len(pieces)
            queue.frames += pieces
            if not self._whole_batches or self._has_batch(self._wanted):  # waking a thread costs as much as the rest
                self._arrived.notify_all()
            return not self._is_closed


class _Queue:
    """The decoded frames of one source that wait to be taken, and the state of its thread."""

    def __init__(self, number: int, lock: threading.Lock) -> None:
        self.number = number
        self.has_room = threading.Condition(lock)
        self.is_waiting = False  # whether the thread waits for room
        self.frames: deque[Frame] = deque()
        self.source: Source | None = None  # None until it is open
        self.error: BaseException | None = None
        self.is_reading = True
        self.dropped = 0
        self.read = 0  # frames that came, if there are deadlines
        self.last = 0  # pieces of the newest frame, at the end of `frames`


def _check_is_live(source: Source, rule: str) -> None:
    if source.kind == "image" or (source.kind == "video" and not source.is_live):
        raise InputError(f"{rule} for {source.name!r}: it is a file, whose frames wait.")

"""Drawing and encoding in threads, so that whoever detects does not wait for it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event

from maskjet.errors import InputError

_MOST_WAITING = 3  # frames that no thread has begun, 19 MB of 1080p: enough to even out key frames, which take longer


class DrawingThreads:
    """Does a sink's work in threads of its own, a few frames behind.

    The work on a frame is a generator that yields twice: what comes before the first yield is done in the order of the
    frames, then some beside other frames' work, and what comes after the second yield in order again. Once the work on
    a frame has failed, that on later ones is left out.

    Args:
        threads: How many frames are worked on at once.
    """

    def __init__(self, threads: int = 1) -> None:
        # Threads start with the first frames: of thousands of outputs, few are being written.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="maskjet-draw")
        self._most_unfinished = threads + _MOST_WAITING
        self._unfinished: deque[Future[None]] = deque()
        self._added = 0
        self._failed = math.inf  # the first frame of which work has failed
        self._begun = self._finished = Event()  # set once the frame added last has had its turns
        self._begun.set()
        self.is_closed = False

    def add(self, work: Callable[[], Iterator[None]]) -> None:
        """Have a frame's work done; waits only while as many are unfinished as may be.

        Raises:
            InputError: The sink is closed.
            Exception: The work on an earlier frame failed.
        """
        if self.is_closed:
            raise InputError("The output is closed; open another sink.")
        while self._unfinished and (self._unfinished[0].done() or len(self._unfinished) >= self._most_unfinished):
            self._unfinished[0].result()
            self._unfinished.popleft()
        begun, finished = (self._begun, Event()), (self._finished, Event())
        self._unfinished.append(self._threads.submit(self._do, self._added, work(), begun, finished))
        self._added, self._begun, self._finished = self._added + 1, begun[1], finished[1]

    def _do(self, number: int, work: Iterator[None], begun: tuple[Event, Event], finished: tuple[Event, Event]) -> None:
        try:
            with _turn(*begun):
                self._go_on(number, work)
            self._go_on(number, work)
        finally:
            with _turn(*finished):
                self._go_on(number, work)  # nothing if it has failed

    def _go_on(self, number: int, work: Iterator[None]) -> None:
        if number > self._failed:
            return
        try:
            next(work, None)
        except BaseException:
            self._failed = min(self._failed, number)
            raise

    def close(self) -> BaseException | None:
        """Wait until all work is done; returns the error of work that failed."""
        self.is_closed = True
        wait(self._unfinished)
        self._threads.shutdown()
        errors = (work.exception() for work in self._unfinished)
        return next((error for error in errors if error is not None), None)


def beside(work: Callable[[], object]) -> Iterator[None]:
    """Work on a frame, all of which is done beside other frames'."""
    yield
    work()


@contextmanager
def _turn(before: Event, own: Event) -> Iterator[None]:
    """Wait until the turn of the frame before has ended, and end this one with the block; wakes the next one alone."""
    before.wait()
    try:
        yield
    finally:
        own.set()

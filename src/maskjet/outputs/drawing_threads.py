"""Draw and encode in threads, in parallel with detection."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Semaphore

from maskjet.errors import InputError

MOST_WAITING = 3  # queued frames, 19 MB of 1080p: enough to even out slower key frames


class DrawingThreads:
    """Runs a sink's work in threads, a few frames behind.

    The work on a frame is a generator that yields twice: what comes before the first yield is done in the order of the
    frames, then some beside other frames' work, and what comes after the second yield in order again. Once the work on
    a frame has failed, that on later ones is left out.

    No thread waits for its frame's turn to end: whichever finds that it has come ends all frames that are ready.
    """

    def __init__(self, threads: int = 1) -> None:
        # Threads start on demand: of thousands of outputs, few are written at a time.
        self._threads, self._count = ThreadPoolExecutor(threads, thread_name_prefix="maskjet-draw"), threads
        self._room = Semaphore(threads + MOST_WAITING)
        self._waiting: deque[Iterator[None]] = deque()
        self._ready: dict[int, Iterator[None]] = {}  # generators before their last, ordered step, by frame number
        self._running = self._begun = self._ended = 0
        self._changing, self._beginning, self._ending = Lock(), Lock(), Lock()
        self._failed = math.inf  # number of the first failed frame
        self._error: BaseException | None = None
        self.is_closed = False

    def add(self, work: Callable[[], Iterator[None]]) -> None:
        """Queue a frame's work; blocks while too many frames are unfinished. Raises the error of an earlier frame."""
        if self.is_closed:
            raise InputError("The output is closed; open another sink.")
        self._room.acquire()
        if self._error is not None:
            self._room.release()
            raise self._error
        with self._changing:
            self._waiting.append(work())
            if self._running < self._count:
                self._threads.submit(self._run)
                self._running += 1

    def _run(self) -> None:
        while True:
            with self._beginning:
                with self._changing:
                    if not self._waiting:
                        self._running -= 1
                        return
                    work = self._waiting.popleft()
                number, self._begun = self._begun, self._begun + 1
                self._go_on(number, work)
            self._go_on(number, work)
            self._ready[number] = work
            while self._ended in self._ready and self._ending.acquire(blocking=False):
                while (ready := self._ready.pop(self._ended, None)) is not None:
                    self._go_on(self._ended, ready)
                    self._ended += 1
                    self._room.release()
                self._ending.release()

    def _go_on(self, number: int, work: Iterator[None]) -> None:
        if number > self._failed:
            return
        try:
            next(work, None)
        except BaseException as error:
            with self._changing:
                if number < self._failed:
                    self._failed, self._error = number, error

    def close(self) -> BaseException | None:
        """Wait until all work is done; returns the first error, or None."""
        self.is_closed = True
        self._threads.shutdown()
        return self._error


def beside(work: Callable[[], object]) -> Iterator[None]:
    """Wrap a function as a task without ordered steps, run in parallel with other frames."""
    yield
    work()

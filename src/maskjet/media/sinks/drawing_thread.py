"""Drawing and encoding in a thread, so that whoever detects does not wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from maskjet.errors import InputError

_MOST_UNFINISHED = 4  # frames: 25 MB of 1080p; enough to even out key frames, which take longer to encode


class DrawingThread:
    """Does a sink's work in a thread of its own, in order, up to four frames behind.

    Once a piece of work has failed, those after it are left out.
    """

    def __init__(self) -> None:
        # The thread starts with the first frame: of thousands of outputs, few are being written.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="maskjet-draw")
        self._unfinished: deque[Future[None]] = deque()
        self._has_failed = False
        self.is_closed = False

    def add(self, work: Callable[[], None]) -> None:
        """Do a frame's work after that of the frames before; waits only while four are unfinished.

        Raises:
            InputError: The sink is closed.
            Exception: The work of an earlier frame failed.
        """
        if self.is_closed:
            raise InputError("The output is closed; open another sink.")
        while self._unfinished and (self._unfinished[0].done() or len(self._unfinished) >= _MOST_UNFINISHED):
            self._unfinished[0].result()
            self._unfinished.popleft()
        self._unfinished.append(self._thread.submit(self._do, work))

    def _do(self, work: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            work()
        except BaseException:
            self._has_failed = True
            raise

    def close(self) -> BaseException | None:
        """Wait until all work is done; returns the error of work that failed."""
        self.is_closed = True
        wait(self._unfinished)
        self._thread.shutdown()
        errors = (work.exception() for work in self._unfinished)
        return next((error for error in errors if error is not None), None)

"""Annotated video in a separate process: with a GPU, this process's interpreter lock is the bottleneck.

Frames go to it through memory that both have, all else through a connection. It stays for the next video.
"""

from __future__ import annotations

import atexit
import logging
import math
import mmap
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from logging import LogRecord
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import limits
from maskjet.detections import Detections
from maskjet.drawing import Redaction, Style
from maskjet.errors import InputError, OutputError, translate_errors
from maskjet.host import process, runner
from maskjet.host.files import naming
from maskjet.outputs.drawing_threads import DrawingThreads
from maskjet.outputs.sink import Sink
from maskjet.outputs.video import MOST_BEHIND, AnnotatedVideo
from maskjet.sources.frames import Frame, Source

_LEAST_CORES = 8  # with fewer cores, decoding and encoding use them all
_THREADS = 4  # threads that copy frames into shared memory
_MOST_SENT = _THREADS + 2  # most unacknowledged frames
_SLOTS = _MOST_SENT + MOST_BEHIND  # frames in shared memory
_NO_PIXELS = np.empty((0, 0, 3), np.uint8)
_log = logging.getLogger("maskjet")
_idle: list[_Drawer] = []
_changing = threading.Lock()


def prepare(videos: int) -> bool:
    """Start drawing processes for parallel videos, which takes seconds; returns whether that is possible and faster."""
    cores = len(os.sched_getaffinity(0))
    if cores < _LEAST_CORES or videos > cores // 2 or not torch.cuda.is_available():
        return False
    with suppress(OSError), _changing:
        _idle.extend(_Drawer() for _ in range(videos - len(_idle)))
        return True
    return False


@atexit.register
def end_idle() -> None:
    """End idle drawing processes."""
    with _changing:
        drawers, _idle[:] = list(_idle), []
    for drawer in drawers:
        drawer.end()


os.register_at_fork(after_in_child=_idle.clear)  # they belong to the parent


class VideoProcess(Sink):
    """Proxy of an `AnnotatedVideo` in another process; OutputError if that ends before the video is whole."""

    def __init__(self, path: str, *, source: Source | None, style: Style, **others: Any) -> None:
        self.redacts = isinstance(style, Redaction)
        self._path, self._source = path, source
        self._threads = DrawingThreads(_THREADS)
        self._frames = self._sent = self._answered = 0
        self._has_ended = False  # whether the process has ended
        with naming(path), _changing:
            self._drawer = _idle.pop() if _idle else _Drawer()
        try:
            with naming(path):
                self._send("open", Path.cwd(), path, {**others, "source": _described(source), "style": style})
            self._await(self._sent)
        except Exception:
            self._release()
            raise

    def write(self, frame: Frame, detections: Detections) -> None:
        """Queue one frame for drawing and encoding; its image must not change afterwards."""
        self._threads.add(lambda: self._write(frame, detections))

    def _write(self, frame: Frame, detections: Detections) -> Iterator[None]:
        shape = (*frame.size_hw, 3)
        self._await(2 + self._frames - _MOST_SENT)  # answers to the opening, and to all but the last frames
        with naming(self._path):
            offset = self._drawer.memory.reserve(self._frames, math.prod(shape))
            pixels = self._drawer.memory.view(offset, shape)
        self._frames += 1
        colours = None if self._source is None else self._source.picture_format
        yield
        frame.copy_to(pixels)
        yield
        self._send("write", replace(frame, pixels=_NO_PIXELS), detections, colours, offset, shape)

    def close(self) -> None:
        """Finish the file and give it its name; without frames there is no file, after an error a partial one."""
        error = self._finish("close")
        if error is not None:
            raise error

    def abandon(self) -> None:
        """Keep the partial file, playable, under its temporary name."""
        self._finish("abandon")

    def _finish(self, how: str) -> BaseException | None:
        """End the video; returns the first error of its frames or of ending it."""
        if self._threads.is_closed:
            return None
        error = self._threads.close()
        self._send(how if error is None else "abandon")
        while self._answered < self._sent:
            try:
                self._await(self._sent)
            except Exception as failed:
                error = error or failed
                if self._has_ended:
                    break
        self._release()
        return error

    def _release(self) -> None:
        """Return the process to the idle pool, unless it has ended."""
        if self._has_ended:
            self._drawer.end()
            return
        with _changing:
            _idle.append(self._drawer)

    def _send(self, *request: Any) -> None:
        with translate_errors(InputError, f"out must be given what pickle takes, {self._path!r} is not"):
            data = pickle.dumps(request)  # `Connection.send` uses the slow pickler in Python
        self._sent += 1
        with suppress(OSError):  # `_await` notices that the process has ended
            self._drawer.connection.send_bytes(data)

    def _await(self, answers: int) -> None:
        """Wait until `answers` requests are answered; raises an error sent as an answer."""
        while self._answered < answers:
            try:
                self.paths, error, records = self._drawer.connection.recv()
            except (EOFError, OSError):
                self._has_ended = True
                how = runner.tell(runner.end(self._drawer.process))
                raise OutputError(f"out must be written, {self._path!r} is not whole: its process {how}.") from None
            self._answered += 1
            for record in records:
                if _log.isEnabledFor(record.levelno):  # `handle` does not check the level
                    _log.handle(record)
            if error is not None:
                raise error


def _described(source: Source | None) -> Any:
    """Picklable description of a source for `AnnotatedVideo`; colours are sent with each frame."""
    if source is None:
        return None
    names = ("fps", "kind", "is_live", "name")
    return SimpleNamespace(**{name: getattr(source, name) for name in names})


class _Memory:
    """Growing shared memory for frames; growth at least doubles it, and keeps existing frames in place."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._begin = self._frame_bytes = 0
        self._mapped: mmap.mmap | bytes = b""

    def reserve(self, number: int, count: int) -> int:
        """Offset for a frame of `count` bytes, in a ring of _SLOTS frames."""
        if count > self._frame_bytes:
            begin, count = os.fstat(self.descriptor).st_size, max(count, 2 * self._frame_bytes)
            os.ftruncate(self.descriptor, begin + _SLOTS * count)
            self._begin, self._frame_bytes = begin, count
        return self._begin + number % _SLOTS * self._frame_bytes

    def view(self, offset: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """View of the frame at an offset."""
        count = math.prod(shape)
        if len(self._mapped) < offset + count:
            self._mapped = mmap.mmap(self.descriptor, 0)
        return np.frombuffer(self._mapped, np.uint8, count, offset).reshape(shape)


class _Drawer:
    """A drawing process; encodes one video at a time."""

    def __init__(self) -> None:
        self.memory = _Memory(os.memfd_create("maskjet-frames"))
        try:
            self.process, self.connection = runner.start(__name__, self.memory.descriptor)
        except OSError:
            os.close(self.memory.descriptor)
            raise

    def end(self) -> None:
        """Kill the process, which must be idle or dead."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        os.close(self.memory.descriptor)


def main(descriptor: int, memory: int) -> None:
    """Drawing process: serve requests over an inherited socket until it is closed."""
    process.suit_program()
    process.keep_freed_memory()
    limits.read_environment()
    asking, frames, records = Connection(descriptor), _Memory(memory), SimpleQueue[LogRecord]()
    _log.addHandler(QueueHandler(records))
    sink: AnnotatedVideo | None = None
    source: Any = None
    with suppress(EOFError, OSError):
        while True:
            name, *given = asking.recv()
            error: Exception | None = None
            try:
                if name == "open":
                    folder, path, others = given
                    os.chdir(folder)
                    sink, source = None, others["source"]
                    sink = AnnotatedVideo(path, **others, overwrites_frames=True)
                elif name == "write":
                    frame, detections, colours, offset, shape = given
                    if source is not None:
                        source.picture_format = colours
                    assert sink is not None
                    sink.write(replace(frame, pixels=frames.view(offset, shape)), detections)
                else:
                    getattr(sink, name)()
            except Exception as failed:
                error = _portable(failed)
            logged = [records.get() for _ in range(records.qsize())]
            asking.send_bytes(pickle.dumps((() if sink is None else sink.paths, error, logged)))
    if sink is not None:
        sink.abandon()


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled; others become an OutputError."""
    with suppress(Exception):
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]
    return OutputError(f"{type(error).__name__}: {error}")

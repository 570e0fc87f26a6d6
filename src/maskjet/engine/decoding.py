"""Decoding ahead: a source is read in its own thread, a bounded number of frames before they are needed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from maskjet.frames import Frame, open_source

_POLL_S = 0.1  # how soon a reader that waits for room notices that nobody listens any more


@dataclass(frozen=True)
class _End:
    """The source is exhausted, or failed with `error`."""

    error: BaseException | None


def decode_ahead(source: Any, depth: int) -> Generator[Frame]:
    """Iterate over a source's frames, at most `depth` of them decoded ahead.

    Args:
        source: Whatever `open_source` takes; a source it returned is left open.
        depth: Frames held at most, at least 1.

    Yields:
        The frames in order. Closing the iterator stops the thread.

    Raises:
        SourceError: The source can't be opened or breaks; raised where the frame would have come.
    """
    frames: queue.Queue[Frame | _End] = queue.Queue(maxsize=depth)
    is_abandoned = threading.Event()

    def put(item: Frame | _End) -> bool:
        while not is_abandoned.is_set():
            try:
                frames.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        error = None
        try:
            with open_source(source) as opened:
                for frame in opened:
                    if not put(frame):
                        return
        except BaseException as caught:
            error = caught
        put(_End(error))

    reader = threading.Thread(target=read, name="maskjet-decode", daemon=True)
    reader.start()
    try:
        while True:
            item = frames.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        is_abandoned.set()
        reader.join()

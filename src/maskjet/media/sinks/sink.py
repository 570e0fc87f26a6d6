"""The interface of output sinks, and several sinks combined into one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np

from maskjet.detections import Detections
from maskjet.media.frames import Frame


class Sink(ABC):
    """Takes frames with their detections, in order; a context manager.

    A file is written under a temporary name beside its own and renamed by `close`, once it is whole. If an exception
    ends the context, `abandon` is called instead: an existing file stays, and the partial output is kept beside it.
    KeyboardInterrupt closes the sink: a user who stops a run wants the results so far.

    Attributes:
        paths: Current paths of the output; empty if there is none.
    """

    paths: Sequence[str] = ()

    @abstractmethod
    def write(self, frame: Frame, detections: Detections) -> None:
        """Add one frame."""

    @abstractmethod
    def close(self) -> None:
        """Finish the output; may be called twice."""

    @abstractmethod
    def abandon(self) -> None:
        """Keep the partial output, readable, under its temporary name; does nothing after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            self.close()
            return
        self.abandon()
        if self.paths:
            error.add_note(f"What was written lies in {', '.join(self.paths)}.")


class Sinks(Sink):
    """Several sinks as one.

    Attributes:
        left_out: Number of detections that were not written because their box or confidence is not finite.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._gather()
        self.left_out = 0

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame to each sink."""
        detections = self._finite(detections)
        for sink in self._sinks:
            sink.write(frame, detections)

    def _finite(self, detections: Detections) -> Detections:
        """Drop detections that are not finite: JSON has no such numbers, and they can't be drawn."""
        is_finite = np.isfinite(detections.xyxy).all(axis=1) & np.isfinite(detections.confidence)
        if is_finite.all():
            return detections
        self.left_out += int(np.count_nonzero(~is_finite))
        return detections[is_finite]

    def close(self) -> None:
        """Close each sink; if one fails, the others are closed all the same."""
        self._call_each("close")

    def abandon(self) -> None:
        """Abandon each sink; if one fails, the others are abandoned all the same."""
        self._call_each("abandon")

    def _call_each(self, method: str) -> None:
        with ExitStack() as stack:
            stack.callback(self._gather)
            for sink in reversed(self._sinks):
                stack.callback(getattr(sink, method))

    def _gather(self) -> None:
        self.paths = list(dict.fromkeys(path for sink in self._sinks for path in sink.paths))


class SinksBySource(Sinks):
    """Sinks of several sources: shared ones take all frames, owned ones those of one source.

    Args:
        shared: Sinks for the frames of all sources.
        owned: Sinks per source, in the order of `Frame.stream`.
    """

    def __init__(self, shared: Sequence[Sink], owned: Sequence[Sequence[Sink]]) -> None:
        super().__init__([*shared, *(sink for own in owned for sink in own)])
        self._of_source = [[*shared, *own] for own in owned]

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame to the sinks of its source."""
        detections = self._finite(detections)
        for sink in self._of_source[frame.stream]:
            sink.write(frame, detections)

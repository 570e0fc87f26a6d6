"""Two passes over a source: things are found and their tracks smoothed, then its frames are read again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from maskjet.errors import SourceError, translate_errors

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.drawing import Style
    from maskjet.sources.frames import Frame, Source
    from maskjet.tracking import Tracker

    Results = Generator[tuple[Frame, Detections]]

_HIDING = {"longest_s": 2.0, "shortest": 0}  # what is redacted may be a face rather than a ghost


class FirstPass:
    """The tracker of a first pass; it keeps all detections, also those that are not reported.

    Where the second pass redacts, it hides in doubt.
    """

    def __init__(self, tracker: Tracker, style: Style) -> None:
        self._tracker, self._style = tracker, style
        self._tracked: deque[Detections] = deque()  # of the frames that are not read yet

    def update(self, found: Detections, time_s: float | None) -> Detections:
        """As that of a tracker."""
        self._tracked.append(self._tracker.update(found, time_s))
        return self._tracked[-1]

    def finish(
        self, results: Results, source: Source, stop: threading.Event, advance: Callable[[int], None]
    ) -> Results:
        """Read the results of the first pass; returns those of the second.

        Args:
            results: Of a stream with this tracker.
            source: The source, opened once more.
            stop: Set if there shall be no second pass.
            advance: Called for each frame of the first pass, with 0.

        Raises:
            SourceError: With a frame of the second pass: the source has others than in the first.
        """
        from maskjet.drawing import Redaction
        from maskjet.tracking import smooth

        indices = []

        def read() -> Iterator[tuple[Detections, float | None]]:
            for frame, _ in results:
                indices.append(frame.index)
                advance(0)
                yield self._tracked.popleft(), frame.time_s

        in_doubt: dict[str, Any] = _HIDING if isinstance(self._style, Redaction) else {}
        smoothed = smooth(read(), threshold=self._tracker.threshold, **in_doubt)
        return _pair(source, iter(indices), smoothed, stop)


def _pair(source: Source, indices: Iterator[int], smoothed: Iterator[Detections], stop: threading.Event) -> Results:
    """The frames of a source, which must have these indices, with their detections."""
    if stop.is_set():
        return
    with translate_errors(SourceError, f"source must stay as it is during both passes, {source.name!r} has changed"):
        for frame, index, found in zip(source, indices, smoothed, strict=True):
            if frame.index != index:
                raise ValueError(f"frame {frame.index} in place of {index}")
            yield frame, found

"""Tracking in two passes over a file: the first detects and tracks, the second reads the frames again."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from maskjet.detections import Detections
from maskjet.errors import SourceError, translate_errors
from maskjet.tracking.smoothing import smooth

if TYPE_CHECKING:
    from maskjet.sources.source import Frame, Source

_HIDING = {"longest_s": 2.0, "shortest": 0}


def second_pass(
    results: Iterable[tuple[Frame, Detections]],
    source: Source,
    *,
    threshold: float = 0.0,
    is_hiding: bool = False,
    stop: threading.Event | None = None,
) -> Generator[tuple[Frame, Detections]]:
    """Read all results of a first pass, smooth their tracks, and read the source's frames again.

    Args:
        results: The first pass: frames with tracked detections, those below the threshold included; see `weak` of
            `Model.stream`.
        source: The source, opened once more with the same options.
        threshold: As of `smooth`: that of the tracker.
        is_hiding: Whether frames are to be redacted. Then gaps of up to two seconds are filled and no short track is
            removed: it may be a face rather than a ghost.
        stop: If it is set at the end of the first pass, there is no second one.

    Returns:
        Each frame with its smoothed detections, as of `smooth`.

    Raises:
        SourceError: With a frame of the second pass: the source has other frames than in the first.
        Exception: Any error of `smooth` and of the results.

    Examples:
        >>> import maskjet
        >>> from maskjet.tracking import second_pass
        >>> model = maskjet.load("demo", device="cpu")
        >>> street = maskjet.traffic.Street(seed=3, size_hw=(360, 640))
        >>> images = [street.frame(index).image for index in range(3)]
        >>> first = model.stream(images, track=True, weak=True)
        >>> with maskjet.open_source(images) as source:
        ...     again = second_pass(first, source, threshold=model.tracker().threshold)
        ...     [frame.index for frame, found in again]
        [0, 1, 2]
    """
    indices: list[int] = []

    def read() -> Iterator[tuple[Detections, float | None]]:
        for frame, found in results:
            indices.append(frame.index)
            yield found, frame.time_s

    in_doubt: dict[str, Any] = _HIDING if is_hiding else {}
    smoothed = smooth(read(), threshold=threshold, **in_doubt)
    return _pair(source, iter(indices), smoothed, stop)


def _pair(
    source: Source, indices: Iterator[int], smoothed: Iterator[Detections], stop: threading.Event | None
) -> Generator[tuple[Frame, Detections]]:
    """The frames of a source, which must have these indices, with their detections."""
    if stop is not None and stop.is_set():
        return
    with translate_errors(SourceError, f"source must stay as it is during both passes, {source.name!r} has changed"):
        for frame, index, found in zip(source, indices, smoothed, strict=True):
            if frame.index != index:
                raise ValueError(f"frame {frame.index} in place of {index}")
            yield frame, found

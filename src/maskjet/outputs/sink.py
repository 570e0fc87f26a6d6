"""The interface of output sinks, and several sinks combined into one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Self

import numpy as np

from maskjet.detections import Detections, are_finite
from maskjet.masks import MaskPixels
from maskjet.sources.frames import Frame, Source


class Sink(ABC):
    """Output sink: receives frames with detections, in order; a context manager.

    A file is written under a temporary name beside its own and renamed by `close`, once it is whole. If an exception
    ends the context, `abandon` is called instead: an existing file stays, and the partial output is kept beside it.
    KeyboardInterrupt closes the sink: a user who stops a run wants the results so far.

    Making a sink, `write` and `close` raise OutputError if the output can't be written. In sinks that draw, `write` and
    `close` also raise the errors of frames written before; once closed, `write` raises InputError.

    Attributes:
        paths: Current paths of the output; empty if there is none.
        redacts: Whether it redacts the detections, so that it must get all of them.
        mask_pixels: Pixels of masks that `Sinks` give it; see `Detections.keep_mask_pixels`.
        rotated_boxes: Whether lines of JSON and rows of CSV have the detections' rotated boxes.
        lost: Events that could not be delivered, once it is closed.
    """

    paths: Sequence[str] = ()
    mask_pixels: MaskPixels = "raw"
    rotated_boxes: bool = False
    redacts: bool = False
    lost: int = 0

    @abstractmethod
    def write(self, frame: Frame, detections: Detections) -> None:
        """Add one frame."""

    def close(self) -> None:  # noqa: B027 - some outputs are finished with every frame
        """Finish the output; may be called twice."""

    def abandon(self) -> None:  # noqa: B027
        """Keep the partial output, readable, under its temporary name; does nothing after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if not isinstance(error, Exception):
            self.close()
            return
        self.abandon()
        if self.paths:
            error.add_note(f"What was written lies in {', '.join(self.paths)}.")


class Sinks(Sink):
    """Combines sinks into one: `shared` receive all frames, `owned` those of one source, by `Frame.stream`.

    `left_out` counts detections whose box or confidence is not finite. They are not written, but redacted all the same.
    """

    def __init__(self, shared: Sequence[Sink], owned: Sequence[Sequence[Sink]] = ()) -> None:
        self._sinks = [*shared, *chain.from_iterable(owned)]
        self._of_source = [[*shared, *own] for own in owned]
        self._gather()
        self.left_out = 0

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame to each sink."""
        finite, is_finite = detections, are_finite(detections)
        if not is_finite.all():  # drop NaN and infinity, which JSON lacks and drawing refuses
            self.left_out += int(np.count_nonzero(~is_finite))
            finite = detections[is_finite]
        for sink in self._of_source[frame.stream] if self._of_source else self._sinks:
            sink.write(frame, detections if sink.redacts else finite.keep_mask_pixels(sink.mask_pixels))

    def append(self, line: str) -> None:
        """Add a line that another process has made to each sink, all of them of JSON lines."""
        for sink in self._sinks:
            sink.append(line)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close every sink, even if some fail."""
        self._call_each("close")

    def abandon(self) -> None:
        """Abandon every sink, even if some fail."""
        self._call_each("abandon")

    def _call_each(self, method: str) -> None:
        with ExitStack() as stack:
            stack.callback(self._gather)
            for sink in reversed(self._sinks):
                stack.callback(getattr(sink, method))

    def _gather(self) -> None:
        self.paths = list(dict.fromkeys(path for sink in self._sinks for path in sink.paths))
        self.lost = sum(sink.lost for sink in self._sinks)


class SinksInTurn(Sinks):
    """Sinks for sources read in sequence: shared ones receive all frames, own ones those of one source.

    A source's own sinks are opened by `begin` and closed by the next, so that those of one are open at a time.
    `opening` opens them; it takes the source's position and the opened source.
    """

    def __init__(self, shared: Sequence[Sink], opening: Callable[[int, Source], Sequence[Sink]]) -> None:
        self._shared, self._opening = list(shared), opening
        self._finished: list[str] = []
        self._lost_before = 0
        super().__init__(self._shared)

    def begin(self, position: int, source: Source) -> None:
        """Finish the outputs of the previous source, and open those of the next, whose position `check_outputs` saw."""
        self.end()
        self._sinks = [*self._shared, *self._opening(position, source)]
        self._gather()

    def end(self, *, is_whole: bool = True) -> None:
        """Finish the outputs of the current source; keep them as partial files if it failed."""
        own = Sinks(self._sinks[len(self._shared) :])
        self._sinks = self._shared
        try:
            own.close() if is_whole else own.abandon()
        finally:
            self._finished += own.paths
            self._lost_before += own.lost
            self._gather()

    def _gather(self) -> None:
        super()._gather()
        self.paths = [*self._finished, *self.paths]
        self.lost += self._lost_before

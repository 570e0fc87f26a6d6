"""Which frames of a stream are detected, and detections for the others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch

from maskjet.checks import MOST_MOVED, Detect
from maskjet.detections import Detections
from maskjet.propagation.motion import WIDTH, Image
from maskjet.propagation.moving import Moving, Part, between, move
from maskjet.sources.conversion import HeldPicture
from maskjet.sources.frames import Frame
from maskjet.sources.picture import Picture

_WAITING_BYTES = 2**30  # of frames of all sources that wait for detected ones; large ones are detected sooner
_CUT = 30.0  # mean difference of grey values, of a frame shrunk further, from the frame before: another scene
_GAP_S = 0.5  # time between frames after which nothing is moved
_TILE = 20  # shrunk pixels
_CAUGHT_UP_S = 0.001  # a frame that was waited for longer: nothing is queued


@dataclass(frozen=True, eq=False, kw_only=True)
class ShrunkFrame(Frame):
    """A frame with its shrunk grey image."""

    whole: Frame
    """The frame."""
    grey: Image
    """uint8 [h, w], the longer side of WIDTH pixels."""


@dataclass
class _State:
    """A source: what was detected last, and what was seen since."""

    last: ShrunkFrame | None = None  # the newest frame
    age: int = 0  # frames since the one to detect
    waiting: list[ShrunkFrame] = field(default_factory=list)  # for the next detected frame
    part: Part | None = None  # instances of the newest detected frame, at the newest frame
    reached: Image | None = None  # that frame, shrunk


class Propagation:
    """Chooses the frames of sources to detect, and moves detections to the others.

    Args:
        sources: Number of sources.
        detect: Distance of detected frames, or "realtime": a frame is detected whenever none is queued behind it.
        is_delayed: Whether frames wait for the next detected one, and get what agrees with both.
        covers: As in `between`.
        cut: Makes of a frame to detect its tiles; see `Readers`.
        finish: Makes of tiles the frame again; see `pipeline.run`.
        note: Called with the number of results that were `moved`.
    """

    def __init__(
        self,
        sources: int,
        detect: Detect,
        *,
        is_delayed: bool,
        covers: bool,
        cut: Callable[[Frame], Sequence[Frame]] = lambda frame: [frame],
        finish: Callable[[Frame, Detections], Iterable[tuple[Frame, Detections]]] = lambda *pair: [pair],
        note: Callable[..., None],
    ) -> None:
        self._detect, self._is_delayed, self._covers = detect, is_delayed, covers
        self._cut, self._finish, self._note = cut, finish, note
        self._states = [_State() for _ in range(sources)]
        self._waiting: dict[Frame, list[ShrunkFrame]] = {}  # by frame that is being detected: those before it, and it
        self._ready: deque[tuple[Frame, bool]] = deque()  # frames and tiles in order, and whether to detect on them

    def shrink(self, frame: Frame) -> list[Frame]:
        """Add a frame's shrunk image; called by the threads that read."""
        about = frame.index, frame.time_s, frame.pixels, frame.source, frame.name, frame.stream
        return [ShrunkFrame(*about, whole=frame, grey=_shrink(frame))]

    def take(
        self,
        read: Callable[..., list[Frame]],
        most: int,
        kind_of: Callable[[Frame], Hashable],
        *,
        waits: bool,
        fills: bool,
    ) -> tuple[list[Frame], bool]:
        """Take up to `most` frames or tiles of a kind to detect on, or frames to move to; and which of both, in order.

        `read` is `Readers.take`, whose other arguments these are.
        """
        while not self._ready:
            began = time.monotonic()
            frames = read(most, waits=waits, fills=fills)
            has_waited = time.monotonic() - began > _CAUGHT_UP_S
            for frame in frames:
                assert isinstance(frame, ShrunkFrame)
                self._plan(frame, has_waited=has_waited)
            if not frames:
                for state in self._states if waits else ():  # all sources have ended
                    self._flush(state)
                if not self._ready:
                    return [], False
        first, is_detected = self._ready[0]
        taken: list[Frame] = []
        while self._ready and self._ready[0][1] == is_detected and len(taken) < most:
            if kind_of(self._ready[0][0]) != kind_of(first):
                break
            taken.append(self._ready.popleft()[0])
        return taken, is_detected

    def _plan(self, frame: ShrunkFrame, *, has_waited: bool) -> None:
        """Queue a frame, or let it wait for a detected one."""
        state = self._states[frame.stream]
        is_first = state.last is None or _differs(state.last, frame)
        state.last, state.age = frame, state.age + 1
        held = (len(state.waiting) + 1) * 3 * frame.size_hw[0] * frame.size_hw[1] * len(self._states)
        is_due = state.age >= (MOST_MOVED if self._detect == "realtime" else self._detect) or held > _WAITING_BYTES
        if is_first:
            self._flush(state)
        if is_first or is_due or (self._detect == "realtime" and has_waited):
            self._queue(state, frame)
        elif self._is_delayed:
            state.waiting.append(frame)
        else:
            self._ready.append((frame, False))

    def _flush(self, state: _State) -> None:
        """Let the last of the frames that wait be detected: no other comes in this scene."""
        if state.waiting:
            self._queue(state, state.waiting.pop())

    def _queue(self, state: _State, frame: ShrunkFrame) -> None:
        self._waiting[frame.whole] = [*state.waiting, frame]
        state.waiting, state.age = [], 0
        self._ready += [(piece, True) for piece in self._cut(frame.whole)]

    def finish(self, piece: Frame, found: Detections | None) -> Iterable[tuple[Frame, Detections]]:
        """Results that follow from a frame, in order: of a tile or frame with its detections, or of one to move to."""
        if found is None:
            assert isinstance(piece, ShrunkFrame)
            self._note(moved=1)
            return [(piece.whole, self._move_to(piece))]
        results: list[tuple[Frame, Detections]] = []
        for frame, whole in self._finish(piece, found):
            *others, own = self._waiting.pop(frame)
            state, detected = self._states[frame.stream], Moving(whole, own.grey)
            if others:
                assert state.part is not None
                self._note(moved=len(others))
                moved = between(state.part.moving, [each.grey for each in others], detected, covers=self._covers)
                results += [(each.whole, there) for each, there in zip(others, moved, strict=True)]
            state.part, state.reached = Part(detected, detected.start, np.arange(len(whole)), 0), own.grey
            results.append((frame, whole.with_moved(np.zeros(len(whole), np.int64))))
        return results

    def _move_to(self, frame: ShrunkFrame) -> Detections:
        """Move what was detected last forward to a frame."""
        state = self._states[frame.stream]
        assert state.part is not None
        assert state.reached is not None
        (step,) = state.part.moving.follow([state.reached, frame.grey], state.part.moves)
        state.part, state.reached = state.part._replace(moves=step.moves, since=state.part.since + 1), frame.grey
        return move([state.part])


def _differs(last: ShrunkFrame, frame: ShrunkFrame) -> bool:
    """Whether another scene begins: another size, a gap in time, or another picture altogether."""
    if last.size_hw != frame.size_hw:
        return True
    if last.time_s is not None and frame.time_s is not None and not 0 <= frame.time_s - last.time_s <= _GAP_S:
        return True
    size = (max(frame.grey.shape[1] // _TILE, 1), max(frame.grey.shape[0] // _TILE, 1))
    one, other = (cv2.resize(each.grey, size, interpolation=cv2.INTER_AREA).astype(np.int16) for each in (last, frame))
    return bool(np.abs(one - other).mean() > _CUT)


def _shrink(frame: Frame) -> Image:
    """A frame in grey, its longer side of WIDTH pixels: the mean of the pixels that each covers."""
    height, width = frame.size_hw
    scale = WIDTH / max(height, width)
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    pixels = frame.pixels
    if isinstance(pixels, HeldPicture):
        pixels = pixels.luma
    elif isinstance(pixels, Picture):
        pixels = pixels.planes(pixels.memory)[0]
    if isinstance(pixels, torch.Tensor):
        if pixels.device.type != "cpu":
            planes = pixels.reshape(height, width, -1).movedim(-1, 0).float()
            pixels = torch.nn.functional.interpolate(planes[None], size[::-1], mode="area")[0].movedim(0, -1)
            pixels = pixels.round().to(torch.uint8).cpu()
        pixels = pixels.numpy()
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return np.asarray(small if small.ndim == 2 else cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.uint8)

"""Frames taken apart into tiles on their way to the engine, and their detections put together behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from maskjet.detections import Detections, join
from maskjet.engine.engine import Engine
from maskjet.engine.pipeline import Finish, tensor_of
from maskjet.engine.slot import Pixels
from maskjet.media.frames import Frame
from maskjet.media.picture import Picture
from maskjet.ops.gpu import on_device
from maskjet.tiling.layout import Tile, Tiling, cut_tiles
from maskjet.tiling.merging import merge


@dataclass(frozen=True, eq=False, kw_only=True)
class TileFrame(Frame):
    """A tile of a frame, an image of its own to the engine; its pixels are a view of the frame's."""

    whole: Frame
    """The frame."""
    tiles: Sequence[Tile]
    """All tiles of the frame."""
    number: int
    """Position of this one among them."""


class Tiles:
    """The tiles of one call's frames. Threads may cut frames at the same time; one merges.

    Args:
        engine: What detects on them.
        tiling: How frames are cut.
        most: Most detections of a frame.
        threshold: If weaker detections come for a tracker, the confidence that those to report exceed; they are merged
            by themselves, so that tracking changes no result.
        finish: What is done with a frame's detections then; see `pipeline.run`.
    """

    def __init__(
        self,
        engine: Engine,
        tiling: Tiling,
        most: int,
        threshold: float | None = None,
        finish: Finish | None = None,
    ) -> None:
        self._engine, self._tiling, self._most = engine, tiling, most
        self._threshold, self._finish = threshold, finish
        self._device = engine.steps.devices["preprocess"]
        self._found: dict[Frame, dict[int, Detections]] = {}  # of frames that lack some, by tile

    def cut(self, frame: Frame) -> Sequence[Frame]:
        """The tiles of a frame, which is brought to the device once, or the frame; raises InputError for too many."""
        size_hw = frame.size_hw
        tiles = cut_tiles(size_hw, input_hw=self._engine.steps.input_hw(size_hw), **asdict(self._tiling))
        if len(tiles) == 1:
            return [frame]
        pixels = frame.pixels
        with on_device(self._device):
            if isinstance(pixels, Picture):
                pixels = replace(pixels, memory=pixels.memory.to(self._device))
            else:
                pixels = tensor_of(pixels).to(self._device)
        about = frame.source, frame.name, frame.stream
        return [
            TileFrame(frame.index, frame.time_s, _view(pixels, each), *about, whole=frame, tiles=tiles, number=number)
            for number, each in enumerate(tiles)
        ]

    def finish(self, piece: Frame, found: Detections) -> tuple[Frame, Detections] | None:
        """Take a tile's detections; with the last one of a frame, returns the frame and its own."""
        if isinstance(piece, TileFrame):
            return self._take(piece, found)
        return self._report(piece, found[: self._most])

    def _take(self, piece: TileFrame, found: Detections) -> tuple[Frame, Detections] | None:
        frame, tiles = piece.whole, piece.tiles
        parts = self._found.setdefault(frame, {})
        parts[piece.number] = found
        if len(parts) < len(tiles):
            return None
        del self._found[frame]
        self._engine.note(tiles=len(tiles))
        every = [parts[number] for number in range(len(tiles))]
        if self._threshold is None:
            merged = merge(every, tiles, frame.size_hw, self._most)
        else:
            are_reported = [each.confidence > np.float32(self._threshold) for each in every]
            reported, weak = (
                [each[rows == wanted] for each, rows in zip(every, are_reported, strict=True)]
                for wanted in (True, False)
            )
            merged = join(*(merge(each, tiles, frame.size_hw, self._most) for each in (reported, weak)))[: self._most]
        return self._report(frame, merged)

    def _report(self, frame: Frame, found: Detections) -> tuple[Frame, Detections] | None:
        return (frame, found) if self._finish is None else self._finish(frame, found)


def _view(pixels: Pixels, tile: Tile) -> Pixels:
    """A tile's pixels, where the frame's lie."""
    if isinstance(pixels, Picture):
        return replace(pixels, tile=tile)
    return pixels[tile.top : tile.top + tile.height, tile.left : tile.left + tile.width]

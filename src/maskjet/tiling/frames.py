"""Cut frames into tiles before the engine, and merge their detections after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from maskjet.detections import Detections, join
from maskjet.engine.duplicates import drop_duplicates
from maskjet.engine.engine import Engine
from maskjet.engine.pipeline import pixels_of
from maskjet.engine.slot import Pixels
from maskjet.ops.gpu import on_device
from maskjet.postprocessing import Postprocessing
from maskjet.sources.frames import Frame
from maskjet.sources.picture import Picture
from maskjet.tiling.layout import Tile, Tiling, cut_tiles
from maskjet.tiling.merging import merge


@dataclass(frozen=True, eq=False, kw_only=True)
class TileFrame(Frame):
    """A tile of a frame, processed as an image; its pixels are a view of the frame's."""

    whole: Frame
    """The whole frame."""
    tiles: Sequence[Tile]
    """All tiles of the frame."""
    number: int
    """Index of this tile in `tiles`."""


class Tiles:
    """Cuts the frames of a call and merges detections; several threads may cut, one merges.

    With a threshold, detections up to it are merged apart, so that they change nothing of those to report.
    """

    def __init__(self, engine: Engine, tiling: Tiling, chosen: Postprocessing, threshold: float | None = None) -> None:
        self._engine, self._tiling, self._chosen, self._threshold = engine, tiling, chosen, threshold
        self._found: dict[Frame, dict[int, Detections]] = {}  # of incomplete frames: detections by tile

    def cut(self, frame: Frame) -> Sequence[Frame]:
        """Cut a frame, uploaded once, into tiles, or return it uncut; raises InputError for too many."""
        size_hw = frame.size_hw
        tiles = cut_tiles(size_hw, input_hw=self._engine.steps.input_hw(size_hw), **asdict(self._tiling))
        if len(tiles) == 1:
            return [frame]
        pixels, device = pixels_of(frame), self._engine.steps.device
        views: list[Pixels]
        with on_device(device):
            if isinstance(pixels, Picture):
                memory = pixels.memory.to(device)
                views = [replace(pixels, memory=memory, tile=tile) for tile in tiles]
            else:
                whole = pixels.to(device)
                views = [whole[top : top + height, left : left + width] for top, left, height, width in tiles]
        about = frame.source, frame.name, frame.stream
        return [
            TileFrame(frame.index, frame.time_s, view, *about, whole=frame, tiles=tiles, number=number)
            for number, view in enumerate(views)
        ]

    def finish(self, piece: Frame, found: Detections) -> list[tuple[Frame, Detections]]:
        """Add a tile's detections; with the last tile, returns the frame and its merged detections."""
        frame = piece
        if isinstance(piece, TileFrame):
            frame, tiles = piece.whole, piece.tiles
            parts = self._found.setdefault(frame, {})
            parts[piece.number] = found
            if len(parts) < len(tiles):
                return []
            del self._found[frame]
            self._engine.note(tiles=len(tiles))
            found = self._merge([parts[number] for number in range(len(tiles))], tiles, frame.size_hw)
        found = drop_duplicates(found, self._chosen.nms, self._engine.steps.config)
        return [(frame, found[: self._chosen.max_detections])]

    def _merge(self, found: Sequence[Detections], tiles: Sequence[Tile], size_hw: tuple[int, int]) -> Detections:
        most = self._chosen.max_detections if self._chosen.nms >= 1 else self._engine.steps.config.max_detections
        if self._threshold is None:
            return merge(found, tiles, size_hw, most)
        lowest = np.float32(self._threshold)
        parts = ([each[(each.confidence > lowest) == is_reported] for each in found] for is_reported in (True, False))
        return join(*(merge(part, tiles, size_hw, most) for part in parts))

"""Tracks in MOTChallenge's text format as output."""

from __future__ import annotations

from maskjet.detections import Detections, check_finite
from maskjet.errors import InputError
from maskjet.media.frames import Frame
from maskjet.media.sinks.lines import TextFile

SUFFIX = ".txt"
"""Suffix of the file."""


class MotText(TextFile):
    """Tracks as MOTChallenge's tools read them: a line `frame,id,left,top,width,height,confidence,-1,-1,-1` per box.

    Frames are counted from 1, boxes are in pixels from 0. Detections without a track are left out. A file is of one
    source.
    """

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's lines; raises InputError for detections that were not tracked."""
        if detections.track_id is None:
            raise InputError(f"detections must be tracked for {self._path!r}, got no track_id.")
        found = detections[detections.track_id >= 0]
        check_finite(found)
        ids = [] if found.track_id is None else found.track_id.tolist()
        lines = [
            f"{frame.index + 1},{number},{x1:.6g},{y1:.6g},{x2 - x1:.6g},{y2 - y1:.6g},{score:.6g},-1,-1,-1\n"
            for number, (x1, y1, x2, y2), score in zip(ids, found.xyxy.tolist(), found.confidence.tolist(), strict=True)
        ]
        self._append("".join(lines))

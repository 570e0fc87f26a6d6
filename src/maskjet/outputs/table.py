"""Tables as output: CSV, and MOTChallenge text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import repeat

import numpy as np

from maskjet.detections import Detections, check_finite
from maskjet.errors import InputError
from maskjet.host.files import TemporaryFile
from maskjet.host.printing import printable
from maskjet.outputs.lines import TextFile
from maskjet.sources.frames import Frame

_ABOUT = ("frame", "time_s", "source", "name")
_FORMULA = ("=", "+", "-", "@")


class CsvTable(TextFile):
    """A CSV table in UTF-8, a row per detection with the columns of `Detections.to_columns`.

    A frame without detections has no row. Text that a spreadsheet would run as a formula gets an apostrophe in front,
    unprintable characters are escaped, so that a row is one line. The first frame tells whether there are tracks.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._names: list[str] = []

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's rows."""
        check_finite(detections)
        columns = detections.to_columns(rotated_boxes=self.rotated_boxes)
        columns["class_name"] = map(_cell, detections.class_name)
        self._begin(columns)
        time_s = "" if frame.time_s is None else str(round(frame.time_s, 6))
        about = [str(frame.index), time_s, _cell(frame.source), _cell(frame.name)]
        values = [columns.get(name, repeat("", len(detections))) for name in self._names]
        self.append(_rows([*about, *row] for row in zip(*values, strict=True)))

    def _begin(self, columns: Iterable[str]) -> None:
        """Write the header before the first frame's rows."""
        if not self._names:
            self._names = list(columns)
            self.append(_rows([[*_ABOUT, *self._names]]), frames=0)

    def _finish(self, temporary: TemporaryFile) -> None:
        nothing = np.empty((0, 4), np.float32)
        found = Detections((0, 0), nothing, nothing[:, 0], np.empty(0, np.int32))
        self._begin(found.to_columns(rotated_boxes=self.rotated_boxes))
        super()._finish(temporary)


class MotText(TextFile):
    """Tracks in MOTChallenge format: lines of `frame,id,left,top,width,height,confidence,-1,-1,-1`.

    Frames are counted from 1, boxes are in pixels from 0. Detections without a track are left out.
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
        self.append("".join(lines))


def _rows(rows: Iterable[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """Make untrusted text a safe cell: one printable line, no formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown

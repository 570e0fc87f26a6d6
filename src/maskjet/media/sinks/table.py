"""CSV output."""

from __future__ import annotations

import csv
import io

from maskjet.detections import Detections, check_finite
from maskjet.media.frames import Frame
from maskjet.media.sinks.lines import TextFile
from maskjet.printing import printable

COLUMNS = (
    *("frame", "time_s", "source", "name", "class_id", "class_name", "confidence"),
    *("x1", "y1", "x2", "y2", "area"),
)
"""Columns of the table; later ones are added at the end."""
_FORMULA = ("=", "+", "-", "@")


class CsvTable(TextFile):
    """A CSV table in UTF-8, a row per detection; a frame without detections has none.

    Boxes are in pixels, the area is the mask's, or the box's without masks, `time_s` is empty for images. Text that a
    spreadsheet would run as a formula gets an apostrophe in front, unprintable characters are escaped, so that a row is
    one line. The rows of a frame are flushed at once. With `tells_streams`, a last column has the frame's "stream", as
    sources may share a name.
    """

    def __init__(self, path: str, *, tells_streams: bool = False) -> None:
        super().__init__(path)
        self._tells_streams = tells_streams
        self._append(_rows([[*COLUMNS, *(["stream"] if tells_streams else [])]]), frames=0)

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame's rows."""
        check_finite(detections)
        time_s = "" if frame.time_s is None else str(round(frame.time_s, 6))
        about = [str(frame.index), time_s, _cell(frame.source), _cell(frame.name)]
        stream = [str(frame.stream)] if self._tells_streams else []
        columns = zip(
            detections.class_id.tolist(),
            map(_cell, detections.class_name),
            detections.confidence.astype(str),  # the shortest text that gives the same float32
            detections.xyxy.astype(str),
            detections.area.tolist(),
            strict=True,
        )
        rows = [[*about, class_id, name, score, *box, area, *stream] for class_id, name, score, box, area in columns]
        self._append(_rows(rows))


def _rows(rows: list[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """Text from outside as a cell: one printable line, and no formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown

"""Output sinks: JSON lines, CSV, COCO JSON, YOLO labels, MOT text, annotated video and images, a window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from maskjet.errors import InputError
from maskjet.media.frames import ListSource
from maskjet.media.sinks.coco import CocoJson
from maskjet.media.sinks.encoders import Encoding
from maskjet.media.sinks.labels import YoloLabels
from maskjet.media.sinks.lines import JsonLines, StdoutLines
from maskjet.media.sinks.outputs import Outputs, check_outputs
from maskjet.media.sinks.pictures import AnnotatedImages
from maskjet.media.sinks.sink import Sink, Sinks, SinksBySource, SinksInTurn
from maskjet.media.sinks.table import CsvTable, MotText
from maskjet.media.sinks.video import AnnotatedVideo
from maskjet.media.sinks.window import Window

__all__ = [
    "AnnotatedImages",
    "AnnotatedVideo",
    "CocoJson",
    "CsvTable",
    "Encoding",
    "JsonLines",
    "MotText",
    "Outputs",
    "Sink",
    "Sinks",
    "SinksBySource",
    "SinksInTurn",
    "StdoutLines",
    "Window",
    "YoloLabels",
    "check_outputs",
    "open_sinks",
]


def open_sinks(outs: Sequence[str], *, fps: float | None = None, **options: Any) -> Sinks:
    """Open outputs of frames that come from no opened source.

    Args:
        outs: Paths, as of `check_outputs`.
        fps: Frames per second of videos whose frames have no times; None for 30.
        **options: Further arguments of `check_outputs`.

    Returns:
        One sink that writes to all of them.

    Raises:
        InputError: fps is not above 0, or as `check_outputs`.
        OutputError: An output can't be written.
        UnsupportedError: NVENC is asked for, and can't be used.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InputError(f"fps must be above 0, got {fps}.")
    source = ListSource([], "frames")
    source.fps = fps
    return check_outputs(outs, [source], **options).open()

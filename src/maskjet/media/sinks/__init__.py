"""Output sinks: JSON lines, CSV, COCO JSON, YOLO labels, annotated video and images, a window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maskjet.drawing import DrawStyle, Style
from maskjet.errors import InputError
from maskjet.media.frames import Source
from maskjet.media.sinks.coco import CocoJson
from maskjet.media.sinks.labels import YoloLabels
from maskjet.media.sinks.lines import JsonLines, StdoutLines
from maskjet.media.sinks.outputs import Content, Outputs, SinkOpener, check_outputs, check_paths
from maskjet.media.sinks.pictures import AnnotatedImages
from maskjet.media.sinks.sink import Sink, Sinks, SinksBySource, SinksInTurn
from maskjet.media.sinks.table import CsvTable
from maskjet.media.sinks.video import AnnotatedVideo
from maskjet.media.sinks.window import Window

__all__ = [
    "AnnotatedImages",
    "AnnotatedVideo",
    "CocoJson",
    "CsvTable",
    "JsonLines",
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
    "open_sinks_by_source",
]


def open_sinks(
    outs: Sequence[str], *, fps: float | None = None, style: Style | None = None, with_confidence: bool = False
) -> Sinks:
    """Open one sink per output path, chosen by its suffix.

    Args:
        outs: .mp4, .mkv, .mov or .webm for annotated video, .jsonl or "-" for JSON lines, .csv for a table, .json for
            a COCO data set, .segm.json or .bbox.json for COCO results of masks or boxes, .jpg or .png for one annotated
            image, a folder (no suffix, or a slash at its end) for many, a folder in .yolo for YOLO labels. Missing
            folders are made, existing files replaced once the new ones are whole.
        fps: Frames per second of videos whose frames have no times; None for 30.
        style: A `DrawStyle`, `Redaction` or `Cutout` of video and images; None for all that can be drawn.
        with_confidence: Whether lines of YOLO labels end in the confidence; see `YoloLabels`.

    Returns:
        One sink that writes to all of them.

    Raises:
        InputError: A suffix is unknown, an output is given twice or can't hold the style's transparent pixels, there is
            no output, or fps is not above 0.
        OutputError: An output can't be written.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InputError(f"fps must be above 0, got {fps}.")
    content = Content(style or DrawStyle(), with_confidence=with_confidence)
    check_paths(outs, style=content.style)
    return Sinks(SinkOpener(content, fps).open_each((out, None) for out in outs))


def open_sinks_by_source(
    outs: Sequence[str],
    sources: Sequence[Source],
    *,
    style: Style | None = None,
    with_audio: bool = True,
    with_confidence: bool = False,
) -> SinksBySource:
    """Open the sinks of sources read side by side: one per source if the path has `{}`, else one for all sources.

    Args:
        outs: Paths as in `open_sinks`. Each `{}` becomes the name of the source: a file's without folder and suffix, a
            URL's host and file, "video0" for a camera. Characters other than letters, digits, spaces and hyphens become
            "_", and equal names get a number. With several sources only JSON lines and CSV may lack `{}`; they have the
            frame's "stream" only if sources were opened with the same name.
        sources: At least one, in the order of `Frame.stream`. None of their files is overwritten.
        style: A `DrawStyle`, `Redaction` or `Cutout` of video and images; None for all that can be drawn.
        with_audio: Whether annotated video gets its source's audio.
        with_confidence: Whether lines of YOLO labels end in the confidence; see `YoloLabels`.

    Returns:
        One sink that writes each frame to the sinks of its source.

    Raises:
        InputError: An output is invalid as in `open_sinks`, is one of the sources' files, or lacks `{}` although there
            are several sources.
        OutputError: An output can't be written.
    """
    return check_outputs(outs, sources, style=style, with_audio=with_audio, with_confidence=with_confidence).open()

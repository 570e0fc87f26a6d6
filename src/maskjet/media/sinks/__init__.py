"""Where results go: JSON lines, COCO JSON, annotated video, annotated images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from maskjet.errors import InputError
from maskjet.media.frames import Source
from maskjet.media.sinks.coco import CocoJson
from maskjet.media.sinks.lines import JsonLines, StdoutLines
from maskjet.media.sinks.outputs import Outputs, check_outputs, check_paths, open_sink
from maskjet.media.sinks.pictures import AnnotatedImages
from maskjet.media.sinks.sink import Sink, Sinks, SinksBySource
from maskjet.media.sinks.video import AnnotatedVideo

__all__ = [
    "AnnotatedImages",
    "AnnotatedVideo",
    "CocoJson",
    "JsonLines",
    "Outputs",
    "Sink",
    "Sinks",
    "SinksBySource",
    "StdoutLines",
    "check_outputs",
    "open_sinks",
    "open_sinks_by_source",
]


def open_sinks(outs: Sequence[str], *, fps: float | None = None) -> Sinks:
    """Open the sinks that output paths ask for by their suffix.

    Args:
        outs: .mp4, .mkv or .mov for annotated video, .jsonl or "-" for JSON lines, .json for COCO JSON, .jpg or .png
            for one annotated image, a folder (no suffix, or a slash at its end) for many. Missing folders are made,
            existing files replaced once the new ones are whole.
        fps: Of videos whose frames bring no times.

    Returns:
        The sinks as one.

    Raises:
        InputError: A suffix that is not known, an output given twice, or no output at all.
        OutputError: An output that can't be written.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InputError(f"fps must be above 0, got {fps}.")
    check_paths(outs)
    taken: set[Path] = set()
    with ExitStack() as undo:
        sinks: list[Sink] = []
        for out in outs:
            sinks.append(open_sink(out, fps=fps, taken=taken))
            undo.callback(sinks[-1].abandon)
        undo.pop_all()
    return Sinks(sinks)


def open_sinks_by_source(outs: Sequence[str], sources: Sequence[Source]) -> SinksBySource:
    """Open the sinks of sources that run side by side: for each its own, and JSON lines for all where a path says so.

    Args:
        outs: As for `open_sinks`. Each `{}` becomes the name of the source: a file's without folder and suffix, a URL's
            host and file, "video0" for a camera; "_" stands for what is neither letter, digit, space nor hyphen, and a
            number is added where sources have the same. Without `{}` JSON lines take the frames of all sources; their
            lines have the frame's "stream" only if sources were opened with the same name.
        sources: In the order of `Frame.stream`, at least one. None of their files is overwritten.

    Returns:
        The sinks as one.

    Raises:
        InputError: As for `open_sinks`, also if an output is one of the sources' files; or `{}` is missing where there
            are several sources.
        OutputError: An output that can't be written.
    """
    return check_outputs(outs, sources).open()

"""Output sinks: JSON lines, CSV, COCO JSON, YOLO labels, MOT text, annotated video and images, a window."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maskjet.drawing import DrawStyle, Style
from maskjet.errors import InputError
from maskjet.mask_pixels import MaskPixels
from maskjet.media.sinks.coco import CocoJson
from maskjet.media.sinks.encoders import DEFAULT_QUALITY, Encoder, Encoding
from maskjet.media.sinks.labels import Parts, YoloLabels
from maskjet.media.sinks.lines import JsonLines, StdoutLines
from maskjet.media.sinks.outputs import Content, Outputs, SinkOpener, check_outputs, check_paths
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


def open_sinks(
    outs: Sequence[str],
    *,
    fps: float | None = None,
    style: Style | None = None,
    with_confidence: bool = False,
    yolo_parts: Parts = "largest",
    mask_pixels: MaskPixels = "raw",
    encoder: Encoder = "x264",
    quality: int = DEFAULT_QUALITY,
) -> Sinks:
    """Open one sink per output path, chosen by its suffix.

    Args:
        outs: .mp4, .mkv, .mov or .webm for annotated video, .jsonl or "-" for JSON lines, .csv for a table, .json for
            a COCO data set, .segm.json or .bbox.json for COCO results of masks or boxes, .txt for tracks as in
            MOTChallenge, .jpg or .png for one annotated image, a folder (no suffix, or a slash at its end) for many, a
            folder in .yolo for YOLO labels; for events of lines and zones .events.jsonl, or the URL of a webhook,
            http(s)://, or of a topic, mqtt(s)://. Missing folders are made, existing files replaced once the new ones
            are whole.
        fps: Frames per second of videos whose frames have no times; None for 30.
        style: A `DrawStyle`, `Redaction` or `Cutout` of video and images; None for all that can be drawn.
        with_confidence: Whether lines of YOLO labels end in the confidence; see `YoloLabels`.
        yolo_parts: Parts of masks that become lines of YOLO labels; see `YoloLabels`.
        mask_pixels: Pixels of masks in other outputs than video and images; see `Detections.keep_mask_pixels`.
        encoder: Encoder of annotated video, as of `check_outputs`.
        quality: Quality of annotated video, 1 to 100, as of `check_outputs`.

    Returns:
        One sink that writes to all of them.

    Raises:
        InputError: A suffix is unknown, an output is given twice or can't hold the style's transparent pixels, there is
            no output, fps is not above 0, or yolo_parts, mask_pixels, encoder or quality is none of its choices.
        OutputError: An output can't be written.
        UnsupportedError: NVENC is asked for, and can't be used.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InputError(f"fps must be above 0, got {fps}.")
    encoding = Encoding(encoder, quality)
    content = Content(style or DrawStyle(), False, with_confidence, yolo_parts, mask_pixels, encoding)
    check_paths(outs, style=content.style)
    return Sinks(SinkOpener(content, fps).open_each((out, None) for out in outs))

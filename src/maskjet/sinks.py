"""Where results go: JSON lines, COCO JSON, annotated video, annotated images."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import av
import av.error
import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.drawing import draw
from maskjet.errors import InputError, SourceError
from maskjet.frames import Frame

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_DEFAULT_FPS = 30.0
_CLOCK_HZ = 90_000  # ticks of a video's timestamps, as in MPEG


class Sink(ABC):
    """Takes frames with their detections, in order; a context manager. After `close` its output is whole."""

    @abstractmethod
    def write(self, frame: Frame, detections: Detections) -> None:
        """Add one frame."""

    @abstractmethod
    def close(self) -> None:
        """Finish the output; may be called twice."""

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JsonLines(Sink):
    """One line of JSON per frame: index, time_s, source, name and what `Detections.as_dict` returns.

    Every line is written through at once, so what is there after a crash is whole lines.

    Args:
        path: The file, or "-" for stdout.
    """

    def __init__(self, path: str) -> None:
        self._file: IO[str] = sys.stdout if path == "-" else _open_to_write(Path(path))

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        about = {"index": frame.index, "time_s": frame.time_s, "source": frame.source, "name": frame.name}
        self._file.write(json.dumps(about | detections.as_dict()) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdout:
            self._file.close()


class CocoJson(Sink):
    """A COCO data set: images, categories, and annotations with a score each; category ids are class ids.

    Its "annotations" are also a COCO results list, as pycocotools' loadRes takes it. Written at the end, under its own
    name only when whole.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(self._path.name + ".partial")
        self._file: IO[str] | None = _open_to_write(self._partial)
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._names: Mapping[int, str] = {}

    def write(self, frame: Frame, detections: Detections) -> None:
        """Keep one frame's entries."""
        height, width = detections.image_size
        self._images.append({"id": frame.index, "file_name": frame.name, "height": height, "width": width})
        for entry, area in zip(detections.to_coco(frame.index), detections.area.tolist(), strict=True):
            self._annotations.append({"id": len(self._annotations) + 1, "area": area, "iscrowd": 0, **entry})
        self._names = {**self._names, **detections.class_names}

    def close(self) -> None:
        """Write the file."""
        if self._file is None:
            return
        categories = [{"id": class_id, "name": name} for class_id, name in self._names.items()]
        with self._file as file:
            json.dump({"images": self._images, "categories": categories, "annotations": self._annotations}, file)
        self._partial.replace(self._path)
        self._file = None


class AnnotatedVideo(Sink):
    """H.264 video of the frames with their detections drawn in.

    Frames keep their times; without a clock they follow each other at `fps`. The first frame sets the size, an odd side
    loses its last row or column; frames of another size are shrunk or grown into it, their proportions kept, on black.

    Args:
        path: .mp4, .mkv or .mov.
        fps: Frames per second where the frames bring no times.
    """

    def __init__(self, path: str, fps: float | None) -> None:
        _open_to_write(Path(path)).close()
        self._container: av.container.OutputContainer | None = av.open(path, "w")
        self._fps = fps or _DEFAULT_FPS
        self._stream: av.VideoStream | None = None
        self._last_tick = -1

    def write(self, frame: Frame, detections: Detections) -> None:
        """Draw and encode one frame."""
        if self._container is None:
            raise InputError("The video is closed; open another sink.")
        drawn = draw(frame.image, detections)
        stream = self._stream or self._start(self._container, drawn.shape)
        self._stream = stream
        pixels = av.VideoFrame.from_ndarray(_fit(drawn, stream.height, stream.width), format="rgb24")
        picture = pixels.reformat(format="yuv420p")
        time_s = frame.index / self._fps if frame.time_s is None else frame.time_s
        self._last_tick = max(round(time_s * _CLOCK_HZ), self._last_tick + 1)
        picture.pts, picture.time_base = self._last_tick, Fraction(1, _CLOCK_HZ)
        self._container.mux(stream.encode(picture))

    def _start(self, container: av.container.OutputContainer, shape: tuple[int, ...]) -> av.VideoStream:
        rate = Fraction(self._fps).limit_denominator(1001)
        # veryfast at CRF 20: 5.2 ms a 720p frame on two cores, and no artefacts to be seen at the masks' edges
        stream = container.add_stream("libx264", rate=rate, options={"preset": "veryfast", "crf": "20"})
        stream.height, stream.width = (max(side - side % 2, 2) for side in shape[:2])
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)
        return stream

    def close(self) -> None:
        """Finish the file, which is then playable; without a single frame it is removed."""
        if self._container is None:
            return
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        path = Path(self._container.name)
        self._container.close()
        self._container = None
        if self._stream is None:
            path.unlink(missing_ok=True)


class AnnotatedImages(Sink):
    """A folder of images with their detections drawn in, under the names of their files.

    Where a name is taken, by a file of the same name in another folder, the frame's index is added.

    Args:
        path: The folder; made if it is not there.
    """

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SourceError(f"out must be a folder that can be made, {path!r} is not: {error.strerror}.") from error
        self._written: set[str] = set()

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one image."""
        video, _, number = frame.name.rpartition("#")
        stem = f"{Path(video).stem}_{number}" if number.isdecimal() else Path(frame.name).stem
        name = f"{stem}.jpg" if f"{stem}.jpg" not in self._written else f"{stem}_{frame.index}.jpg"
        self._written.add(name)
        pixels = cv2.cvtColor(draw(frame.image, detections), cv2.COLOR_RGB2BGR)
        if not cv2.imwrite(str(self._folder / name), pixels, [cv2.IMWRITE_JPEG_QUALITY, 92]):
            raise SourceError(f"out must be writable, {str(self._folder / name)!r} is not.")

    def close(self) -> None:
        """Nothing is left to do."""


class Sinks(Sink):
    """Several sinks as one."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame to each."""
        for sink in self._sinks:
            sink.write(frame, detections)

    def close(self) -> None:
        """Close each, even if one fails."""
        with ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)


def open_sinks(outs: Sequence[str], *, fps: float | None = None) -> Sinks:
    """Open the sinks that output paths ask for by their suffix.

    Args:
        outs: .mp4, .mkv or .mov for annotated video, .jsonl or "-" for JSON lines, .json for COCO JSON, a folder (no
            suffix) for annotated images. Missing folders are made, existing files overwritten.
        fps: Of videos whose frames bring no times.

    Returns:
        The sinks as one.

    Raises:
        InputError: A suffix that is not known, or no output at all.
        SourceError: An output that can't be written.
    """
    if not outs:
        raise InputError("out must name at least one output, got none.")
    sinks: list[Sink] = []
    with ExitStack() as undo:
        for out in outs:
            sinks.append(undo.enter_context(_open_sink(out, fps)))  # noqa: PERF401 - each is undone if a later one fails
        undo.pop_all()
    return Sinks(sinks)


def _open_sink(out: str, fps: float | None) -> Sink:
    suffix = Path(out).suffix.lower()
    if suffix in VIDEO_SUFFIXES:
        return AnnotatedVideo(out, fps)
    if out == "-" or suffix == ".jsonl":
        return JsonLines(out)
    if suffix == ".json":
        return CocoJson(out)
    if suffix == "" or Path(out).is_dir():
        return AnnotatedImages(out)
    known = ", ".join((*VIDEO_SUFFIXES, ".jsonl", ".json"))
    raise InputError(f"out must end in one of {known}, or be a folder or '-', got {out!r}.")


def _open_to_write(path: Path) -> IO[str]:
    """Open a file, making its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise SourceError(f"out must be writable, {str(path)!r} is not: {error.strerror}.") from error


def _fit(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Bring an image to a size: unchanged or cropped by a row or column where that is enough, else letterboxed."""
    if 0 <= image.shape[0] - height <= 1 and 0 <= image.shape[1] - width <= 1:
        return np.ascontiguousarray(image[:height, :width])
    scale = min(height / image.shape[0], width / image.shape[1])
    inner_height, inner_width = (max(round(side * scale), 1) for side in image.shape[:2])
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    resized = cv2.resize(image, (inner_width, inner_height), interpolation=cv2.INTER_AREA)
    canvas[top : top + inner_height, left : left + inner_width] = resized
    return canvas

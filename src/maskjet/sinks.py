"""Where results go: JSON lines, COCO JSON, annotated video, annotated images."""

from __future__ import annotations

import json
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import av
import av.error
import av.video.reformatter
import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.drawing import draw
from maskjet.errors import InputError, SourceError
from maskjet.frames import Frame
from maskjet.images import IMAGE_SUFFIXES, explain

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png")
_DEFAULT_FPS = 30.0
_CLOCK_HZ = 90_000  # ticks of a video's timestamps, as in MPEG
# 10 ms of CPU per noisy 720p frame; veryfast at the same PSNR takes 20 ms and saves a fifth of the size.
_ENCODER = {"preset": "ultrafast", "crf": "22"}


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
        self._path = path
        self._file: IO[str] = sys.stdout if path == "-" else _open_to_write(Path(path))

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        about = {"index": frame.index, "time_s": frame.time_s, "source": frame.source, "name": frame.name}
        with _naming(self._path):
            self._file.write(json.dumps(about | detections.as_dict()) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdout:
            with _naming(self._path):
                self._file.close()


class CocoJson(Sink):
    """A COCO data set: images, categories, and annotations with a score each; category ids are class ids.

    Its "annotations" are also a COCO results list, as pycocotools' loadRes takes it. An image's id is its frame's
    index, its file_name the frame's name. Kept in memory to the end; the file appears under its name only when whole.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._partial = self._path.with_name(self._path.name + ".partial")
        self._file: IO[str] | None = _open_to_write(self._partial)
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}

    def write(self, frame: Frame, detections: Detections) -> None:
        """Keep one frame's entries."""
        height, width = detections.image_size
        self._images.append({"id": frame.index, "file_name": frame.name, "height": height, "width": width})
        for entry, area in zip(detections.to_coco(frame.index), detections.area.tolist(), strict=True):
            self._annotations.append({"id": len(self._annotations) + 1, "area": area, "iscrowd": 0, **entry})
        self._names.update(detections.class_names)

    def close(self) -> None:
        """Write the file."""
        if self._file is None:
            return
        file, self._file = self._file, None
        categories = [{"id": class_id, "name": name} for class_id, name in sorted(self._names.items())]
        with _naming(str(self._path)):
            with file:
                json.dump({"images": self._images, "categories": categories, "annotations": self._annotations}, file)
            self._partial.replace(self._path)


class AnnotatedVideo(Sink):
    """H.264 video of the frames with their detections drawn in.

    It starts at 0; frames keep their distances in time. Where there is no clock, or it jumps back to another video's
    start, they follow at `fps`. The first frame sets the size, an odd side loses its last row or column; frames of
    another size are shrunk or grown into it, their proportions kept, on black.

    Args:
        path: .mp4, .mkv or .mov.
        fps: Frames per second where the frames bring no times; 30 if None.
    """

    def __init__(self, path: str, fps: float | None) -> None:
        _open_to_write(Path(path)).close()
        self._path = path
        self._container: av.container.OutputContainer | None = av.open(path, "w")
        self._fps = fps or _DEFAULT_FPS
        self._stream: av.VideoStream | None = None
        self._to_yuv = av.video.reformatter.VideoReformatter()
        self._source_s: float | None = None  # the last frame's time in its source
        self._tick = -1

    def write(self, frame: Frame, detections: Detections) -> None:
        """Draw and encode one frame."""
        if self._container is None:
            raise InputError("The video is closed; open another sink.")
        drawn = draw(frame.image, detections)
        with _naming(self._path):
            if self._stream is None:
                self._stream = self._start(self._container, drawn.shape)
            pixels = av.VideoFrame.from_ndarray(_fit(drawn, self._stream.height, self._stream.width), format="rgb24")
            picture = self._to_yuv.reformat(pixels, format="yuv420p")
            picture.pts, picture.time_base = self._next_tick(frame.time_s), Fraction(1, _CLOCK_HZ)
            self._container.mux(self._stream.encode(picture))

    def _next_tick(self, time_s: float | None) -> int:
        """When to show a frame of this time in its source, in ticks since the first."""
        gap_s = 1 / self._fps
        if time_s is not None and self._source_s is not None and time_s > self._source_s:
            gap_s = time_s - self._source_s
        self._source_s = time_s
        self._tick = 0 if self._tick < 0 else self._tick + max(round(gap_s * _CLOCK_HZ), 1)
        return self._tick

    def _start(self, container: av.container.OutputContainer, shape: tuple[int, ...]) -> av.VideoStream:
        rate = Fraction(self._fps).limit_denominator(1001)
        stream = container.add_stream("libx264", rate=rate, options=_ENCODER)
        stream.height, stream.width = (max(side - side % 2, 2) for side in shape[:2])
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)
        return stream

    def close(self) -> None:
        """Finish the file, which is then playable; without a single frame it is removed."""
        if self._container is None:
            return
        container, self._container = self._container, None
        with _naming(self._path), container:
            if self._stream is not None:
                container.mux(self._stream.encode(None))
        if self._stream is None:
            Path(self._path).unlink(missing_ok=True)


class AnnotatedImages(Sink):
    """Images with their detections drawn in.

    In a folder they keep the names of their files, but for the suffix where it is neither .jpg nor .png; frames of a
    video get theirs with a number. Where a name is taken, by a file of the same name in another folder, the frame's
    index is added.

    Args:
        path: The folder, made if it is not there; or the .jpg or .png of the only frame, others getting its name and
            their index.
    """

    def __init__(self, path: str) -> None:
        self._name = Path(path).name if _is_picture(path) else None
        self._folder = Path(path).parent if self._name else Path(path)
        with _naming(path):
            self._folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._folder).close()  # a folder may be there and closed to us
        self._written: set[str] = set()

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one image."""
        path = self._folder / self._free_name(frame)
        if path.exists() and Path(frame.name).exists() and path.samefile(frame.name):
            raise SourceError(f"out must not be where the source is, {str(path)!r} would be overwritten.")
        pixels = cv2.cvtColor(draw(frame.image, detections), cv2.COLOR_RGB2BGR)
        _, data = cv2.imencode(path.suffix, pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])
        with _naming(str(path)):
            path.write_bytes(data.data)

    def _free_name(self, frame: Frame) -> str:
        """A file name that no earlier frame has."""
        video, _, number = frame.name.rpartition("#")
        wanted = Path(self._name or (f"{Path(video).stem}_{number:>06}" if number.isdecimal() else frame.name))
        suffix = wanted.suffix if _is_picture(wanted) else ".jpg"
        stem = wanted.stem if wanted.suffix.lower() in IMAGE_SUFFIXES else wanted.name
        stems = chain((stem, f"{stem}_{frame.index}"), (f"{stem}_{frame.index}_{n}" for n in count(2)))
        name = next(free for free in (stem + suffix for stem in stems) if free not in self._written)
        self._written.add(name)
        return name

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


def open_sinks(outs: Sequence[str], *, fps: float | None = None, source: str | None = None) -> Sinks:
    """Open the sinks that output paths ask for by their suffix.

    Args:
        outs: .mp4, .mkv or .mov for annotated video, .jsonl or "-" for JSON lines, .json for COCO JSON, .jpg or .png
            for one annotated image, a folder (no suffix, or a slash at its end) for many. Missing folders are made,
            existing files overwritten.
        fps: Of videos whose frames bring no times.
        source: The name of the source, which is not to be overwritten.

    Returns:
        The sinks as one.

    Raises:
        InputError: A suffix that is not known, an output given twice or the source itself, or no output at all.
        SourceError: An output that can't be written.
    """
    if not outs:
        raise InputError("out must name at least one output, got none.")
    if len(set(outs)) < len(outs):
        raise InputError(f"out must name each output once, got {', '.join(outs)}.")
    sinks: list[Sink] = []
    with ExitStack() as undo:
        for out in outs:
            if source and Path(out).is_file() and Path(source).is_file() and Path(out).samefile(source):
                raise InputError(f"out must not be the source, got {out!r} for both.")
            sinks.append(undo.enter_context(_open_sink(out, fps)))
        undo.pop_all()
    return Sinks(sinks)


def _open_sink(out: str, fps: float | None) -> Sink:
    suffix = Path(out).suffix.lower()
    if (suffix == "" and out != "-") or out.endswith("/") or Path(out).is_dir() or _is_picture(out):
        return AnnotatedImages(out)
    if suffix in VIDEO_SUFFIXES:
        return AnnotatedVideo(out, fps)
    if out == "-" or suffix == ".jsonl":
        return JsonLines(out)
    if suffix == ".json":
        return CocoJson(out)
    known = ", ".join((*VIDEO_SUFFIXES, ".jsonl", ".json", *_PICTURE_SUFFIXES))
    raise InputError(f"out must end in one of {known}, or be a folder or '-', got {out!r}.")


def _is_picture(path: str | Path) -> bool:
    return Path(path).suffix.lower() in _PICTURE_SUFFIXES


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Turn what the system or FFmpeg says of an output into an error that names it."""
    try:
        yield
    except (OSError, av.error.FFmpegError) as error:
        raise SourceError(f"out must be writable, {path!r} is not: {explain(error)}.") from error


def _open_to_write(path: Path) -> IO[str]:
    """Open a file, making its folder."""
    with _naming(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")


def _fit(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Bring an image to a size: unchanged or cropped by a row or column where that is enough, else letterboxed."""
    if 0 <= image.shape[0] - height <= 1 and 0 <= image.shape[1] - width <= 1:
        return np.ascontiguousarray(image[:height, :width])
    scale = min(height / image.shape[0], width / image.shape[1])
    inner_height, inner_width = (max(round(side * scale), 1) for side in image.shape[:2])
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    canvas = np.zeros((height, width, 3), dtype=np.uint8)
    interpolation = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = cv2.resize(image, (inner_width, inner_height), interpolation=interpolation)
    canvas[top : top + inner_height, left : left + inner_width] = resized
    return canvas

"""Where results go: JSON lines, COCO JSON, annotated video, annotated images."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from itertools import chain, count
from pathlib import Path
from typing import IO, Any, Literal, Self
from urllib.parse import urlsplit

import av
import av.error
import av.video.reformatter
import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.drawing import draw
from maskjet.errors import InputError, SourceError
from maskjet.frames import Frame, Source
from maskjet.images import IMAGE_SUFFIXES, explain

VIDEO_SUFFIXES = (".mp4", ".mkv", ".mov")
_PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png")
_PLACEHOLDER = "{}"  # in an output's path: the name of its source
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JsonLines(Sink):
    """One line of JSON per frame: index, time_s, source, name and what `Detections.as_dict` returns.

    Every line is written through at once, so what is there after a crash is whole lines.

    Args:
        path: The file, or "-" for stdout.
        tells_streams: Whether each line also has the frame's stream, which its source's name does not tell.
    """

    def __init__(self, path: str, *, tells_streams: bool = False) -> None:
        self._path = path
        self._tells_streams = tells_streams
        self._file: IO[str] = sys.stdout if path == "-" else _open_to_write(Path(path))

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one line."""
        about = {"index": frame.index, "time_s": frame.time_s, "source": frame.source, "name": frame.name}
        if self._tells_streams:
            about["stream"] = frame.stream
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


class SinksBySource(Sinks):
    """Sinks of which each takes the frames of one source.

    Args:
        sinks: One per source, in the order of `Frame.stream`.
        outputs: What all of them write, each path once.
    """

    def __init__(self, sinks: Sequence[Sink], outputs: Sequence[str]) -> None:
        super().__init__(sinks)
        self.outputs = outputs

    def write(self, frame: Frame, detections: Detections) -> None:
        """Write one frame to the sink of its source."""
        self._sinks[frame.stream].write(frame, detections)


def open_sinks(outs: Sequence[str], *, fps: float | None = None) -> Sinks:
    """Open the sinks that output paths ask for by their suffix.

    Args:
        outs: .mp4, .mkv or .mov for annotated video, .jsonl or "-" for JSON lines, .json for COCO JSON, .jpg or .png
            for one annotated image, a folder (no suffix, or a slash at its end) for many. Missing folders are made,
            existing files overwritten.
        fps: Of videos whose frames bring no times.

    Returns:
        The sinks as one.

    Raises:
        InputError: A suffix that is not known, an output given twice, or no output at all.
        SourceError: An output that can't be written.
    """
    _check_outputs(outs)
    with ExitStack() as undo:
        sinks = Sinks([undo.enter_context(_open_sink(out, fps)) for out in outs])
        undo.pop_all()
    return sinks


def open_sinks_by_source(outs: Sequence[str], sources: Sequence[Source]) -> SinksBySource:
    """Open the sinks of sources that run side by side: for each its own, and JSON lines for all where a path says so.

    Args:
        outs: As for `open_sinks`. Each `{}` becomes the name of the source: a file's without folder and suffix, a URL's
            host and file, "video0" for a camera; "_" stands for what is neither letter, digit, space nor hyphen, and a
            number is added where sources have the same. Without `{}` JSON lines take the frames of all sources; their
            lines have the frame's "stream" only if sources were opened with the same name.
        sources: In the order of `Frame.stream`, at least one. None is to be overwritten.

    Returns:
        The sinks as one.

    Raises:
        InputError: As for `open_sinks`, also if an output is one of the sources; or `{}` is missing where there are
            several sources.
        SourceError: An output that can't be written.
    """
    names = [source.name for source in sources]
    shared = [out for out in outs if _PLACEHOLDER not in out]
    for out in shared:
        if len(sources) > 1 and _kind(out) != "lines":
            example = f"out/{_PLACEHOLDER}{Path(out).suffix}"
            raise InputError(
                f"out must contain {_PLACEHOLDER} for several sources, got {out!r}; write for example {example!r}: "
                f"{_PLACEHOLDER} becomes each source's name."
            )
    templates = [out for out in outs if _PLACEHOLDER in out]
    owned = [[template.replace(_PLACEHOLDER, stem) for template in templates] for stem in _unique_stems(names)]
    outputs = [*shared, *chain.from_iterable(owned)]
    _check_outputs(outputs, names)
    tells_streams = len(set(names)) < len(names)
    with ExitStack() as undo:
        common = [undo.enter_context(_open_sink(out, sources[0].fps, tells_streams=tells_streams)) for out in shared]
        sinks = [
            Sinks([*common, *(undo.enter_context(_open_sink(out, source.fps)) for out in own)])
            for source, own in zip(sources, owned, strict=True)
        ]
        undo.pop_all()
    return SinksBySource(sinks, outputs)


def _unique_stems(names: Sequence[str]) -> list[str]:
    """What `{}` becomes for each of the sources of these names; no two are the same."""
    stems: list[str] = []
    for name in names:
        stem = _stem(name)
        numbered = (f"{stem}_{number}" for number in count(2))
        stems.append(next(free for free in chain((stem,), numbered) if free not in stems))
    return stems


def _stem(name: str) -> str:
    """A source's name as part of a file name: no folder, no suffix, and of a URL no password or query."""
    stem = Path(name).stem
    if "://" in name:
        url = urlsplit(name)
        stem = "_".join(filter(None, (url.hostname, Path(url.path).stem)))
    safe = re.sub(r"[^\w -]", "_", stem)
    return safe if safe.strip("_ -") else "source"


def _check_outputs(outs: Sequence[str], sources: Sequence[str] = ()) -> None:
    """Check, before anything is overwritten, that outputs are of kinds we know, and none is another or a source."""
    if not outs:
        raise InputError("out must name at least one output, got none.")
    if len(set(outs)) < len(outs):
        raise InputError(f"out must name each output once, got {', '.join(outs)}.")
    files = [source for source in sources if Path(source).is_file()]
    for out in outs:
        _kind(out)
        if Path(out).is_file() and any(Path(out).samefile(file) for file in files):
            raise InputError(f"out must not be the source, got {out!r} for both.")


def _kind(out: str) -> Literal["images", "video", "lines", "data set"]:
    """What an output's path asks for."""
    suffix = Path(out).suffix.lower()
    if (suffix == "" and out != "-") or out.endswith("/") or Path(out).is_dir() or _is_picture(out):
        return "images"
    if suffix in VIDEO_SUFFIXES:
        return "video"
    if out == "-" or suffix == ".jsonl":
        return "lines"
    if suffix == ".json":
        return "data set"
    known = ", ".join((*VIDEO_SUFFIXES, ".jsonl", ".json", *_PICTURE_SUFFIXES))
    raise InputError(f"out must end in one of {known}, or be a folder or '-', got {out!r}.")


def _open_sink(out: str, fps: float | None, *, tells_streams: bool = False) -> Sink:
    kind = _kind(out)
    if kind == "images":
        return AnnotatedImages(out)
    if kind == "video":
        return AnnotatedVideo(out, fps)
    if kind == "lines":
        return JsonLines(out, tells_streams=tells_streams)
    return CocoJson(out)


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

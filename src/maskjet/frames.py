"""Where frames come from: images, folders, globs, videos, cameras, URLs, arrays, and lists of these."""

from __future__ import annotations

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, ClassVar, Literal

import av
import av.error
import av.video.reformatter
import numpy as np
from numpy.typing import NDArray

from maskjet.colours import Look, guess_matrix, read_look
from maskjet.errors import FrameError, InputError, SourceError
from maskjet.images import IMAGE_SUFFIXES, explain, to_image

_OPEN_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 10.0
_DAMAGED = "its data are damaged"
_CONVERTING_THREADS = 4  # to RGB; one for each of 16 cores, FFmpeg's choice, takes a fifth off decoding at 720p


@dataclass(frozen=True, eq=False)
class Frame:
    """One image of a source."""

    index: int
    """Position in the source, from 0; frames that could not be decoded are counted."""
    time_s: float | None
    """When it is shown, in seconds; None where the source has no clock."""
    image: NDArray[np.uint8]
    """uint8 [H, W, 3], RGB."""
    source: str
    """What the source was opened with."""
    name: str
    """The file it comes from; for a video its name and the index."""
    stream: int = 0
    """Position of its source among those that run side by side, from 0."""


class Source(ABC):
    """Frames in order, to be iterated over once; a context manager.

    Args:
        name: What it was opened with.

    Attributes:
        kind: What frames are read from.
        name: What it was opened with.
        length: How many frames it should have; None if that can't be known.
        fps: Frames per second; None where there is no clock.
        size_hw: (height, width) of the first frame; None where that is not known before it is read.
        look: What its colours and pixels mean; None for images, and before the first frame of a video is there.
        files: The files it reads, as far as they are known before.
        is_live: Whether frames come as they happen, from a camera or a stream without an end.
        frames_seen: How many frames went by, those in `bad_frames` included: the next one's index.
        bad_frames: (index, reason) of the frames left out because they could not be decoded.
        frames_dropped: How many frames were left out because newer ones had come.
    """

    kind: ClassVar[Literal["image", "list", "video"]]
    length: int | None = None
    fps: float | None = None
    size_hw: tuple[int, int] | None = None
    look: Look | None = None
    files: Sequence[Path] = ()
    is_live: bool = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames_seen = 0
        self.bad_frames: list[tuple[int, str]] = []
        self.frames_dropped = 0

    @abstractmethod
    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Let go of files and devices; may be called twice."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _skip(self, reason: str) -> None:
        """Count a frame that is left out."""
        self.bad_frames.append((self.frames_seen, reason))
        self.frames_seen += 1


def open_source(source: Any) -> Source:
    """Open whatever frames can be read from.

    Args:
        source: The path of an image or a video; a folder, whose images are taken in natural order (2 before 10) and
            whose videos are not; a glob; a camera, by its number or device file; an RTSP or HTTP URL; an image as an
            array, PIL image or tensor; an iterable of these; or a `Source`, which is returned as it is.

    Returns:
        The source, opened. What can't be read at all is an error here; one bad frame among others is not.

    Raises:
        SourceError: Nothing can be read from it; the message names it.
        InputError: It is of no type above.
    """
    return _open(source, "image")


def split_sources(source: Any) -> list[Any]:
    """What runs side by side: the items of a list or tuple, unless all are images; else the source alone."""
    if isinstance(source, list | tuple) and not all(map(_is_image, source)):
        return list(source)
    return [source]


def _open(source: Any, name: str) -> Source:
    """Open a source; `name` is for what has none of its own."""
    if isinstance(source, Source):
        return source
    if isinstance(source, int) or (isinstance(source, str) and source.isdecimal()):
        return VideoSource(f"/dev/video{source}")
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if hasattr(source, "shape") or hasattr(source, "getexif"):
        return ImageSource(source, name)
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        return ListSource(source, type(source).__name__)
    raise InputError(f"source must be a path, URL, camera, image or an iterable of these, got {type(source).__name__}.")


def _open_path(text: str) -> Source:
    if "://" in text or text.startswith("/dev/video"):
        return VideoSource(text)
    path = Path(text)
    try:
        if path.is_dir():
            return _open_files(text, "folder with images", filter(_is_image, path.iterdir()))
        if path.exists():
            return ImageSource(path, text) if _is_image(path) else VideoSource(text)
    except OSError as error:
        raise SourceError(f"source must be readable, {text!r} is not: {explain(error)}.") from error
    if glob.has_magic(text):
        return _open_files(text, "glob that matches files", map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207
    raise SourceError(f"source must exist, {text!r} does not.")


def _open_files(text: str, what: str, paths: Iterable[Path]) -> Source:
    found = sorted(paths, key=_natural)
    if not found:
        raise SourceError(f"source must be a {what}, {text!r} has none.")
    return ListSource(found, text)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that compares numbers in names by value."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path)) if part]


def _files_of(item: Any) -> list[Path]:
    """The files that a source will read, as far as its name tells."""
    if isinstance(item, Source):
        return list(item.files)
    if not isinstance(item, str | os.PathLike):
        return []
    text = os.fspath(item)
    if "://" in text:  # FFmpeg's protocols can be nested, as in async:file:///a.mp4
        return [Path(found) for found in re.findall(r"file:([^|]+)", text)]
    path = Path(text)
    if isinstance(item, Path) and _is_image(path):
        return [path]  # one of a folder's or glob's thousands
    if path.is_dir():
        return list(filter(_is_image, path.iterdir()))
    if path.exists() or not glob.has_magic(text):
        return [path]
    return list(map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207


def _is_image(item: Any) -> bool:
    """Whether an item is one image: in memory, or a file that is named like one."""
    if isinstance(item, str | os.PathLike):
        return Path(item).suffix.lower() in IMAGE_SUFFIXES
    return hasattr(item, "shape") or hasattr(item, "getexif")


class ImageSource(Source):
    """One image, read when it is opened.

    Args:
        image: What `to_image` takes.
        name: Its path, or what to call it.

    Raises:
        SourceError: The file can't be read.
        InputError: It is no image.
    """

    kind = "image"
    length = 1

    def __init__(self, image: Any, name: str) -> None:
        super().__init__(name)
        self._image = to_image(image, name)
        self.files = _files_of(image)
        self.size_hw = (self._image.shape[0], self._image.shape[1])

    def __iter__(self) -> Iterator[Frame]:
        self.frames_seen = 1
        yield Frame(0, None, self._image, self.name, self.name)


class ListSource(Source):
    """Sources one after the other, each opened when its turn comes, their frames numbered through.

    An item that can't be opened is one bad frame.

    Args:
        items: What `open_source` takes.
        name: Of the whole.
    """

    kind = "list"

    def __init__(self, items: Iterable[Any], name: str) -> None:
        super().__init__(name)
        self._items = items
        if isinstance(items, list | tuple):
            self.files = [path for item in items for path in _files_of(item)]
        if isinstance(items, list | tuple) and all(map(_is_image, items)):
            self.length = len(items)

    def __iter__(self) -> Iterator[Frame]:
        for position, item in enumerate(self._items):
            try:
                source = _open(item, f"{self.name}[{position}]")
            except SourceError as error:
                self._skip(str(error))
                continue
            self.look = self.look or source.look
            with source:
                yield from self._number(source)

    def _number(self, source: Source) -> Iterator[Frame]:
        """The frames of one of the sources, counted from where the last one ended."""
        first = self.frames_seen
        try:
            for frame in source:
                yield replace(frame, index=first + frame.index, source=self.name)
        finally:
            self.bad_frames += [(first + index, reason) for index, reason in source.bad_frames]
            self.frames_seen = first + source.frames_seen


class VideoSource(Source):
    """A video file, camera or network stream, decoded by FFmpeg, upright.

    A damaged frame costs itself, and those that can't be shown without it; they are counted where the container gives
    times to its packets, as all but raw streams do. So each frame has the index it has in the whole file. Frames that
    are predicted from a damaged one are shown as FFmpeg decodes them, up to the next key frame with traces of it. A
    file that ends before the time it announces gets one more entry in `bad_frames`, for its end.

    Args:
        name: Path, device file or URL.

    Raises:
        SourceError: It can't be opened, has no video, or not one frame of it can be decoded.
    """

    kind = "video"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.files = _files_of(name)
        self._container = _open_container(name)
        self._stream = self._container.streams.video[0]
        is_device = name.startswith("/dev/video")
        self.is_live = is_device or ("://" in name and self._container.duration is None)
        self._stream.thread_type = "SLICE" if self.is_live else "AUTO"  # a thread per frame is faster, and later
        rate = self._stream.average_rate
        self.fps = float(rate) if rate else None
        self.length = None if self.is_live else self._announced_length(rate)
        self._to_rgb = av.video.reformatter.VideoReformatter()
        self._due: list[int] = []  # a heap: presentation times of packets that gave no frame yet
        # What the decoder last said of damage; FFmpeg's HEVC decoder says nothing.
        self._damage = _DAMAGED if self._stream.codec_context.name == "hevc" else None
        self._end_s = 0.0
        self._frames = self._read()
        self._first = next(self._frames, None)
        if self._first is None:
            self.close()
            raise SourceError(f"source must have a frame that can be decoded, {name!r} has none.")
        self.size_hw = (self._first.image.shape[0], self._first.image.shape[1])

    def _announced_length(self, rate: Fraction | None) -> int | None:
        if self._stream.frames:
            return self._stream.frames
        if self._container.duration and rate:
            return round(self._container.duration / av.time_base * rate)
        return None

    def __iter__(self) -> Iterator[Frame]:
        if self._first is not None:
            first, self._first = self._first, None
            yield first
            yield from self._frames

    def close(self) -> None:
        """Close the file or device; may be called twice."""
        self._container.close()

    def _read(self) -> Iterator[Frame]:
        for packet in self._packets(self._container, self._stream):
            if packet.size and packet.pts is not None and not packet.is_discard:
                heappush(self._due, packet.pts)
                self._end_s = max(self._end_s, float((packet.pts + (packet.duration or 0)) * packet.time_base))
            for picture in self._decode(packet):
                yield from self._show(picture)
        if self._due and not self.is_live:
            yield from self._read_end()
        self._miss_before(None)
        announced_s = _announced_end_s(self._stream)
        if self.fps and announced_s - self._end_s > 1.5 / self.fps:
            self._skip(f"{self.name}: the video breaks off at {self._end_s:.2f} of {announced_s:.2f} s")

    def _read_end(self) -> Iterator[Frame]:
        """The frames still due, decoded again one by one: damage ends PyAV's draining of the decoder's threads."""
        with _open_container(self.name) as container:
            stream = container.streams.video[0]
            stream.thread_type = "SLICE"
            container.seek(self._due[0], stream=stream)
            for packet in self._packets(container, stream):
                for picture in self._decode(packet):
                    if self._due and picture.pts is not None and picture.pts >= self._due[0]:
                        yield from self._show(picture)

    def _packets(self, container: av.container.InputContainer, stream: av.VideoStream) -> Iterator[av.Packet[Any]]:
        """The packets up to the end, or to where the file breaks off, and an empty one that drains the decoder."""
        try:
            yield from container.demux(stream)
        except av.error.FFmpegError as error:
            if self.is_live:
                raise FrameError(f"{self.name!r} broke off: {explain(error)}.", index=self.frames_seen) from error
            self._damage = explain(error)
            drain: av.Packet[Any] = av.Packet()
            drain.stream = stream
            yield drain

    def _decode(self, packet: av.Packet[Any]) -> list[av.VideoFrame]:
        """The pictures that come out of the decoder after this packet; none if it finds damage."""
        try:
            return packet.decode()
        except av.error.FFmpegError as error:
            self._damage = explain(error)
            if packet.size and packet.pts is None:  # it will not be missed
                self._skip(f"{self.name}: {self._damage}")
            return []

    def _show(self, picture: av.VideoFrame) -> Iterator[Frame]:
        """The frame of a picture, unless it is damaged."""
        self._miss_before(picture.pts)
        if picture.is_corrupt:
            self._damage = _DAMAGED
            self._skip(f"{self.name}: {self._damage}")
            return
        if self.look is None:
            self.look = read_look(picture, self._stream.sample_aspect_ratio)
        matrix = guess_matrix(picture)
        rgb = self._to_rgb.reformat(picture, format="rgb24", src_colorspace=matrix, threads=_CONVERTING_THREADS)
        pixels = np.asarray(rgb.to_ndarray(), dtype=np.uint8)
        image = np.ascontiguousarray(np.rot90(pixels, round(picture.rotation / 90)))
        index = self.frames_seen
        self.frames_seen += 1
        yield Frame(index, picture.time, image, self.name, f"{self.name}#{index}")

    def _miss_before(self, pts: int | None) -> None:
        """Count the frames due before `pts`, None being the end, as lost if the stream is damaged.

        If it is not, they are no frames: second fields, or pictures that are never to be shown.
        """
        while self._due and (pts is None or self._due[0] <= pts):
            if heappop(self._due) != pts and self._damage is not None:
                self._skip(f"{self.name}: {self._damage}")


def _open_container(name: str) -> av.container.InputContainer:
    try:
        container = av.open(
            name,
            format="v4l2" if name.startswith("/dev/video") else None,
            options={"rtsp_transport": "tcp"} if name.startswith("rtsp:") else {},
            timeout=(_OPEN_TIMEOUT_S, _READ_TIMEOUT_S),
        )
    except (av.error.FFmpegError, OSError) as error:
        raise SourceError(
            f"source must be an image, video or stream, {name!r} can't be read: {explain(error)}."
        ) from error
    if not container.streams.video:
        container.close()
        raise SourceError(f"source must contain video, {name!r} contains none.")
    return container


def _announced_end_s(stream: av.VideoStream) -> float:
    """When the last frame ends, as the file's head says; 0 if it does not say."""
    if stream.duration is not None and stream.time_base is not None:
        return float((stream.duration + (stream.start_time or 0)) * stream.time_base)
    hours, minutes, seconds = (stream.metadata.get("DURATION") or "0:0:0").split(":")  # Matroska
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)

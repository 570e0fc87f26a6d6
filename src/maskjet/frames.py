"""Where frames come from: images, folders, globs, videos, cameras, URLs, arrays, and lists of these."""

from __future__ import annotations

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from maskjet.errors import FrameError, InputError, MaskjetError, SourceError
from maskjet.images import IMAGE_SUFFIXES, to_image

_OPEN_TIMEOUT_S, _READ_TIMEOUT_S = 10.0, 10.0


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


class Source(ABC):
    """An iterable of frames that can be iterated over once; also a context manager.

    Attributes:
        name: What it was opened with.
        length: How many frames it should have; None if that can't be known.
        fps: Frames per second; None where there is no clock.
        is_live: Whether frames come as they happen, from a camera or a network stream.
        bad_frames: (index, reason) of the frames left out because they could not be decoded.
    """

    name: str
    length: int | None = None
    fps: float | None = None
    is_live: bool = False

    def __init__(self) -> None:
        self.bad_frames: list[tuple[int, str]] = []

    @abstractmethod
    def __iter__(self) -> Iterator[Frame]: ...

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Let go of files and devices; may be called twice."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    if isinstance(source, Source):
        return source
    if isinstance(source, int) or (isinstance(source, str) and source.isdecimal()):
        return VideoSource(f"/dev/video{source}")
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if hasattr(source, "shape") or hasattr(source, "getexif"):
        return ListSource([to_image(source, "image")], name="image", is_strict=True)
    if isinstance(source, Iterable):
        return ListSource(source, name=type(source).__name__)
    raise InputError(f"source must be a path, URL, camera, image or an iterable of these, got {type(source).__name__}.")


def _open_path(text: str) -> Source:
    path = Path(text)
    if "://" in text or text.startswith("/dev/video"):
        return VideoSource(text)
    if path.is_dir():
        found = sorted((file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES), key=_natural)
        if not found:
            raise SourceError(f"source must be a folder with images, {text!r} has none.")
        return ListSource(found, name=text)
    if not path.exists() and glob.has_magic(text):
        found = sorted((Path(file) for file in glob.glob(text, recursive=True)), key=_natural)  # noqa: PTH207 - absolute
        if not found:
            raise SourceError(f"source must be a glob that matches files, {text!r} matches none.")
        return ListSource(found, name=text)
    if not path.exists():
        raise SourceError(f"source must exist, {text!r} does not.")
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return ListSource([path], name=text, is_strict=True)
    return VideoSource(text)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that compares numbers in names by value."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", str(path)) if part]


class ListSource(Source):
    """Images and videos one after the other, numbered through.

    Args:
        items: Images, paths of images and paths of videos.
        name: Of the whole.
        is_strict: Whether a bad item is an error rather than a bad frame.
    """

    def __init__(self, items: Iterable[Any], *, name: str, is_strict: bool = False) -> None:
        super().__init__()
        self.name = name
        self._items = items
        self._is_strict = is_strict
        if isinstance(items, list | tuple) and not any(map(_is_video, items)):
            self.length = len(items)

    def __iter__(self) -> Iterator[Frame]:
        index = 0
        for position, item in enumerate(self._items):
            if isinstance(item, str | os.PathLike) and _is_video(item):
                with closing(VideoSource(os.fspath(item))) as video:
                    for frame in video:
                        yield Frame(index + frame.index, frame.time_s, frame.image, self.name, frame.name)
                    self.bad_frames += [(index + bad, reason) for bad, reason in video.bad_frames]
                    index += video.frames_seen
                continue
            name = os.fspath(item) if isinstance(item, str | os.PathLike) else f"{self.name}[{position}]"
            try:
                image = to_image(item, name)
            except MaskjetError as error:
                if self._is_strict:
                    raise
                self.bad_frames.append((index, str(error)))
            else:
                yield Frame(index, None, image, self.name, name)
            index += 1


def _is_video(item: Any) -> bool:
    """Whether an item of a list is to be opened as a video."""
    if not isinstance(item, str | os.PathLike):
        return False
    text = os.fspath(item)
    return "://" in text or Path(text).suffix.lower() not in IMAGE_SUFFIXES


class VideoSource(Source):
    """A video file, camera or network stream, decoded by FFmpeg.

    A packet that can't be decoded costs the frame it would have given; so does one FFmpeg marks as damaged. A file
    that ends before the number of frames it announces gets one more entry in `bad_frames`, for its end.

    Args:
        name: Path, device file or URL.

    Raises:
        SourceError: It can't be opened or has no video.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.is_live = name.startswith(("/dev/video", "rtsp:", "rtmp:", "udp:"))
        self.frames_seen = 0
        try:
            self._container = av.open(
                name,
                format="v4l2" if name.startswith("/dev/video") else None,
                options={"rtsp_transport": "tcp"} if name.startswith("rtsp:") else {},
                timeout=(_OPEN_TIMEOUT_S, _READ_TIMEOUT_S),
            )
        except (av.error.FFmpegError, OSError) as error:
            raise SourceError(
                f"source must be an image, video or stream, {name!r} can't be read: {_why(error)}."
            ) from error
        if not self._container.streams.video:
            self.close()
            raise SourceError(f"source must contain video, {name!r} contains none.")
        self._stream = self._container.streams.video[0]
        self._stream.thread_type = "AUTO"
        rate = self._stream.average_rate
        self.fps = float(rate) if rate else None
        self.length = None if self.is_live else self._announced_length(rate)

    def _announced_length(self, rate: Fraction | None) -> int | None:
        if self._stream.frames:
            return self._stream.frames
        if self._container.duration and rate:
            return round(self._container.duration / av.time_base * rate)
        return None

    def __iter__(self) -> Iterator[Frame]:
        for packet in self._packets():
            try:
                decoded = packet.decode()
            except av.error.FFmpegError as error:
                self._skip(_why(error))
                continue
            for picture in decoded:
                if picture.is_corrupt:
                    self._skip("its data are damaged")
                    continue
                index = self.frames_seen
                self.frames_seen += 1
                pixels = np.asarray(picture.to_ndarray(format="rgb24"), dtype=np.uint8)
                image = np.rot90(pixels, round(picture.rotation / 90) % 4)
                yield Frame(index, picture.time, image, self.name, f"{self.name}#{index}")
        announced = self._stream.frames
        if self.frames_seen < announced:
            self._skip(f"the video ends after {self.frames_seen} of {announced} frames")

    def _packets(self) -> Iterator[av.Packet[Any]]:
        """The packets up to the end, or to where the file breaks off."""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except av.error.FFmpegError as error:
                if self.is_live:
                    raise FrameError(f"{self.name!r} broke off: {_why(error)}.", index=self.frames_seen) from error
                self._skip(_why(error))
                return
            if packet is None:
                return
            yield packet

    def _skip(self, reason: str) -> None:
        self.bad_frames.append((self.frames_seen, f"{self.name}: {reason}"))
        self.frames_seen += 1

    def close(self) -> None:
        """Close the file or device; may be called twice."""
        self._container.close()


def _why(error: Exception) -> str:
    """FFmpeg's reason, without its error number."""
    return getattr(error, "strerror", None) or str(error)

"""The interface of sources: frames in order, each with its index, read once by one reader."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from maskjet.errors import InputError, device_error
from maskjet.sources.colours import PictureFormat
from maskjet.sources.decoding import ON_CPU, Decoding, check_decoder
from maskjet.sources.metering import Meter, SourceState
from maskjet.sources.selection import EVERYTHING, Selection, select_frames

if TYPE_CHECKING:
    import torch

    from maskjet.sources.conversion import HeldPicture
    from maskjet.sources.counts import Count
    from maskjet.sources.picture import Picture


@dataclass(frozen=True, eq=False)
class Frame:
    """One image of a source.

    Examples:
        >>> import maskjet
        >>> image = maskjet.traffic.sample(seed=3).image
        >>> frame, found = next(maskjet.load("demo").stream([image]))
        >>> frame.index, frame.image.shape == image.shape
        (0, True)
    """

    index: int
    """Index in the source, from 0; counts frames that could not be decoded, not missing packets."""
    time_s: float | None
    """Presentation time in seconds; None if the source has no clock."""
    pixels: NDArray[np.uint8] | torch.Tensor | HeldPicture | Picture
    """uint8 [H, W, 3] RGB on the host or as a GPU tensor; or a decoded video picture that is not RGB yet."""
    source: str
    """Name of the source: its path or URL, if any; a URL without user, password and query values."""
    name: str
    """Name of the image, its path if it has one; for a video, the video's name, "#" and the index."""
    stream: int = 0
    """Index of the frame's source among those read in parallel, from 0."""
    counts: Sequence[Count] = ()
    """Counts of lines and zones up to this frame, which outputs show; none if it was not counted."""
    arrived_s: float | None = None
    """When the demuxer handed out a live frame's packet, by `time.monotonic`; None of other frames."""

    @cached_property
    def image(self) -> NDArray[np.uint8]:
        """uint8 [H, W, 3], RGB; a frame in GPU memory is copied, a picture converted, on first access.

        Raises:
            DeviceError: The GPU failed.
        """
        return self.pixels if isinstance(self.pixels, np.ndarray) else self._download(None)

    def copy_to(self, out: NDArray[np.uint8]) -> None:
        """Copy the image into uint8 [H, W, 3], contiguous; without keeping it as `image` if it is not there yet.

        Raises:
            DeviceError: The GPU failed.
        """
        if isinstance(self.pixels, np.ndarray) or "image" in self.__dict__:
            np.copyto(out, self.image)
        else:
            self._download(out)

    def _download(self, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """Copy or convert the image into `out`, or a new array if None."""
        import torch

        assert not isinstance(self.pixels, np.ndarray)
        try:
            if not isinstance(self.pixels, torch.Tensor):
                return self.pixels.to_rgb(out)
            return (self.pixels.cpu() if out is None else torch.from_numpy(out).copy_(self.pixels)).numpy()
        except RuntimeError as error:
            raise device_error(f"frame {self.index} of {self.source!r}", self.index, error) from error

    @property
    def size_hw(self) -> tuple[int, int]:
        """(height, width) in pixels."""
        pixels: Any = self.pixels
        height, width = pixels.size_hw if hasattr(pixels, "size_hw") else pixels.shape[:2]
        return height, width

    @property
    def is_of_video(self) -> bool:
        """Whether the frame is from a video, camera or stream, not an image; raw video frames have no times."""
        return self.time_s is not None or self.name.rpartition("#")[2].isdecimal()


class Source(ABC):
    """An iterable of frames in order, to be read once; a context manager.

    Args:
        name: Path or URL the source is opened with, or another name for it.

    Attributes:
        kind: Kind of source: "image", "list" or "video".
        name: Name of the source, as given; of a URL without user, password and the values in its query, but for numbers
            of up to three digits.
        length: Expected number of frames it gives; None if unknown.
        fps: Frames given per second of the source's time; None if there is no clock.
        size_hw: (height, width) of the first frame in pixels; None if unknown before it is read.
        picture_format: Colours and pixel aspect ratio; None for images, and before a video's first frame is decoded.
        root: Folder below which annotated images and labels keep their images' sub-folders; None if they keep none.
        files: Files the source reads, as far as they are known beforehand.
        is_live: Whether frames arrive in real time, from a camera or an endless stream.
        frames_seen: Number of frames so far, including those left out and those in `bad_frames`; the index of the next.
        bad_frames: One (index, reason) per frame that could not be decoded, and per gap where frames are missing: a gap
            has the next frame's index. Of a live source, the last 1,000.
        frames_dropped: Number of frames skipped because newer ones had arrived.
        decoder: Where its video, or the JPEGs among its images, are decoded: "cpu", or "cuda:N", whose frames stay in
            GPU memory.
        fallback: Why frames are decoded or converted on the CPU although the GPU was to do it, the first reason of
            several; None if they are not.
        taken_every: Distance of the frames that are taken of a live source, as the machine is full; 1 for all.
        keeps_yuv: Whether pictures of a video that the CPU decodes become RGB only where that is asked for; set before
            frames are read.
        on_fallback: Called by a list with the reason of each image or video that the CPU decodes though the GPU was to.
    """

    kind: ClassVar[Literal["image", "list", "video"]]
    length: int | None = None
    fps: float | None = None
    size_hw: tuple[int, int] | None = None
    picture_format: PictureFormat | None = None
    root: Path | None = None
    files: Sequence[Path] = ()
    is_live: bool = False
    decoder: str = "cpu"
    fallback: str | None = None
    taken_every: int = 1
    keeps_yuv: bool = False
    on_fallback: Callable[[str], object] = staticmethod(lambda _: None)

    def __init__(self, name: str) -> None:
        self.name = name
        self.frames_seen = 0
        self.bad_frames: list[tuple[int, str]] = []
        self.frames_dropped = 0
        self._meter = Meter()
        self._is_connected, self._is_closed = True, False
        self._reader = threading.Lock()  # acquired by the first reader and never released

    def __iter__(self) -> Iterator[Frame]:
        """The frames, for one reader only; raises InputError if there is or was another."""
        if not self._reader.acquire(blocking=False):
            raise InputError(f"source must be read once, {self.name!r} is or was read already: open it once more.")
        return self._measured(self._read())

    def _measured(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        try:
            for frame in frames:
                self._meter.add(frame.time_s)
                yield frame
        except Exception:
            self._is_connected = False
            raise
        self._is_connected &= self._is_closed

    @property
    def state(self) -> SourceState:
        """Current state of the source; may be read by any thread, while another one reads frames."""
        return SourceState(
            connected=self._is_connected,
            fps=self._meter.fps,
            lag_s=self._meter.lag_s if self.is_live else None,
            latency_s=self._meter.latency_s,
            taken_every=self.taken_every,
            drops=self.frames_dropped,
            bad_frames=len(self.bad_frames),
        )

    def note_latency(self, latency_s: float) -> None:
        """Record the time from a frame's packet to its result, in seconds."""
        self._meter.latencies.append(latency_s)

    @abstractmethod
    def _read(self) -> Iterator[Frame]:
        """Yield the frames."""

    def close(self) -> None:  # noqa: B027 - most sources hold nothing open
        """Release files and devices; may be called twice, and while another thread reads."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fall_back(self, reason: str) -> None:
        """Record why an image or video of a list is decoded on the CPU."""
        self.fallback = self.fallback or reason
        self.on_fallback(reason)

    def _skip(self, reason: str, count: int = 1) -> None:
        """Record skipped frames and the reason; `count` is 0 for missing packets."""
        self.bad_frames.append((self.frames_seen, reason))
        self.frames_seen += count


@dataclass(frozen=True)
class Opening:
    """Options for opening a source."""

    selection: Selection = EVERYTHING
    """Frames to select."""
    reconnect_for: float = math.inf
    """Seconds after which a failing reconnection ends a live source; 0 to end it at once."""
    decoding: Decoding = ON_CPU
    """Where videos and JPEGs are decoded."""


DEFAULT_OPENING = Opening()
"""All frames, decoded on the CPU; live sources reconnect for ever."""


@dataclass(frozen=True, eq=False)
class UnopenedSource:
    """A source not yet opened; thousands take no file handles and little memory."""

    name: str
    """Name of the source once opened."""
    files: Sequence[Path]
    """Files that the source will read, as far as known."""
    opening: Callable[[Opening], Source]
    """Function that opens the source."""
    root: Path | None = None
    """Folder relative to which outputs keep sub-folders in their names; None to drop sub-folders."""

    def open(self, **arguments: Any) -> Source:
        """Open the source; keyword arguments and errors are those of `open_source`."""
        return self.opening(check_opening(**arguments))


def check_opening(
    every: int = 1,
    start: int | str = 0,
    limit: int | None = None,
    reconnect_for: float = math.inf,
    decoder: str | Decoding = "cpu",
) -> Opening:
    """Check the arguments of `open_source`; raises InputError if one is not as described there."""
    if isinstance(reconnect_for, bool) or not isinstance(reconnect_for, int | float) or not reconnect_for >= 0:
        raise InputError(f"reconnect_for must be a number of seconds from 0, or infinite, got {reconnect_for!r}.")
    return Opening(select_frames(every, start, limit), reconnect_for, check_decoder(decoder))

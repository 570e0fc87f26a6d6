"""Opening sources: images, folders, globs, videos, cameras, URLs, arrays, and lists of these."""

from __future__ import annotations

import glob
import math
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from maskjet.errors import InputError, SourceError
from maskjet.host.files import path_of_url
from maskjet.sources.ahead import Encoded, Loaded, is_encoded, load_ahead, read_encoded
from maskjet.sources.containers import files_of, is_camera, is_stream, stream_named
from maskjet.sources.decoding import Decoding
from maskjet.sources.folders import is_image_path, is_video_path, list_folder, match_glob, mode_of, mode_of_source
from maskjet.sources.images import Image, read_file, to_pixels
from maskjet.sources.live import open_stream
from maskjet.sources.pillow_images import open_with_pillow
from maskjet.sources.selection import EVERYTHING, BeyondEndError
from maskjet.sources.source import DEFAULT_OPENING, Frame, Opening, Source, UnopenedSource, check_opening
from maskjet.sources.videos import open_video_source

__all__ = [
    "Frame",
    "ImageSource",
    "ListSource",
    "Source",
    "UnopenedSource",
    "kind_of_source",
    "open_source",
    "open_with",
    "split_sources",
]


def open_source(
    source: Any,
    *,
    every: int = 1,
    start: int | str = 0,
    limit: int | None = None,
    recursive: bool = False,
    reconnect_for: float = math.inf,
    decoder: str | Decoding = "cpu",
) -> Source:
    """Open a source of frames.

    Frames keep the index and time they have in the whole source, whichever of them are given.

    Args:
        source: The path of an image or a video; a folder, whose images are read in
            natural order (2 before 10) and whose videos and hidden files are ignored; a glob, whose files are joined; a
            camera, by number or device file; an RTSP or HTTP URL; an image as an array, PIL image, tensor or a file's
            content as `bytes`; an iterable of these; an `UnopenedSource` of `maskjet.expand_sources`,
            which makes a source of each video; or a `Source`, which is returned as is.
        every: Distance between two frames given: 10 for one in ten. Cameras count frames as they arrive.
        start: First frame given, by index, or by time after the source's first frame: "12.5s", "1:02" or "1:02:03.5".
            Only a single video has times; a live source has no start.
        limit: Most frames given; None for all.
        recursive: Whether a folder's sub-folders are read, too; see `maskjet.sources.folders.list_folder`.
        reconnect_for: Seconds for which a live source that broke off, ended or gave nothing for 10 s is opened again,
            at growing intervals; `math.inf` for ever, 0 not at all. Items of a list are not opened again.
        decoder: Where videos and JPEGs are decoded: "cpu"; "cuda" or "cuda:N", a GPU, which keeps the frames in its
            memory until `Frame.image` is asked for; or the result of `Model.decoding`. Those that the GPU can't decode
            go to the CPU, and `Source.fallback` says why.

    Returns:
        The opened source, whose `length` and `fps` are those of the frames it gives.
        A frame that turns out bad later, or a file of a folder or glob that is gone when its turn comes, is no error;
        it is listed in `bad_frames`.

    Raises:
        SourceError: Nothing can be read from the source, it ends before `start`, a file named in a list does not
            exist, or the source is a FIFO, socket or device; the message names it.
        InputError: The source is of none of the types above, an argument is out of range, `start` is a time and the
            source has none, or it is live and has a start.
    """
    opening = check_opening(every, start, limit, reconnect_for, decoder)
    if isinstance(source, Source) and not math.isinf(reconnect_for):
        raise InputError(f"reconnect_for must be given when {source.name!r} is opened; it is open already.")
    if recursive and isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), opening, recursive=True)
    return open_with(source, opening)


def split_sources(source: Any) -> list[Any]:
    """Split a list or tuple into sources to read in parallel; a list of images stays one source.

    Raises:
        SourceError: A named file does not exist.
        InputError: An opened source is given twice.
    """
    if not isinstance(source, list | tuple) or all(map(_is_image, source)):
        return [source]
    for position, item in enumerate(source):
        _check_named(item)
        if isinstance(item, Source | Iterator) and any(item is other for other in source[:position]):
            name = getattr(item, "name", type(item).__name__)
            raise InputError(f"source must be given once, {name!r} is given twice: open it twice.")
    return list(source)


def open_images(source: Any, decoder: str | Decoding) -> Source | None:
    """Open a folder, a glob or a list of several images; None for any other source; raises as `open_source`."""
    if isinstance(source, list | tuple) or kind_of_source(source) in ("a folder", "a glob"):
        source = open_source(source, decoder=decoder)
    has_several = isinstance(source, Source) and source.kind == "list" and (source.length or 0) > 1
    return source if has_several else None


def kind_of_source(value: Any) -> str | None:
    """Describe a source of several frames for messages, such as "a folder"; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "a camera"
    if not isinstance(value, str | os.PathLike):
        return None
    try:
        text = path_of_url(os.fspath(value))
        if is_stream(text):
            return "a camera" if is_camera(text) else "a video or camera"
        mode = mode_of(text)
    except SourceError:
        return None
    if mode is None and (stream_named(text) or glob.has_magic(text)):
        return "a camera" if stream_named(text) else "a glob"
    if mode is not None and stat.S_ISDIR(mode):
        return "a folder"
    return "a video" if Path(text).suffix and not _is_image(text) else None


def open_with(source: Any, opening: Opening, name: str = "image") -> Source:
    """Open a source; `name` is used for images in memory."""
    if isinstance(source, Source):
        if opening.selection != EVERYTHING:
            raise InputError(
                f"every, start and limit must be given when {source.name!r} is opened; it is open already."
            )
        return source
    if isinstance(source, UnopenedSource):
        return source.opening(opening)
    if isinstance(source, int):
        return open_stream(f"/dev/video{source}", opening)
    if isinstance(source, str) and (stream := stream_named(source)) is not None:
        return open_stream(stream, opening)
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), opening)
    if _is_image(source):
        return ImageSource(source, name, opening)
    if isinstance(source, Iterable) and not isinstance(source, bytearray):
        if isinstance(source, list | tuple):
            for item in source:
                _check_named(item)
        return ListSource(source, type(source).__name__, opening)
    raise InputError(f"source must be a path, URL, camera, image or an iterable of these, got {type(source).__name__}.")


def _open_path(text: str, opening: Opening, *, recursive: bool = False, is_item: bool = False) -> Source:
    """Open a path or URL; an animated GIF is refused, except in a list, where its first image is used."""
    text = path_of_url(text)
    if is_stream(text):
        return open_stream(text, opening)
    mode = mode_of_source(text)
    if mode is None:
        return ListSource(match_glob(text), text, opening)
    if stat.S_ISDIR(mode):
        return _open_folder(text, opening, recursive=recursive)
    if not stat.S_ISREG(mode):  # reading it might wait for ever
        raise SourceError(
            f"source must be a file, folder, camera or URL, {text!r} is a FIFO, socket or device: save what comes from "
            "it to a file, or serve it at a URL."
        )
    if is_image_path(text):
        if not is_item and text.lower().endswith(".gif"):
            _refuse_animation(Path(text))
        return ImageSource(Path(text), text, opening)
    return open_video_source(text, opening.selection, opening.decoding)


def _refuse_animation(path: Path) -> None:
    """Raise SourceError for an animated GIF, of which only the first image would be read."""
    is_animated = False
    with suppress(Exception):  # Pillow raises many types; reading the image reports the error
        is_animated = open_with_pillow(read_file(path)).is_animated
    if is_animated:
        raise SourceError(f"source must be an image or a video, {str(path)!r} is an animation: make an MP4 of it.")


def _open_folder(text: str, opening: Opening, *, recursive: bool) -> Source:
    files = list_folder(text, recursive=recursive)
    images = list(filter(is_image_path, files))
    if not images:
        videos = sum(map(is_video_path, files))
        but = f", but {videos} video{'s'[: videos > 1]}: open each that maskjet.expand_sources finds" if videos else ""
        raise SourceError(f"source must be a folder with images, {text!r} has none{but}.")
    return ListSource(images, text, opening, Path(text) if recursive else None, are_images=True)


def _check_named(item: Any) -> None:
    """Raise if an item is the path of a missing file."""
    if isinstance(item, str | os.PathLike):
        text = path_of_url(os.fspath(item))
        if stream_named(text) is None:
            mode_of_source(text)


def _files_of(item: Any) -> list[Path]:
    """The files that a source will read, as far as they follow from its name."""
    if isinstance(item, Source):
        return list(item.files)
    if not isinstance(item, str | os.PathLike):
        return []
    text = path_of_url(os.fspath(item))
    path = Path(text)
    if is_stream(text) or (isinstance(item, Path) and is_image_path(path)):  # the second: a folder may have thousands
        return files_of(text)
    if path.is_dir():
        return list(filter(is_image_path, path.iterdir()))
    if path.exists() or not glob.has_magic(text):
        return [path]
    return list(map(Path, glob.glob(text, recursive=True)))  # noqa: PTH207


def _is_image(item: Any) -> bool:
    """Whether an item is a single image: in memory, or a path with an image suffix that is no glob or URL."""
    if isinstance(item, str | os.PathLike):
        text = path_of_url(os.fspath(item))
        return is_image_path(text) and not (is_stream(text) or (glob.has_magic(text) and mode_of(text) is None))
    names = ("__dlpack__", "shape", "getexif")
    return isinstance(item, bytes) or any(hasattr(item, name) for name in names)  # nested tensors' shape raises


class ImageSource(Source):
    """A single image, a path or anything that `to_pixels` accepts; read when opened.

    Raises:
        SourceError: The file can't be read.
        InputError: The value is no image, or the selection has a start.
    """

    kind = "image"
    length = 1

    def __init__(self, image: Any, name: str, opening: Opening = DEFAULT_OPENING) -> None:
        super().__init__(name)
        opening.selection.check_length(name, 1)
        self._pixels: Image | torch.Tensor
        if opening.decoding.device == "cpu" or not is_encoded(image):
            self._pixels = to_pixels(image, name)
            if isinstance(self._pixels, torch.Tensor):  # so that any stream may read it
                torch.cuda.current_stream(self._pixels.device).synchronize()
        else:
            (loaded,) = load_ahead([partial(read_encoded, image, name)], opening.decoding, self._fall_back)
            if isinstance(loaded, InputError):
                raise loaded
            self._pixels = loaded
            self.decoder = opening.decoding.device if isinstance(loaded, torch.Tensor) else "cpu"
        self.files = _files_of(image)
        self.size_hw = (self._pixels.shape[0], self._pixels.shape[1])

    def _read(self) -> Iterator[Frame]:
        self.frames_seen = 1
        yield Frame(0, None, self._pixels, self.name, self.name)


class ListSource(Source):
    """Sources read in sequence, each opened when needed; frames are numbered continuously.

    An item that can't be opened, or breaks off, counts as one bad frame. An animation counts as an image, its first.
    Images that are left out by the selection are not read. Image files of a list or tuple are read and decoded ahead.

    Args:
        items: Sources, each as `open_source` takes it.
        name: Name of the whole list.
        opening: How its items are opened, and which frames to give of them all. Items are not opened again.
        root: Folder below which the images lie; see `Source.root`.
        are_images: Whether the items are a list of image files of a folder, about which nothing need be asked.

    Raises:
        BeyondEndError: The list, if its length is known, ends before the selection's start.
        InputError: The selection's start is a time.
    """

    kind = "list"

    def __init__(
        self,
        items: Iterable[Any],
        name: str,
        opening: Opening = DEFAULT_OPENING,
        root: Path | None = None,
        *,
        are_images: bool = False,
    ) -> None:
        super().__init__(name)
        selection = opening.selection
        self._items, self._selection, self.root, self._are_images = items, selection, root, are_images
        self._opening = replace(opening, reconnect_for=0)
        self._given = 0
        if isinstance(items, list | tuple):
            self.files = items if are_images else [path for item in items for path in _files_of(item)]
            if are_images or all(map(_is_image, items)):
                self.length = len(items)
        selection.check_length(name, self.length)
        self.length = selection.count(self.length)

    def _read(self) -> Iterator[Frame]:
        chosen = deque[int]()  # positions of the prefetched images
        with ExitStack() as stack:
            ahead: Iterator[Loaded] = iter(())
            for position, item in enumerate(self._items):
                is_left_out = not self._selection.has(self.frames_seen) and _is_image(item)
                loaded: Loaded | None = None
                if not chosen and not is_left_out and self._may_be_ahead(item):
                    stack.close()
                    images = load_ahead(self._choose(position, chosen), self._opening.decoding, self._fall_back)
                    ahead = stack.enter_context(closing(images))
                    loaded = next(ahead)
                elif chosen and chosen[0] == position:
                    loaded = next(ahead)
                if loaded is not None:
                    chosen.popleft()
                if is_left_out:
                    self.frames_seen += 1
                    continue
                try:
                    if loaded is None:
                        yield from self._read_item(item, position)
                    else:
                        yield self._frame_of(loaded, item, position)
                except BeyondEndError as error:
                    self.frames_seen += error.frames
                except SourceError as error:
                    self._skip(str(error))
                if self._given == self._selection.limit:
                    return
        if not self._given and 0 < self.frames_seen <= self._selection.start:
            raise BeyondEndError(self.name, self._selection.shown_start, self.frames_seen)

    def _name_of(self, position: int) -> str:
        return f"{self.name}[{position}]"

    def _may_be_ahead(self, item: Any) -> bool:
        """Whether an item may be prefetched: image files in a list; the next item of an iterator may block."""
        return self._are_images or (isinstance(self._items, list | tuple) and is_encoded(item) and _is_image(item))

    def _choose(self, first: int, chosen: deque[int]) -> Iterator[Callable[[], Encoded]]:
        """Yield a read function for each selected image from a position on, up to the first other item."""
        assert isinstance(self._items, list | tuple)
        given = self._given
        for index, position in enumerate(range(first, len(self._items)), self.frames_seen):
            item = self._items[position]
            if not self._may_be_ahead(item) or given == self._selection.limit:
                return
            if self._selection.has(index):
                given += 1
                chosen.append(position)
                yield partial(read_encoded, item, self._name_of(position))

    def _read_item(self, item: Any, position: int) -> Iterator[Frame]:
        opening = replace(self._opening, selection=self._selection.within(self.frames_seen, self._given))
        if isinstance(item, Source):
            source = item
        elif isinstance(item, str | os.PathLike) and _is_image(item):
            source = _open_path(os.fspath(item), opening, is_item=True)
        else:
            source = open_with(item, opening, self._name_of(position))
        frames = iter(source)  # raises if another reader uses it; then it must stay as it is
        source.keeps_yuv = self.keeps_yuv
        self.picture_format = self.picture_format or source.picture_format
        self.decoder = source.decoder
        with source:
            yield from self._number(source, frames)

    def _frame_of(self, loaded: Loaded, item: Any, position: int) -> Frame:
        """Make the frame of a prefetched image, or raise its error."""
        if isinstance(loaded, InputError):
            raise loaded
        name = self._name_of(position) if isinstance(item, bytes) else path_of_url(os.fspath(item))
        if isinstance(loaded, torch.Tensor):
            self.decoder = self._opening.decoding.device
        self._given += 1
        self.frames_seen += 1
        return Frame(self.frames_seen - 1, None, loaded, self.name, name)

    def _number(self, source: Source, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Yield the frames of one source, renumbered to follow the previous one, up to the limit."""
        first = self.frames_seen
        try:
            for frame in frames:
                if not self._selection.has(first + frame.index):  # a source opened by the caller has its own selection
                    continue
                self._given += 1
                yield replace(frame, index=first + frame.index, source=self.name)
                if self._given == self._selection.limit:
                    break
        finally:
            self.bad_frames += [(first + index, reason) for index, reason in source.bad_frames]
            self.frames_seen = first + source.frames_seen
            if source.fallback is not None:
                self._fall_back(source.fallback)

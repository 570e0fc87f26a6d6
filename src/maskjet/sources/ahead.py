"""Prefetch images: read and decode them ahead, in order, in a thread pool shared by the process.

A thread reads a file and looks at its header; then, as long as the images ahead fit into the memory for them, another
one decodes it, or the GPU does, together with others that are ready. The thread that takes the images hands all this
out, whenever it takes one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from maskjet.errors import InputError, MaskjetError, device_error, first_line
from maskjet.sources.decoding import ON_CPU, Decoding
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.images import Image, decode_image, path_of_image, read_file

if TYPE_CHECKING:
    from maskjet.sources.nvjpeg import JPEGDecoder
    from maskjet.sources.plain_jpegs import PlainJPEG

_MOST_THREADS = 64
_MOST_TOGETHER = 32  # JPEGs per batch of the GPU decoder
_GROUPS = 2  # batches in flight: one is decoded while the next is submitted
_ROUNDS = 4  # queued tasks per thread
_BUDGET = 2**28  # bytes of prefetched images per process, files and pixels: 90 of 720p
_BUDGET_GPU = 2**30  # the same if a GPU decodes into its memory

Loaded = Image | torch.Tensor | InputError
"""uint8 [H, W, 3] RGB, upright, in host memory or on the GPU; or the error of reading it."""


class Encoded(NamedTuple):
    """An encoded image: the content of an image file."""

    data: bytes
    """The whole file."""
    name: str
    """Name of the image in error messages, quoted if it is a path."""


def is_encoded(value: object) -> bool:
    """Whether an image is given as the path or the content of a file."""
    return isinstance(value, str | os.PathLike | bytes)


def read_encoded(value: Any, name: str) -> Encoded:
    """Read an image's file, `file:` URL or content, called `name` in messages; raises InputError or SourceError."""
    if isinstance(value, bytes):
        return Encoded(value, name)
    path = path_of_image(value, name)
    return Encoded(read_file(path), repr(str(path)))


class _Workers:
    """The process's prefetch threads, and a counter of the memory of prefetched images."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self.count = min(cores - cores // 4, _MOST_THREADS)  # the other cores process the images
        self.threads = ThreadPoolExecutor(self.count, "maskjet-images")
        self.held = 0  # bytes of prefetched images
        self._lock = threading.Lock()

    def hold(self, nbytes: int) -> None:
        """Add to the count of bytes in use; negative to release."""
        with self._lock:
            self.held += nbytes


_workers = cache(_Workers)
os.register_at_fork(after_in_child=_workers.cache_clear)  # threads do not survive a fork


def image_threads() -> ThreadPoolExecutor:
    """The threads that read and decode images, on three quarters of the cores that this process may use."""
    return _workers().threads


def load_ahead(
    reads: Iterable[Callable[[], Encoded]],
    decoding: Decoding = ON_CPU,
    on_fallback: Callable[[str], object] = lambda _: None,
) -> Generator[Loaded]:
    """Prefetch and decode images, each read by a function in a thread, within limits on files and bytes.

    The functions are iterated over ahead, which must not wait; closing this cancels pending ones. Yields each image in
    order, or the InputError of reading or decoding it. `on_fallback` gets the reason for each JPEG that the CPU decodes
    although the GPU was to do it. Raises DeviceError if the GPU failed, and any other error of reading.
    """
    rest = iter(reads)
    first = list(islice(rest, 2))
    rest, is_one = chain(first, rest), len(first) < 2
    ahead = _Ahead(decoding, on_fallback, _run_now if is_one else _workers().threads.submit)
    try:
        while ahead.fill(rest):
            yield ahead.take()
    finally:
        ahead.cancel()


def _run_now(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in this thread: for a single image, waking another thread costs 0.1 ms for nothing."""
    future: Future[Any] = Future()
    try:
        future.set_result(function(*args))
    except Exception as error:
        future.set_exception(error)
    return future


class _Look(NamedTuple):
    """An image file after reading: its size in memory, and the device that decodes it."""

    encoded: Encoded
    nbytes: int
    """Bytes of the file and of the decoded image, if the header states its size."""
    plain: PlainJPEG | None
    """JPEG for the GPU decoder; None if the CPU decodes the image."""
    fallback: str | None
    """Why the CPU decodes a JPEG meant for the GPU; None otherwise."""


@dataclass(eq=False, slots=True)
class _Loading:
    """State of a prefetched image."""

    looks: Future[list[_Look | Exception]]
    """Read results of a batch of images, or their errors."""
    number: int
    """Position of this image in `looks`."""
    look: _Look | Exception | None = None
    """This image's read result; None until collected."""
    decoded: Future[Any] | None = None
    """The decoded image, or the list of a GPU batch; None until decoding starts."""
    place: int | None = None
    """Position in the GPU batch; None if the CPU decodes the image."""


class _Ahead:
    """Prefetch queue of one reader; all methods are called by its thread."""

    def __init__(
        self, decoding: Decoding, on_fallback: Callable[[str], object], submit: Callable[..., Future[Any]]
    ) -> None:
        self._workers, self._on_fallback, self._submit = _workers(), on_fallback, submit
        self._jpegs: JPEGDecoder | None = None
        self._why_cpu: str | None = None
        if decoding.device != "cpu" and decoding.takes_jpegs:
            try:
                self._jpegs = decoding.jpeg_decoder()
            except MaskjetError as error:
                self._why_cpu = first_line(error)
        self._window = self._workers.count  # most files ahead: grows, as file sizes are unknown at first
        is_cpu = self._jpegs is None
        self._widest = 4 * self._window if is_cpu else max(16 * self._window, 2 * _MOST_TOGETHER)
        self._budget = _BUDGET if is_cpu else _BUDGET_GPU
        self._images: deque[_Loading] = deque()
        self._unseen: deque[_Loading] = deque()  # images at the end whose read result was not collected
        self._waiting: deque[tuple[_Loading, PlainJPEG]] = deque()  # JPEGs waiting for a GPU batch
        self._groups: list[Future[Any]] = []  # GPU batches in flight
        self._count = 0  # images taken

    def fill(self, rest: Iterator[Callable[[], Encoded]]) -> bool:
        """Schedule more reads; returns whether there is an image to take."""
        # Submitting a task costs as much as checking a header, so later tasks hold several files.
        together = max(self._window // (_ROUNDS * self._workers.count), 1) if self._jpegs else 1
        while len(self._images) + together <= self._window and (not self._images or self._workers.held <= self._budget):
            reads = list(islice(rest, together))
            if not reads:
                break
            looks = self._submit(_look_at, reads, self._jpegs, self._why_cpu)
            images = [_Loading(looks, number) for number in range(len(reads))]
            self._images += images
            self._unseen += images
        return bool(self._images)

    def take(self) -> Loaded:
        """Wait for the next image; raises as `load_ahead`."""
        image = self._images[0]
        if image.decoded is None:
            image.looks.exception()  # waits for the read
            self._decode()
        loaded = self._finish(image)
        self._images.popleft()
        self._workers.hold(-_bytes_of(image))
        self._count += 1
        self._window = min(self._window + 2, self._widest)
        self._decode()  # refill the GPU
        return loaded

    def _finish(self, image: _Loading) -> Loaded:
        look = image.look
        try:
            if isinstance(look, Exception):
                raise look
            assert look is not None  # set: it is the first image
            assert image.decoded is not None
            loaded = image.decoded.result()
            if image.place is not None:
                loaded = loaded[image.place]
            fallback = look.fallback if loaded is not None else "the GPU refused it"
            if fallback is not None:
                self._on_fallback(fallback)
            return decode_image(*look.encoded) if loaded is None else loaded
        except InputError as error:
            return error
        except MaskjetError:
            raise
        except RuntimeError as error:
            raise device_error(f"image {self._count}", self._count, error) from error

    def _decode(self) -> None:
        """Start decoding images that have been read, in order, within the budget; the first one always."""
        while self._unseen and self._unseen[0].looks.done():
            image = self._unseen[0]
            look = image.looks.result()[image.number]
            if not isinstance(look, Exception):
                if image is not self._images[0] and self._workers.held + look.nbytes > self._budget:
                    break
                self._workers.hold(look.nbytes)
                if look.plain is None:
                    image.decoded = self._submit(decode_image, *look.encoded)
                else:
                    self._waiting.append((image, look.plain))
            image.look = look
            self._unseen.popleft()
        if self._waiting and self._jpegs is not None:
            self._groups = [group for group in self._groups if not group.done()]
            if len(self._groups) < _GROUPS:
                together = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_TOGETHER))]
                group = self._submit(self._jpegs.decode, [plain for _, plain in together])
                self._groups.append(group)
                for place, (image, _) in enumerate(together):
                    image.decoded, image.place = group, place

    def cancel(self) -> None:
        """Cancel pending reads and decodes."""
        for image in self._images:
            image.looks.cancel()
            if image.decoded is not None:
                image.decoded.cancel()
            self._workers.hold(-_bytes_of(image))
        self._images.clear()


def _bytes_of(image: _Loading) -> int:
    """Counted bytes of an image; 0 before its read result is collected."""
    return image.look.nbytes if isinstance(image.look, _Look) else 0


def _look_at(
    reads: Sequence[Callable[[], Encoded]], jpegs: JPEGDecoder | None, why_cpu: str | None
) -> list[_Look | Exception]:
    """Read a batch of images; each result is a `_Look` or its error."""
    looks: list[_Look | Exception] = []
    for read in reads:
        try:
            looks.append(_look(read, jpegs, why_cpu))
        except Exception as error:
            looks.append(error)
    return looks


def _look(read: Callable[[], Encoded], jpegs: JPEGDecoder | None, why_cpu: str | None) -> _Look:
    """Read an image file, and choose the device that decodes it."""
    encoded = read()
    data, found = encoded.data, None
    if jpegs is not None:
        from maskjet.sources.plain_jpegs import choose_gpu

        found = choose_gpu(data)
    elif data.startswith(b"\xff\xd8"):
        found = why_cpu
    plain, fallback = (None, found) if found is None or isinstance(found, str) else (found, None)
    size_hw = stated_size_hw(data) if plain is None else plain.size_hw
    pixels = 0 if size_hw is None else size_hw[0] * size_hw[1]
    return _Look(encoded, len(data) + 3 * pixels, plain, fallback)

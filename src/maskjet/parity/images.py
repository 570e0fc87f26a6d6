"""Sets of images for comparing variants: in a fixed order, readable repeatedly."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import limits, traffic
from maskjet.checks import check_count
from maskjet.errors import InputError
from maskjet.parity import FIRST_SEED
from maskjet.sources.frames import Frame, Source, open_source
from maskjet.traffic.dataset import CATEGORIES, annotate

NamedImages = Iterator[tuple[str, NDArray[np.uint8]]]
_PER_PROCESS = 50  # fewest streets per process: drawing fewer takes less time than starting one


class Images(ABC):
    """A set of named images; the fields of a subclass identify it, so that it can be recreated."""

    kind: ClassVar[str] = "list"

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Number of images; None if unknown beforehand."""

    def read(self) -> NamedImages:
        """Yield name and image, uint8 [H, W, 3] RGB, of those that can be decoded.

        A subclass has its own `read` or its own `open`; each of these uses the other.
        """
        with self.open() as source:
            for frame in source:
                yield frame.name, frame.image

    def find(self, number: int, name: str) -> NDArray[np.uint8]:  # noqa: ARG002 - it changes if the folder is renamed
        """The image at a position; raises InputError without one."""
        for _, image in islice(self.read(), number, None):
            return image
        raise InputError(f"number must be one of the images, there is no number {number}.")

    def truth(self) -> dict[str, Any] | None:
        """The annotations as a COCO data set, whose file names are the images' names; None if there are none."""
        return None

    def describe(self) -> dict[str, Any]:
        """Kind and fields as JSON types; `streets_from` reads those of `Traffic`."""
        return {"kind": self.kind, **{name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}}  # type: ignore[call-overload]

    def open(self) -> Source:
        """Open the images as a source for `Model.stream`; frames have the images' names."""
        return _ImagesSource(self.kind, self.length, self.read())


@dataclass(frozen=True)
class Traffic(Images):
    """Generated streets, each with its own seed; drawn by parallel processes."""

    kind: ClassVar[str] = "traffic"
    count: int = 50
    """Number of streets."""
    size_hw: tuple[int, int] = traffic.SIZES_HW["312"]
    """(height, width) of each image, in pixels."""
    seed: int = FIRST_SEED
    """Seed of the first street; following streets have consecutive seeds."""

    def __post_init__(self) -> None:
        check_count("count", self.count)
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be 0 or more and below 2**63, got {self.seed}.")
        limits.check("image_pixels", math.prod(self.size_hw), f"size_hw {self.size_hw} has")

    @property
    def length(self) -> int:
        """Number of images."""
        return self.count

    def read(self) -> NamedImages:
        """Yield name and image of each street."""
        numbers = range(self.count)
        for number, image in zip(numbers, _map(self._draw, numbers), strict=True):
            yield self._name(number), image

    def find(self, number: int, name: str) -> NDArray[np.uint8]:  # noqa: ARG002
        """Draw one street; positions beyond `count` are allowed."""
        return self._draw(number)

    def truth(self) -> dict[str, Any]:
        """Ground truth of the streets as a COCO data set."""
        height, width = self.size_hw
        images = [
            {"id": number, "file_name": self._name(number), "height": height, "width": width}
            for number in range(self.count)
        ]
        annotations = [one for found in _map(self._annotate, range(self.count)) for one in found]
        for number, annotation in enumerate(annotations):
            annotation["id"] = number + 1
        return {"images": images, "annotations": annotations, "categories": CATEGORIES}

    def _name(self, number: int) -> str:
        return f"street {self.seed + number}"

    def _draw(self, number: int) -> NDArray[np.uint8]:
        return traffic.sample(self.seed + number, size_hw=self.size_hw).image

    def _annotate(self, number: int) -> list[dict[str, Any]]:
        return list(annotate(traffic.sample(self.seed + number, size_hw=self.size_hw), number, 1))


def _map(work: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
    """Map a function over numbers in order, in processes on all cores but one if that is faster."""
    processes = min(len(os.sched_getaffinity(0)) - 1, len(numbers) // _PER_PROCESS)
    if processes < 2:
        yield from map(work, numbers)
        return
    # Spawned, not forked: a fork may wait for ever for PyTorch's threads, which it lacks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        ahead: deque[Future[Any]] = deque()
        remaining = iter(numbers)
        try:
            ahead.extend(pool.submit(work, number) for number in islice(remaining, 4 * processes))
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(work, number) for number in islice(remaining, 1))
                yield result
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Files(Images):
    """An image, a folder, a glob or a video, as `open_source` reads them."""

    kind: ClassVar[str] = "files"
    source: str
    """Path or glob of the images."""

    @property
    def length(self) -> int | None:
        """Number of images expected, readable or not; None if it is not known."""
        with open_source(self.source) as opened:
            return opened.length

    def open(self) -> Source:
        """Open the images as a source."""
        opened = open_source(self.source)
        if opened.is_live:
            opened.close()
            raise InputError(f"images must be the same every time, {self.source!r} is live.")
        return open_from(opened, self.kind)


def streets_from(description: Mapping[str, Any], count: int) -> Traffic:
    """Recreate the `count` streets of a dump from its description of them; no path in a dump is opened.

    Raises:
        InputError: The description is of other images, or not of `count` streets within the limits.
    """
    kind = description.get("kind")
    if kind != Traffic.kind:
        flag = "--images" if kind == Files.kind else "--coco-dir"
        raise InputError(
            f"{flag} must be given again: the dump is of {dict(description)}, and what a dump names is not opened."
        )
    fields = {name: value for name, value in description.items() if name != "kind"}
    is_right = set(fields) == {"count", "size_hw", "seed"} and isinstance(fields["size_hw"], Sequence)
    if is_right:
        numbers = [fields["count"], fields["seed"], *fields["size_hw"]]
        is_right = len(numbers) == 4 and all(type(number) is int for number in numbers)
    if not is_right or fields["count"] != count or min(fields["size_hw"]) < 1:
        raise InputError(f"the dump must be of {count} streets with a size_hw and a seed, got {dict(description)}.")
    return Traffic(count, tuple(fields["size_hw"]), fields["seed"])


def digest(image: NDArray[np.uint8]) -> str:
    """Digest of an image's pixels, 16 hexadecimal digits."""
    return hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest()


def open_from(opened: Source, kind: str, names: Mapping[str, str] | None = None) -> Source:
    """Wrap an opened source; `names` maps frame names to image names where they differ."""
    images = (((names or {}).get(frame.name, frame.name), frame.image) for frame in opened)
    return _ImagesSource(kind, opened.length, images, opened)


class _ImagesSource(Source):
    """Source of images as frames, optionally wrapping another source."""

    kind = "list"

    def __init__(self, name: str, length: int | None, images: NamedImages, opened: Source | None = None) -> None:
        super().__init__(name)
        self.length, self._images, self._opened = length, images, opened

    def _read(self) -> Iterator[Frame]:
        try:
            for index, (name, image) in enumerate(self._images):
                self.frames_seen += 1
                yield Frame(index, None, image, self.name, name)
        finally:
            if self._opened is not None:
                self.bad_frames = list(self._opened.bad_frames)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._opened is not None:
            self._opened.close()

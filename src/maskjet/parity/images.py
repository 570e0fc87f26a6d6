"""The images that variants are compared on: in a fixed order, and to be had again, from the first or any later one."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import limits, traffic
from maskjet.errors import InputError, SourceError
from maskjet.media.frames import Frame, ListSource, Source, open_source
from maskjet.media.images import to_image
from maskjet.parity import FIRST_SEED
from maskjet.parity.coco_files import check_truth, read_json
from maskjet.traffic.dataset import CATEGORIES, annotate

_PER_PROCESS = 50  # drawing fewer streets takes less time than starting a process
_ANNOTATIONS = (("annotations.json", "images"), ("annotations/instances_val2017.json", "val2017"))


class Images(ABC):
    """Images with names; what they are is in the fields, so that they can be described and found again."""

    kind: ClassVar[str] = "list"

    @property
    @abstractmethod
    def length(self) -> int | None:
        """How many there are; None if that can't be known beforehand."""

    @abstractmethod
    def read(self, start: int = 0) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Name and image, uint8 [H, W, 3] RGB, from the start-th on."""

    def at(self, number: int) -> tuple[str, NDArray[np.uint8]]:
        """Name and image of one.

        Raises:
            InputError: There is none at that position.
        """
        for found in self.read(number):
            return found
        raise InputError(f"number must be one of the images, there is no number {number}.")

    def find(self, number: int, name: str) -> NDArray[np.uint8]:
        """The image at a position, whose name may have changed with its folder's.

        Raises:
            InputError: There is none.
        """
        del name
        return self.at(number)[1]

    def reread(self, stop: int) -> Iterator[tuple[int, str, NDArray[np.uint8]]]:
        """Number, name and image of those before `stop` that may have changed since they were read, in order."""
        for number, (name, image) in zip(range(stop), self.read(), strict=False):
            yield number, name, image

    def truth(self) -> dict[str, Any] | None:
        """What is on them as a COCO data set, whose file names are the images' names; None where nobody knows."""
        return None

    def describe(self) -> dict[str, Any]:
        """As JSON types; `streets_from` reads those of `Traffic`."""
        return {"kind": self.kind, **{name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}}  # type: ignore[call-overload]

    def open(self, start: int = 0) -> Source:
        """As a source for `Model.stream`, whose frames have the images' names."""
        return _ImagesSource(self, start)


@dataclass(frozen=True)
class Traffic(Images):
    """Generated streets, each of its own seed; drawn by several processes where there are cores for them."""

    kind: ClassVar[str] = "traffic"
    count: int = 50
    """How many."""
    size_hw: tuple[int, int] = traffic.SIZES_HW["312"]
    """(height, width) of each."""
    seed: int = FIRST_SEED
    """Of the first; each next one's is one more."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"count must be at least 1, got {self.count}.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be 0 or more and below 2**63, got {self.seed}.")
        limits.check("image_pixels", math.prod(self.size_hw), f"size_hw {self.size_hw} has")

    @property
    def length(self) -> int:
        """How many there are."""
        return self.count

    def read(self, start: int = 0) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Name and image, from the start-th on."""
        numbers = range(start, self.count)
        for number, image in zip(numbers, _map(partial(_draw, self), numbers), strict=True):
            yield self._name(number), image

    def at(self, number: int) -> tuple[str, NDArray[np.uint8]]:
        """Name and image of one; any seed has a street."""
        return self._name(number), _draw(self, number)

    def reread(self, stop: int) -> Iterator[tuple[int, str, NDArray[np.uint8]]]:
        """The last one: streets are numbers, and change with the version that draws them."""
        if stop:
            yield stop - 1, *self.at(stop - 1)

    def truth(self) -> dict[str, Any]:
        """What was drawn."""
        height, width = self.size_hw
        images = [
            {"id": number, "file_name": self._name(number), "height": height, "width": width}
            for number in range(self.count)
        ]
        annotations = [one for found in _map(partial(_annotate, self), range(self.count)) for one in found]
        for number, annotation in enumerate(annotations):
            annotation["id"] = number + 1
        return {"images": images, "annotations": annotations, "categories": CATEGORIES}

    def _name(self, number: int) -> str:
        return f"street {self.seed + number}"


def _draw(streets: Traffic, number: int) -> NDArray[np.uint8]:
    return traffic.sample(streets.seed + number, size_hw=streets.size_hw).image


def _annotate(streets: Traffic, number: int) -> list[dict[str, Any]]:
    return list(annotate(traffic.sample(streets.seed + number, size_hw=streets.size_hw), number, 1))


def _map(work: partial[Any], numbers: Sequence[int]) -> Iterator[Any]:
    """Do work for each number, in order, on all cores but one where that pays; a bounded number ahead."""
    processes = min(len(os.sched_getaffinity(0)) - 1, len(numbers) // _PER_PROCESS)
    if processes < 2:
        yield from map(work, numbers)
        return
    # Not forked: a copy of PyTorch's threads waits for ever.
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
    """Whatever `open_source` reads from a path: an image, a folder, a glob or a video."""

    kind: ClassVar[str] = "files"
    source: str
    """Where they are."""

    @property
    def length(self) -> int | None:
        """How many there should be."""
        with open_source(self.source) as opened:
            return opened.length

    def read(self, start: int = 0) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Name and image, from the start-th on; those that can't be decoded are left out, `open` tells them."""
        return _read_frames(self.open(start))

    def open(self, start: int = 0) -> Source:
        """As a source whose `bad_frames` are those of all images, also of those before the start-th."""
        opened = open_source(self.source)
        if opened.is_live:
            opened.close()
            raise InputError(f"images must be the same every time, {self.source!r} is live.")
        return _OpenedSource(opened, self.kind, start)


@dataclass(frozen=True)
class CocoFolder(Images):
    """A COCO data set: annotations/instances_val2017.json with val2017/, or annotations.json with images/."""

    kind: ClassVar[str] = "coco"
    folder: Path
    """Where it is."""

    @property
    def length(self) -> int:
        """How many images it lists."""
        return len(self._listed())

    def read(self, start: int = 0) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """File name and image, from the start-th on, as listed; those that can't be decoded are left out."""
        return _read_frames(self.open(start))

    def find(self, number: int, name: str) -> NDArray[np.uint8]:
        """The image of that file name; to count up to the number, all before it would be decoded."""
        if name not in self._listed():
            raise InputError(f"the images must be those of the dump, number {number}, {name!r}, is not listed.")
        return to_image(self._find()[1] / name, "image")

    def open(self, start: int = 0) -> Source:
        """As `Files.open`."""
        images = self._find()[1]
        names = {str(images / name): name for name in self._listed()}
        return _OpenedSource(ListSource([*map(Path, names)], str(self.folder)), self.kind, start, names)

    def truth(self) -> dict[str, Any]:
        """Its annotations.

        Raises:
            SourceError: They can't be read.
            InputError: An entry is not as COCO has it.
        """
        check_truth(self._data_set, repr(str(self._find()[0])))
        return self._data_set

    @cached_property
    def _data_set(self) -> dict[str, Any]:
        path = self._find()[0]
        found = read_json(path)
        if not isinstance(found, dict) or not {"images", "annotations", "categories"} <= found.keys():
            raise SourceError(f"{str(path)!r} must be a COCO data set, it lacks images, annotations or categories.")
        return found

    def _listed(self) -> list[str]:
        """The images' file names, which lie within the folder, each once."""
        path, listed = str(self._find()[0]), self._data_set["images"]
        entries = listed if isinstance(listed, list) else [None]
        names: list[Any] = [entry.get("file_name") if isinstance(entry, dict) else None for entry in entries]
        if not all(isinstance(name, str) for name in names):
            raise SourceError(f"{path!r} must have a 'file_name' in each of its images.")
        for name in names:
            if PurePath(name).is_absolute() or ".." in PurePath(name).parts or "\0" in name:
                raise SourceError(f"{path!r} must have images within its folder, got {name!r}.")
        if len(set(names)) < len(names):
            raise SourceError(f"{path!r} must have each image once, got {len(names) - len(set(names))} more.")
        return names

    def _find(self) -> tuple[Path, Path]:
        """The annotations, and the images' folder."""
        for file, images in _ANNOTATIONS:
            if (self.folder / file).is_file():
                return self.folder / file, self.folder / images
        wanted = " or ".join(f"{file} with {images}/" for file, images in _ANNOTATIONS)
        raise SourceError(f"coco_dir must have {wanted}, {str(self.folder)!r} has neither.")


class KeptImages(Images):
    """Other images, all read at once and kept in memory.

    Args:
        images: Which.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        self._kept = list(images.read())

    @property
    def length(self) -> int:
        """How many there are."""
        return len(self._kept)

    def read(self, start: int = 0) -> Iterator[tuple[str, NDArray[np.uint8]]]:
        """Name and image, from the start-th on."""
        yield from self._kept[start:]

    def truth(self) -> dict[str, Any] | None:
        """What is on them."""
        return self._images.truth()

    def describe(self) -> dict[str, Any]:
        """The others' description."""
        return self._images.describe()


def streets_from(description: Mapping[str, Any], count: int) -> Traffic:
    """The generated streets that `Images.describe` described; other images are nothing to be opened by a dump's word.

    Args:
        description: In a dump.
        count: Of the dump's images.

    Raises:
        InputError: It is of other images, or not of as many streets within the limits.
    """
    kind = description.get("kind")
    if kind != Traffic.kind:
        flag = "--coco-dir" if kind == CocoFolder.kind else "--images"
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
    """Of an image's pixels."""
    return hashlib.blake2b(image.tobytes(), digest_size=8).hexdigest()


class _ImagesSource(Source):
    """Images as frames."""

    kind = "list"

    def __init__(self, images: Images, start: int) -> None:
        super().__init__(images.kind)
        self._images, self._start = images, start
        length = images.length  # a folder is listed for it, a video opened
        self.length = None if length is None else length - start

    def _read(self) -> Iterator[Frame]:
        for index, (name, image) in enumerate(self._images.read(self._start), self._start):
            self.frames_seen += 1
            yield Frame(index, None, image, self.name, name)


def _read_frames(source: Source) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Name and image of each frame."""
    with source:
        for frame in source:
            yield frame.name, frame.image


class _OpenedSource(Source):
    """An opened source, from the start-th image on; `names` are those of images that have one of their own."""

    kind = "list"

    def __init__(self, opened: Source, name: str, start: int, names: Mapping[str, str] | None = None) -> None:
        super().__init__(name)
        self._opened, self._start, self._names = opened, start, names or {}
        length = opened.length
        self.length = None if length is None else length - start

    def _read(self) -> Iterator[Frame]:
        try:
            for index, frame in enumerate(islice(self._opened, self._start, None), self._start):
                self.frames_seen += 1
                name = self._names.get(frame.name, frame.name)
                yield replace(frame, index=index, source=self.name, name=name)
        finally:
            self.bad_frames = list(self._opened.bad_frames)

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._opened.close()

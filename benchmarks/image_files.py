"""Folders of JPEGs as cameras, phones and COCO have them: drawn streets, cropped, mirrored and encoded to a given size.

Drawing two thousand streets would take minutes, so a few are drawn; each file has its own crop, and so its own bytes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.jpeg_kinds import Image, encode
from maskjet import traffic

_DRAWN = 16  # streets
_MARGIN = 1 / 16  # of the drawn streets around the crops
_QUALITIES = range(60, 101)


@dataclass(frozen=True)
class ImageSet:
    """Images to be written."""

    name: str
    """Name in the report."""
    sizes_hw: Sequence[tuple[int, int]]
    """(height, width) of the files in turn."""
    files: int
    """Number of files."""
    file_bytes: int
    """Bytes of a file, about."""


@dataclass(frozen=True)
class WrittenSet:
    """Images in a folder."""

    name: str
    """Name in the report."""
    folder: Path
    """The folder."""
    paths: Sequence[Path]
    """The files, in the order of a stream over the folder."""
    streets: Sequence[Image]
    """Streets of the kind on the files, to plant a network on."""


def coco_sizes(count: int, longer: int = 640) -> list[tuple[int, int]]:
    """(height, width) of as many sizes as COCO's: 640 on the longer side, most of them landscape, about 4:3."""
    draw = random.Random(0)
    shorter = draw.sample(range(longer * 5 // 10, longer), min(count, longer // 2))
    sizes = [(short, longer) if draw.random() < 0.75 else (longer, short) for short in shorter]
    return [sizes[number % len(sizes)] for number in range(count)]


def write_set(images: ImageSet, folder: Path) -> WrittenSet:
    """Draw streets and write the files, on all cores.

    Args:
        images: What to write.
        folder: Where; made.
    """
    folder.mkdir(parents=True)
    largest = tuple(max(each[axis] for each in images.sizes_hw) for axis in (0, 1))
    drawn_hw = (round(largest[0] * (1 + _MARGIN)), round(largest[1] * (1 + _MARGIN)))
    count = min(_DRAWN, images.files)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        streets = list(pool.map(lambda seed: traffic.sample(seed=seed, size_hw=drawn_hw).image, range(count)))
        # Files of one street and of other crops take about as many bytes at one quality.
        crops = [_crop(streets, images.sizes_hw, number) for number in range(count)]
        qualities = list(pool.map(partial(_find_quality, file_bytes=images.file_bytes), crops))
        paths = [folder / f"{number:05}.jpg" for number in range(images.files)]

        def write(number: int) -> None:
            image = _crop(streets, images.sizes_hw, number)
            paths[number].write_bytes(encode(image, qualities[number % count]))

        list(pool.map(write, range(images.files)))
    return WrittenSet(images.name, folder, paths, crops[:8])


def _crop(streets: Sequence[Image], sizes_hw: Sequence[tuple[int, int]], number: int) -> Image:
    """A file's image: a part of a street, as large as it has to be, mirrored every other time."""
    street, (height, width) = streets[number % len(streets)], sizes_hw[number % len(sizes_hw)]
    place = random.Random(number)
    top, left = (place.randint(0, have - want) for have, want in zip(street.shape, (height, width), strict=False))
    image = street[top : top + height, left : left + width]
    return np.ascontiguousarray(image[:, ::-1] if number // len(streets) % 2 else image)


def _find_quality(image: Image, file_bytes: int) -> int:
    """The quality at which a JPEG comes closest to a number of bytes."""
    low, high = _QUALITIES[0], _QUALITIES[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if len(encode(image, middle)) < file_bytes else (low, middle)
    return low


def mean_bytes(paths: Sequence[Path]) -> int:
    """Mean bytes of files."""
    return round(sum(path.stat().st_size for path in paths) / len(paths))


LARGE: Mapping[str, ImageSet] = {
    "720p": ImageSet("720p", [(720, 1280)], 2_000, 192_000),
    "200 sizes": ImageSet("200 sizes", coco_sizes(200), 2_000, 160_000),
    "1080p": ImageSet("1080p", [(1080, 1920)], 1_000, 460_000),
}
"""For a GPU: a camera's, COCO's kind of sizes, a larger camera's."""
SMALL: Mapping[str, ImageSet] = {
    "720p": ImageSet("720p", [(720, 1280)], 24, 192_000),
    "200 sizes": ImageSet("200 sizes", coco_sizes(200), 32, 160_000),
}
"""Without a GPU: this shows that the benchmark works."""

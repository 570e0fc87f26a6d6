"""Drawn streets of consecutive seeds, whose truth is known: the images of studies."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet import traffic
from maskjet.traffic.dataset import CATEGORIES, annotate

FIRST_SEED = 20_000_000
"""Default seed of the first street; the demo model was trained on streets of other seeds."""
_PER_PROCESS = 50  # fewest streets per process: drawing fewer takes less time than starting one


@dataclass(frozen=True)
class Streets:
    """Drawn streets, each with its own seed; drawn by parallel processes."""

    count: int = 50
    """Number of streets."""
    size_hw: tuple[int, int] = traffic.SIZES_HW["312"]
    """(height, width) of each image, in pixels."""
    seed: int = FIRST_SEED
    """Seed of the first street."""

    def name(self, number: int) -> str:
        """Name of a street, also in the truth."""
        return f"street {self.seed + number}"

    def draw(self, number: int) -> NDArray[np.uint8]:
        """Draw one street, uint8 [H, W, 3] RGB; numbers beyond `count` are allowed."""
        return traffic.sample(self.seed + number, size_hw=self.size_hw).image

    def read(self) -> Iterator[NDArray[np.uint8]]:
        """Draw the streets in order."""
        return _map(self.draw, range(self.count))

    def truth(self) -> dict[str, Any]:
        """Ground truth as a COCO data set."""
        height, width = self.size_hw
        images = [
            {"id": number, "file_name": self.name(number), "height": height, "width": width}
            for number in range(self.count)
        ]
        annotations = [one for found in _map(self._annotate, range(self.count)) for one in found]
        for number, annotation in enumerate(annotations):
            annotation["id"] = number + 1
        return {"images": images, "annotations": annotations, "categories": CATEGORIES}

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

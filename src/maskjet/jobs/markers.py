"""Markers: what is under way in a job, told by the names of empty files in its folder `begun`."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from maskjet.jobs.folders import Folder

TRIES = 3
"""How often a segment is begun before it is given up."""
ARRIVED = "worker"
"""Marks that the process of a worker has begun."""
_FOLDER = "begun"


class Markers:
    """The markers of a job, seen by its driver and by all workers; the driver removes them when it begins and ends.

    `DIGEST.N` marks that a segment was begun N times without a result yet; with an N above `TRIES` it is given up.
    While there is the marker of a run of the driver, its workers begin segments.

    Args:
        folder: The job's folder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def names(self) -> set[str]:
        """The markers that are there now."""
        return self._folder.names(_FOLDER)

    def put(self, name: str) -> None:
        """Set a marker."""
        self._folder.mark(f"{_FOLDER}/{name}")

    def remove(self, *names: str) -> None:
        """Remove markers, if they are there."""
        for name in names:
            self._folder.remove(f"{_FOLDER}/{name}")

    def clear(self) -> None:
        """Remove all."""
        self._folder.remove_folder(_FOLDER)

    def start_run(self) -> str:
        """Remove all, and set the marker of a new run; returns its name."""
        self.clear()
        self.put(run := uuid.uuid4().hex)
        return run


def of_segment(part: str, names: Collection[str]) -> list[str]:
    """The markers of one segment: as many as it was begun without a result."""
    return [name for name in names if name.startswith(f"{part}.")]


def under_way(names: Collection[str]) -> bool:
    """Whether workers are at segments, or were when they died, but for those given up."""
    begun = {name.partition(".")[0] for name in names if "." in name}
    return any(f"{part}.{TRIES + 1}" not in names for part in begun)

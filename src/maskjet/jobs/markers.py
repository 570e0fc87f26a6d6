"""Markers of segments under way: empty files in the job's folder `begun`, whose names say all."""

from __future__ import annotations

import uuid
from collections.abc import Collection

from maskjet.jobs.folders import Folder

TRIES = 3
"""Attempts at a segment before it is given up."""
ARRIVED = "worker"
"""Marker of a run whose first worker process has started."""
_FOLDER = "begun"


class Markers:
    """The markers of a job, shared by its driver and all workers; the driver removes them when it starts and ends.

    `PART.N` marks attempt N at a segment, until the segment has an outcome; above `TRIES` the segment is given up.
    Workers begin segments only while the marker of their driver's run exists.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def names(self) -> set[str]:
        """Names of the current markers."""
        return self._folder.names(_FOLDER)

    def put(self, name: str) -> None:
        """Set a marker."""
        self._folder.mark(f"{_FOLDER}/{name}")

    def remove(self, *names: str) -> None:
        """Remove markers if they exist."""
        for name in names:
            self._folder.remove(f"{_FOLDER}/{name}")

    def clear(self) -> None:
        """Remove all markers."""
        self._folder.remove_folder(_FOLDER)

    def start_run(self) -> str:
        """Remove all markers, and set that of a new run; returns its name."""
        self.clear()
        self.put(run := uuid.uuid4().hex)
        return run


def of_segment(part: str, names: Collection[str]) -> list[str]:
    """Markers of one segment: one per attempt without an outcome."""
    return [name for name in names if name.startswith(f"{part}.")]


def under_way(names: Collection[str]) -> bool:
    """Whether a segment was begun that has no outcome and is not given up."""
    begun = {name.partition(".")[0] for name in names if "." in name}
    return any(f"{part}.{TRIES + 1}" not in names for part in begun)

"""Markers of segments under way: empty files in the job's folder `begun`, whose names say all."""

from __future__ import annotations

from collections.abc import Collection

from maskjet.errors import OutputError
from maskjet.jobs.folders import Folder

TRIES = 3
"""Attempts at a segment before it is given up."""
_FOLDER, _RUN = "begun", "run"


class Markers:
    """The markers of a run of a job, shared by its driver and all workers, in a folder of its own below `begun`.

    `PART.N` marks attempt N at a segment, until the segment has an outcome; above `TRIES` the segment is given up.
    A driver removes the markers of all runs when it starts, and its own when it ends. So in a store, which has no
    locks, a later job takes over from one that is still running.
    """

    def __init__(self, folder: Folder, run: str) -> None:
        self._folder, self._place = folder, f"{_FOLDER}/{run}"

    def names(self) -> set[str]:
        """Names of the current markers; raises OutputError if a later run has removed them."""
        names = self._folder.names(self._place)
        if _RUN not in names:
            place = self._folder.name("")
            raise OutputError(f"out must not be in use, {place!r} is: a later job works on it, in place of this one.")
        return names

    def put(self, name: str) -> None:
        """Set a marker."""
        self._folder.mark(f"{self._place}/{name}")

    def remove(self, *names: str) -> None:
        """Remove markers if they exist."""
        for name in names:
            self._folder.remove(f"{self._place}/{name}")

    def start(self) -> None:
        """Remove the markers of all runs, and begin this one's."""
        self._folder.remove_folder(_FOLDER)
        self.put(_RUN)

    def clear(self) -> None:
        """Remove all markers of this run."""
        self._folder.remove_folder(self._place)


def of_segment(part: str, names: Collection[str]) -> list[str]:
    """Markers of one segment: one per attempt without an outcome."""
    return [name for name in names if name.startswith(f"{part}.")]

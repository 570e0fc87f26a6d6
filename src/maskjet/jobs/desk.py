"""The desk of a job on Ray: an actor that knows what each segment has come to, beside a pipeline of Ray Data's.

Ray restarts a worker that died and gives it the same segments again, without end and without a word. The desk counts
how often a segment was begun, so that one that kills its workers is given up; it keeps what was done, so that nothing
is done again; and through it a job is stopped, or ended by a worker's error.
"""

from __future__ import annotations

import json
from typing import Any

_MOST_LOST = 3  # segments given up in a row, without one done, after which the cluster's devices are to blame


class Desk:
    """Runs as an actor of Ray, which calls one method at a time. Loads no PyTorch, as the head node may be small.

    Args:
        tries: How often a segment is begun before it is given up.
    """

    def __init__(self, tries: int) -> None:
        self._tries, self._arrived = tries, 0
        self._begun: dict[str, int] = {}  # how often; of segments that are worked on, or whose worker died
        self._outcomes: dict[str, str] = {}  # by part
        self._lost = 0
        self._error: dict[str, str] | None = None
        self._is_stopped = False

    def arrive(self) -> None:
        """Note that a worker's process runs."""
        self._arrived += 1

    def begin(self, part: str, name: str, *, is_alone: bool) -> tuple[str, str]:
        """Ask whether to work on a segment.

        Args:
            part: Name of its part.
            name: Its own, for people.
            is_alone: Whether its worker works on nothing else meanwhile.

        Returns:
            "work" to go on; "alone" to ask again once the worker does nothing else, as the segment may have killed one;
            or "known" with its outcome in JSON, if it is done or given up, or with "", if the job is ending.
        """
        if part in self._outcomes:
            return "known", self._outcomes[part]
        if self._is_stopped or self._error is not None:
            self._begun.pop(part, None)  # of a worker that died
            return "known", ""
        deaths = self._begun.get(part, 0)
        if deaths == self._tries:
            return "known", self._give_up(part, name)
        if deaths and not is_alone:
            return "alone", ""
        self._begun[part] = deaths + 1
        return "work", ""

    def _give_up(self, part: str, name: str) -> str:
        from maskjet.jobs.work import Outcome

        self._begun.pop(part)
        self._lost += 1
        if self._lost == _MOST_LOST:
            self.fail(
                "DeviceError", f"Workers died {self._tries} times on {_MOST_LOST} segments in a row, at last {name!r}."
            )
        why = f"its worker died {self._tries} times"
        self._outcomes[part] = json.dumps(Outcome(part, failures=((name, why),), is_written=False).as_dict())
        return self._outcomes[part]

    def end(self, part: str, outcome: str) -> None:
        """Note what became of a segment, in JSON."""
        self._outcomes[part] = outcome
        self._begun.pop(part, None)
        self._lost = 0

    def fail(self, kind: str, text: str) -> None:
        """Note the error that ends the job: its class in `maskjet.errors`, and its message. The first one counts."""
        self._error = self._error or {"error": kind, "text": text}

    def stop(self) -> None:
        """Let no more segments begin."""
        self._is_stopped = True

    def state(self) -> dict[str, Any]:
        """Workers that arrived, segments worked on, and the error."""
        return {"arrived": self._arrived, "busy": len(self._begun), "error": self._error}

    def outcomes(self) -> list[str]:
        """What was done, in JSON."""
        return list(self._outcomes.values())

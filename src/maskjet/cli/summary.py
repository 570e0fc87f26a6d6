"""The summary of a run: counts for people on stderr, or JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from maskjet.cli.options import print_result
from maskjet.printing import printable


@dataclass
class Summary:
    """Statistics of a run so far."""

    frames: int = 0
    """Frames detected on and written."""
    detections: int = 0
    """Detections in all of them."""
    left_out: int = 0
    """Detections not written because their box or confidence is not finite."""
    bad_frames: Sequence[str] = ()
    """One line per frame that could not be decoded."""
    dropped: int = 0
    """Frames skipped because newer ones had arrived."""
    seconds: float = 0.0
    """Seconds from the request for the first frame to the last write."""
    fps: float = 0.0
    """Frames per second over `seconds`, decoding and writing included."""
    outputs: Sequence[str] = ()
    """Paths of the outputs, with ".partial" in their names if an error ended the run."""
    is_interrupted: bool = False
    """Whether a signal ended the run early."""
    error: str | None = None
    """Message of the error that ended the run early, if any."""

    def __str__(self) -> str:
        state = "failed" if self.error is not None else "interrupted" if self.is_interrupted else "done"
        lines = [f"{self.frames} frames, {self.detections} detections in {self.seconds:.1f} s: {self.fps:.1f} frames/s"]
        lines += [f"  {self.dropped} frames dropped, newer ones had come"] if self.dropped else []
        lines += [f"  {self.left_out} detections left out, they are not finite"] if self.left_out else []
        lines += [f"  bad frame: {printable(reason)}" for reason in self.bad_frames]
        lines += [f"  wrote {printable(output)}" for output in self.outputs]
        return "\n".join([state, *lines])

    def show(self, *, as_json: bool, stdout_is_taken: bool) -> None:
        """Print for people on stderr; or as JSON on stdout, or in one line on stderr if stdout has the results."""
        if not as_json:
            print_result(self)
        elif stdout_is_taken:
            print_result(json.dumps(asdict(self), allow_nan=False))
        else:
            print_result(asdict(self))

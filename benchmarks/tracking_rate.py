"""What tracking takes of a stream's rate: the demo model over a drawn street, with tracks and without, in turns.

    python -m benchmarks.tracking_rate --device cuda --out benchmarks/results/tracking_rate_h200.json

The street's frames are in memory, and in a file, decoded where the model's videos are; both begin again at its end.
"""

from __future__ import annotations

import itertools
import statistics
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import maskjet
from benchmarks.command import DeviceOption, ReportOption, SizeOption, start
from benchmarks.reach_videos import repeat
from maskjet.cli.options import parse_size, print_result
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.model import Model

_DEPTH = 4
_SEED = 7
_MOST_RATE = 6_000  # frames per second that there are enough frames for


@dataclass(frozen=True)
class Rate:
    """A way of frames into the stream."""

    frames: str
    """Where they come from."""
    batch: int
    """Most frames of a batch."""
    detections: float
    """Detections per frame."""
    alone: list[float]
    """Frames per second without tracks, of each turn."""
    tracked: list[float]
    """Frames per second with tracks, of each turn."""

    @property
    def share(self) -> float:
        """The rate with tracks over that without: medians."""
        return statistics.median(self.tracked) / statistics.median(self.alone)


@dataclass
class Report:
    """What was measured."""

    machine: Any
    """The machine and its versions."""
    size: str
    """Size of the frames."""
    rates: list[Rate] = field(default_factory=list)
    """Each way of frames into the stream."""

    def __str__(self) -> str:
        return "\n".join(
            f"{each.frames}, batches of {each.batch}, {each.detections:.0f} detections per frame: "
            f"{statistics.median(each.alone):,.0f} frames/s, with tracks {statistics.median(each.tracked):,.0f}, "
            f"{each.share:.1%}"
            for each in self.rates
        )


def measure(model: Model, name: str, source: Any, batch: int, runs: int, seconds: float) -> Rate:
    """Stream a source, which goes on for longer, without tracks and with them, in turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    found_in_all = frames_in_all = 0
    for turn in range(runs + 1):  # the first one warms up
        for track, each in rates.items():
            frames, began = 0, 0.0
            with closing(model.stream(source(), depth=_DEPTH, batch=batch, track=track)) as results:
                for _, found in results:
                    now = time.perf_counter()
                    frames, began = frames + 1, began or now
                    found_in_all, frames_in_all = found_in_all + len(found), frames_in_all + 1
                    if now - began > seconds:
                        break
            if turn:
                each.append(round((frames - 1) / (now - began), 1))
    return Rate(name, batch, round(found_in_all / frames_in_all, 1), rates[False], rates[True])


def main(
    *,
    device: DeviceOption = "auto",
    size: SizeOption = "720p",
    frames: Annotated[int, typer.Option(help="Frames that are drawn.")] = 90,
    seconds: Annotated[float, typer.Option(help="Length of a run.")] = 2.0,
    runs: Annotated[int, typer.Option(help="Runs with and without tracks.")] = 5,
    out: ReportOption = None,
) -> None:
    """Measure what tracking takes of a stream's rate."""
    height, width = parse_size(size)
    street = maskjet.traffic.Street(seed=_SEED, size_hw=(height, width))
    drawn = [street.frame(number).image for number in range(frames)]
    report = Report(describe_machine(), size)
    with TemporaryDirectory() as folder, maskjet.load("demo", device=device) as model:
        part, path = Path(folder) / "part.mp4", Path(folder) / "street.mp4"
        maskjet.traffic.write_video(part, size_hw=(height, width), frames=frames, seed=_SEED)
        repeats = 1 + int(_MOST_RATE * seconds) // frames
        repeat(part, path, repeats)
        ways = {"in memory": lambda: drawn * repeats, "of a file": lambda: path}
        for (name, source), batch in itertools.product(ways.items(), (1, 8)):
            report.rates.append(measure(model, name, source, batch, runs, seconds))
            if out is not None:
                write_json(out, asdict(report))
    print_result(report)


if __name__ == "__main__":
    start(main)

"""Counts at lines and in zones of drawn streets, of perfect detections and of the demo model's, beside the truth's.

    python -m benchmarks.counting

Videos are the held-out ones of `benchmarks.tracking`, and lie in the same folder. Each has a line across the image, one
along it, and a zone in its middle. The truth is counted by its own ids; tests compare such counts with supervision's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import DeviceOption, OnlyOption, check_names, start
from benchmarks.tracking import Clip, clips
from benchmarks.tracking_scenes import KINDS
from maskjet.detections import Detections
from maskjet.tracking import Line, Tracker, Zone

_THRESHOLD = 0.5
Counts = Counter[tuple[str, str]]
"""By counter and direction."""


def count(clip: Clip, found: Iterable[Detections]) -> Counts:
    """Count what is found in a video's frames, with ids."""
    height, width = clip.truth[0].things.image_size
    corners = [(0.2, 0.45), (0.8, 0.45), (0.8, 0.85), (0.2, 0.85)]
    counters = [
        Line((0, 0.6 * height), (width, 0.6 * height), name="across"),
        Line((0.5 * width, 0.3 * height), (0.5 * width, height), name="along"),
        Zone([(x * width, y * height) for x, y in corners]),
    ]
    counts = Counts()
    for truth, each in zip(clip.truth, found, strict=True):
        for counter in counters:
            what = "zone" if isinstance(counter, Zone) else "lines"
            counts.update((what, event.direction) for event in counter.update(each, truth.time_s).events)
    return counts


def track(clip: Clip) -> Iterator[Detections]:
    """Track a video's detections; the weak ones are left out."""
    tracker = Tracker(threshold=_THRESHOLD)
    for truth, found in zip(clip.truth, clip.found, strict=True):
        tracked = tracker.update(found, truth.time_s)
        yield tracked[tracked.confidence > _THRESHOLD]


def main(
    *,
    only: OnlyOption = None,
    folder: Annotated[Path, typer.Option(help="Where videos are kept.")] = Path("out/tracking"),
    device: DeviceOption = "auto",
) -> None:
    """Count in drawn streets; --only names kinds of videos."""
    check_names(only or (), KINDS)
    print("| videos | detections | at | truth | counted | off by | by video and direction |")
    print("|---" * 7 + "|")
    for name in only or KINDS:
        for kind in ("perfect", "demo"):
            true, counted, apart = Counter[str](), Counter[str](), Counter[str]()
            for _, clip in clips(folder, "held-out", kind, device, [name]):
                expected, actual = count(clip, (truth.things for truth in clip.truth)), count(clip, track(clip))
                for key in {**expected, **actual}:
                    true[key[0]] += expected[key]
                    counted[key[0]] += actual[key]
                    apart[key[0]] += abs(expected[key] - actual[key])
            for what, number in true.items():
                off = 100 * (counted[what] - number) / max(number, 1)
                print(f"| {name} | {kind} | {what} | {number} | {counted[what]} | {off:+.1f} % | {apart[what]} |")


if __name__ == "__main__":
    start(main)

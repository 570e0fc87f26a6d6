"""Trackers on drawn streets: ours, without its parts, and those of other packages, on the same detections.

    python -m benchmarks.tracking

Videos, detections and overlaps are made once and kept in a folder. Detections of the demo model take a GPU seconds and
a CPU minutes, and are left out without --demo.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, check_names, start
from benchmarks.tracking_peers import Update, ours, peers
from benchmarks.tracking_scenes import KINDS, VIDEOS, Truth, detect, draw, truth_of
from benchmarks.tracking_scores import Tracked, score
from maskjet.detections import Detections
from maskjet.tracking import smooth

_DETECTIONS = ("perfect", "noisy", "bursts")
_LOW = 0.1  # least confidence of the demo model's detections
_THRESHOLD = 0.5  # confidence up to which a detection is only kept if it continues a track
_TWO_PASSES = "maskjet, two passes"
_RESAMPLES = 10_000
ABLATION: Mapping[str, Mapping[str, Any]] = {
    "boxes alone": {"boxes_alone": True},
    "without weak detections": {"low": 0.5},
    "without hidden edges and masks": {"cut_share": 1e9},
    "without waiting for what is covered": {"covered_s": 0.0},
    "without finding again": {"return_sizes": 1e-9},
    "without adopting": {"adopt_s": -1.0},
}
"""Options of ours that leave a part out, by name."""


@dataclass(frozen=True)
class Clip:
    """A video with detections of one kind."""

    truth: Sequence[Truth]
    """The truth of each frame."""
    found: Sequence[Detections]
    """The detections of each frame."""
    overlaps: Mapping[str, Sequence[NDArray[np.float64]]]
    """Of "masks" and "boxes": per frame float64 [things, detections], intersection over union."""


def clips(
    folder: Path, purpose: str, kind: str, device: str = "auto", only: Collection[str] | None = None
) -> Iterator[tuple[str, Clip]]:
    """The videos of a purpose, all or some kinds, with detections of a kind, by name; those not there are made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or KINDS:
        for number in VIDEOS[purpose]:
            path = folder / f"{name}_{number}_{kind}.pickle"
            if not path.exists():
                path.write_bytes(pickle.dumps(vars(_make(name, number, kind, device))))
            yield f"{name} {number}", Clip(**pickle.loads(path.read_bytes()))


def _make(name: str, number: int, kind: str, device: str) -> Clip:
    if kind == "demo":
        import maskjet

        truth, found = [], []
        with maskjet.load("demo", device=device, threshold=_LOW) as model:
            for time_s, frame in draw(name, number):
                truth.append(truth_of(time_s, frame))
                found.append(model.predict(frame.image))
    else:
        truth = [truth_of(*each) for each in draw(name, number)]
        found = detect(kind, [list(KINDS).index(name), number], truth)
    overlaps = [_overlaps(each.things, some) for each, some in zip(truth, found, strict=True)]
    return Clip(truth, found, {"masks": [masks for masks, _ in overlaps], "boxes": [boxes for _, boxes in overlaps]})


def _overlaps(things: Detections, found: Detections) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from pycocotools import mask as coco

    shape = len(things), len(found)
    if not all(shape):
        return np.zeros(shape), np.zeros(shape)
    corners = (each.xyxy.astype(np.float64) for each in (found, things))
    boxes = [np.concatenate([xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]], axis=1) for xyxy in corners]
    crowd = [0] * shape[0]
    of_masks, of_boxes = coco.iou(found.rle, things.rle, crowd), coco.iou(*boxes, crowd)
    return np.asarray(of_masks).T.copy(), np.asarray(of_boxes).T.copy()


def run(
    clip: Clip, make: Callable[[], Update], *, in_two_passes: bool = False
) -> tuple[dict[str, dict[str, float]], float]:
    """Scores of a tracker on a video, by "masks" and "boxes", and milliseconds per frame."""
    update, said, spent = make(), [], []
    for each, found in zip(clip.truth, clip.found, strict=True):
        begin = time.thread_time()
        said.append(update(found, each.time_s))
        spent.append(time.thread_time() - begin)
    scores, by_shape = {}, clip.overlaps
    if in_two_passes:
        begin = time.thread_time()
        tracked = [found.with_tracks(*each) for found, each in zip(clip.found, said, strict=True)]
        times_s = [each.time_s for each in clip.truth]
        smoothed = list(smooth(zip(tracked, times_s, strict=True), threshold=_THRESHOLD))
        spent = [sum(spent) + time.thread_time() - begin]
        said = [(found.track_id, found.track_class_id) for found in smoothed]  # type: ignore[misc]
        pairs = [_overlaps(each.things, found) for each, found in zip(clip.truth, smoothed, strict=True)]
        by_shape = {"masks": [masks for masks, _ in pairs], "boxes": [boxes for _, boxes in pairs]}
    for what, overlaps in by_shape.items():
        frames = []
        for each, (ids, classes), shared in zip(clip.truth, said, overlaps, strict=True):
            assert each.things.track_id is not None
            frames.append(Tracked(each.time_s, each.things.track_id, ids, classes, shared))
        scores[what] = score(frames)
    return scores, 1e3 * sum(spent) / len(clip.truth)


def main(
    *,
    out: ReportOption = None,
    only: OnlyOption = None,
    folder: Annotated[Path, typer.Option(help="Where videos are kept.")] = Path("out/tracking"),
    tune: Annotated[bool, typer.Option("--tune", help="Take the videos to tune on, not the held-out ones.")] = False,
    demo: Annotated[bool, typer.Option("--demo", help="Also track the demo model's detections.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Score trackers on drawn streets."""
    trackers = {
        "maskjet": ours(),
        _TWO_PASSES: ours(),
        **{name: ours(**options) for name, options in ABLATION.items()},
        **peers(),
    }
    check_names(only or (), trackers)
    report: dict[str, Any] = {}
    for kind in (*_DETECTIONS, "demo")[: 4 if demo else 3]:
        results: dict[str, list[Any]] = {name: [] for name in trackers if not only or name in only}
        for video, clip in clips(folder, "tune" if tune else "held-out", kind, device):
            for name, videos in results.items():
                scores, ms = run(clip, trackers[name], in_two_passes=name == _TWO_PASSES)
                videos.append({"video": video, **scores, "ms": ms})
        report[kind] = results
        print("\n".join(table(kind, results)), flush=True)
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n")


def table(kind: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """A table in Markdown of one kind of detections, with the gain of the first tracker over each other."""
    means, sums = (
        ("HOTA", "DetA", "AssA", "IDF1", "MOTA"),
        ("switches", "flips", "gaps", "kept", "hidden", "kept_hidden"),
    )
    yield f"\n| {kind} | boxes' HOTA | {' | '.join(means)} | {' | '.join(sums)} | ms | HOTA below the first's |"
    yield "|---" * (4 + len(means) + len(sums)) + "|"
    first = next(iter(results.values()))
    for name, videos in results.items():
        cells = [f"{np.mean([video['boxes']['HOTA'] for video in videos]):.1f}"]
        cells += [f"{np.mean([video['masks'][each] for video in videos]):.1f}" for each in means]
        cells += [f"{sum(video['masks'][each] for video in videos):.0f}" for each in sums]
        cells.append(f"{np.mean([video['ms'] for video in videos]):.2f}")
        gains = [a["masks"]["HOTA"] - b["masks"]["HOTA"] for a, b in zip(first, videos, strict=True)]
        low, high = bootstrap(gains)
        cells.append("" if videos is first else f"{np.mean(gains):.1f} ({low:.1f} to {high:.1f})")
        yield f"| {name} | {' | '.join(cells)} |"


def bootstrap(gains: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean over videos, by the bootstrap."""
    random = np.random.default_rng(50)
    means = np.array(gains)[random.integers(0, len(gains), (_RESAMPLES, len(gains)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


if __name__ == "__main__":
    start(main)

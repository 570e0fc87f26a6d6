"""Detect on every N-th frame and move masks in between: masks' AP, tracks and frames per second beside every frame.

Videos are drawn streets of 720p, encoded as cameras and films are, with the truth of each frame. An untrained Seg-Nano
is timed on one of them, beside rfdetr's `predict` of each frame.

    python -m benchmarks.rate --folder /tmp/rate --out benchmarks/results/rate_cpu.json
"""

from __future__ import annotations

import contextlib
import io
import math
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, Literal

import av
import cv2
import numpy as np
import torch
import typer
from hotcoco import COCO, COCOeval

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.peers.rfdetr import build_exact
from benchmarks.planted import plant_network
from benchmarks.tracking_scenes import KINDS, Scene
from benchmarks.tracking_scores import Tracked, score
from maskjet.cli.options import print_result, progress
from maskjet.config import EngineConfig, Precision
from maskjet.detections import Detections
from maskjet.host import measuring
from maskjet.host.machine import describe_machine
from maskjet.masks import coco_rle
from maskjet.model import Model, load
from maskjet.sources.frames import open_source
from maskjet.sources.source import Source
from maskjet.spec import SPECS
from maskjet.tracking import Tracker
from maskjet.traffic import Street

_HEIGHT, _WIDTH, _MARGIN = 720, 1280, 48
_LEAST = 16  # visible pixels of what is to be found
_LOWEST, _WEAK = 0.05, 0.1  # confidence of what counts for AP, and of what a tracker gets
_TIMED = 97  # frames of an untrained network: every eighth is detected on, and the last
_ENCODERS = {
    "camera": {"preset": "veryfast", "tune": "zerolatency", "bf": "0", "refs": "1"},
    "film": {"preset": "medium"},
}


@dataclass(frozen=True)
class Video:
    """How a video is drawn and encoded."""

    kind: str
    """"street", "cut" for two of them, or of `tracking_scenes.KINDS`."""
    seed: int
    density: float
    camera: str = "still"
    """"still", "shake", "pan", or several."""
    grain: float = 0
    """Standard deviation of the noise, in grey values."""
    encoder: Literal["camera", "film"] = "camera"
    crf: int = 26
    frames: int = 120
    step: int = 1
    """Drawn frames, of 30 per second, per frame of the video."""


STUDIED = {
    "street a": Video("street", 11, 1.0),
    "street b": Video("street", 12, 1.8, "shake", 4, "film"),
    "street c": Video("street", 13, 1.0, "pan", 4, crf=24),
    "crossing a": Video("crossing", 1001, 0.9, grain=5, crf=28),
    "crossing b": Video("crossing", 1002, 0.9, "shake", 0, "film", 24),
    "parked a": Video("parked", 1101, 0.45, grain=4, encoder="film", frames=150),
    "stops a": Video("stops", 1201, 1.2, "pan"),
    "stops b": Video("stops", 1202, 1.2, grain=5, crf=28, frames=150),
    "returns a": Video("returns", 1301, 0.5, "shake", 4),
    "mixed a": Video("dropped", 1501, 1.0, "pan shake", 4),
    "quiet a": Video("street", 21, 0.15, grain=5, frames=150),
    "cut a": Video("cut", 31, 1.0, grain=4, encoder="film"),
}
"""The videos that the method was made with."""
SLOW = {
    "slow a": Video("street", 41, 1.0, grain=4, frames=90, step=3),
    "slow b": Video("crossing", 1003, 0.9, "shake", 4, frames=90, step=3),
    "slow c": Video("returns", 1302, 0.5, grain=4, encoder="film", frames=90, step=3),
}
"""Videos of 10 frames per second."""


def held_out() -> dict[str, Video]:
    """The same kinds of videos from other seeds."""
    return {f"{name} again": replace(video, seed=video.seed + 7000) for name, video in STUDIED.items()}


NANO = "rf-detr-seg-nano"
"""An untrained network, which is timed only."""
SETS: Mapping[str, Mapping[str, Video]] = {"studied": STUDIED, "held out": held_out(), "10 frames/s": SLOW}
"""Sets of videos by name."""
_True = tuple[dict[str, Any], int, int]  # mask, class id, track id


def make(folder: Path, name: str, video: Video) -> tuple[Path, list[list[_True]]]:
    """Draw and encode a video, unless it is in the folder; returns its file, and what is on each of its frames."""
    path, truth_path = folder / f"{name}.mp4", folder / f"{name}.pickle"
    if truth_path.exists():
        return path, pickle.loads(truth_path.read_bytes())
    random = np.random.default_rng(video.seed)
    size = (_HEIGHT + 2 * _MARGIN, _WIDTH + 2 * _MARGIN)
    parts = [_scene(video, video.seed + k, size) for k in range(1 + (video.kind == "cut"))]
    corners, fps = _corners(video, random), 30 // video.step
    grain = random.normal(0, video.grain or 1, (_HEIGHT + 64, _WIDTH + 64)).astype(np.float32)
    truth = []
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=fps, options={**_ENCODERS[video.encoder], "crf": str(video.crf)})
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = _WIDTH, _HEIGHT, "yuv420p", 2
        for index in range(video.frames):
            part = index * len(parts) // video.frames
            drawn = parts[part].frame(60 + index * video.step)
            shift = np.array([[1, 0, -corners[index, 0]], [0, 1, -corners[index, 1]]], np.float32)
            image = cv2.warpAffine(drawn.image, shift, (_WIDTH, _HEIGHT), flags=cv2.INTER_LINEAR)
            owners = cv2.warpAffine(drawn.instance_map, shift, (_WIDTH, _HEIGHT), flags=cv2.INTER_NEAREST)
            if video.grain:
                x, y = random.integers(0, 64, 2)
                noisy = image + grain[y : y + _HEIGHT, x : x + _WIDTH, None]
                image = np.clip(noisy, 0, 255).astype(np.uint8)
            masks = np.stack([owners == k + 1 for k in range(len(drawn.class_id))] or [owners < 0])
            rows = zip(coco_rle.encode(masks), drawn.class_id, drawn.track_id, strict=False)
            kept = [(rle, int(c), int(t) + 1_000_000 * part) for rle, c, t in rows if coco_rle.area(rle) >= _LEAST]
            truth.append(kept)
            picture = av.VideoFrame.from_ndarray(np.asarray(image, np.uint8), "rgb24")
            picture.pts, picture.time_base = index, Fraction(1, fps)
            file.mux(stream.encode(picture))
        file.mux(stream.encode(None))
    truth_path.write_bytes(pickle.dumps(truth))
    return path, truth


def _scene(video: Video, seed: int, size: tuple[int, int]) -> Street:
    if video.kind in ("street", "cut"):
        return Street(seed, size, density=video.density)
    kind = KINDS[video.kind]
    return Scene(seed, size, density=video.density, actors=kind.actors, stops=kind.stops)


def _corners(video: Video, random: np.random.Generator) -> Any:
    """Where the camera looks at, by frame: float64 [frames, 2], the top left corner in pixels of what is drawn."""
    times = np.arange(video.frames)[:, None]
    corners = np.full((video.frames, 2), _MARGIN, float)
    if "shake" in video.camera:
        steps = random.normal(0, 1, (video.frames, 2))
        corners += 6 * np.sin(times / np.array([3.1, 4.3]) + [0, 1]) * np.sin(times / 17 + 1) + 0.8 * steps
    if "pan" in video.camera:
        corners += np.hstack([40 * np.sin(times / 14), 14 * np.sin(times / 21)])
    return np.clip(corners, 0, 2 * _MARGIN)


@dataclass(frozen=True)
class Way:
    """A way to have masks on every frame."""

    name: str
    detect: int = 1
    delay: Literal[0] | None = None
    repeats: int = 1
    """Masks are those of every so manieth frame, repeated; as with `--every`."""


WAYS = [
    Way("every frame"),
    *(Way(f"repeated, N = {n}", repeats=n) for n in (4, 8)),
    *(Way(f"live, N = {n}", n, 0) for n in (2, 3, 4, 6, 8)),
    *(Way(f"delayed, N = {n}", n) for n in (4, 6, 8)),
]


@dataclass(frozen=True)
class RateCost:
    """A way on a set of videos."""

    videos: str
    """One of `SETS`, or `NANO`."""
    way: str
    """Name of the way."""
    ap: float | None
    """COCO's AP of masks over all frames; None, as the next three, if the network is untrained."""
    relative: float | None
    """That, relative to detecting every frame."""
    mask_iou: float | None
    """Mean IoU of what is there with what was found of it; 0 where nothing was."""
    hota: float | None
    """HOTA of its tracks, in percent, mean of the videos."""
    fps: float | None
    """Frames per second, decoding included: median of the videos in turns; None where frames are repeated."""


@dataclass(frozen=True, kw_only=True)
class RateReport(measuring.MeasuredReport):
    """All ways on all sets."""

    model: str
    """Name and precision of the model."""
    measurements: Sequence[RateCost]
    """By set, every frame first."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per way and set."""
        header = ("videos", "way", "mask AP", "relative", "mask IoU", "HOTA", "frames/s")
        return [
            header,
            *(
                (
                    m.videos,
                    m.way,
                    *("-" if value is None else f"{value:.3f}" for value in (m.ap, m.relative, m.mask_iou)),
                    *("-" if value is None else f"{value:.1f}" for value in (m.hota, m.fps)),
                )
                for m in self.measurements
            ),
        ]


def run(
    path: Path | None,
    folder: Path,
    *,
    names: Sequence[str] = tuple(SETS),
    precision: Precision = "auto",
    ways: Sequence[Way] = tuple(WAYS),
    sets: Mapping[str, Mapping[str, Video]] = SETS,
    on_progress: Any = lambda: None,
) -> RateReport:
    """Measure all ways on the demo model, and the rates of Seg-Nano; `folder` keeps the videos."""
    check_names(names, (*sets, NANO))
    folder.mkdir(parents=True, exist_ok=True)
    costs: list[RateCost] = []
    with load("demo", device="cpu", precision=precision) as model:
        report = model.report()
        for name in (name for name in names if name in sets):
            made = {each: make(folder, each, video) for each, video in sets[name].items()}
            results: dict[str, list[list[Detections]]] = {way.name: [] for way in ways}
            rates: dict[str, list[float]] = {way.name: [] for way in ways}
            hotas: dict[str, list[float]] = {way.name: [] for way in ways}
            for file, truth in made.values():
                for way in ways:
                    if way.repeats > 1:
                        every = results[ways[0].name][-1]
                        found = [every[index - index % way.repeats] for index in range(len(every))]
                    else:
                        options: Any = {"detect": way.detect, "delay": way.delay}
                        began = time.perf_counter()
                        count = sum(1 for _ in model.stream(file, **options))
                        rates[way.name].append(count / (time.perf_counter() - began))
                        found = [each for _, each in model.stream(file, threshold=_LOWEST, **options)]
                    results[way.name].append(found)
                    hotas[way.name].append(_hota(truth, found, 30 / sets[name][file.stem].step))
                on_progress()
            truths = [truth for _, truth in made.values()]
            best = _ap(truths, results[ways[0].name])
            for way in ways:
                ap = _ap(truths, results[way.name])
                fps = None if way.repeats > 1 else round(median(rates[way.name]), 1)
                overlap = _mask_iou(truths, results[way.name])
                costs.append(RateCost(name, way.name, ap, ap / best, overlap, mean(hotas[way.name]), fps))
    if NANO in names:
        costs += _time_untrained(folder, ways)
        on_progress()
    result = RateReport(machine=describe_machine(), model=f"demo, {report.network}", measurements=costs)
    result.write(path)
    return result


def _time_untrained(folder: Path, ways: Sequence[Way]) -> list[RateCost]:
    """Frames per second of Seg-Nano with random weights that find about ten instances, and of rfdetr's `predict`."""
    file, _ = make(folder, "street a", STUDIED["street a"])
    images = [frame.image for frame in open_source(file, limit=_TIMED)]
    network = plant_network(SPECS[NANO], images[:: _TIMED // 4], survivors=10)
    peer = build_exact(network.state_dict(), network.spec, torch.device("cpu"), network.spec.threshold)
    rates: dict[str, list[float]] = {}
    with Model(network, EngineConfig(device="cpu")) as model:
        kinds: dict[str, Callable[[Source], Iterable[Any]]] = {
            way.name: partial(model.stream, detect=way.detect, delay=way.delay) for way in ways if way.repeats == 1
        }
        kinds["rfdetr's predict"] = lambda source: (peer.detect(frame.image) for frame in source)
        for name, kind in [*kinds.items()] * 3:
            with open_source(file, limit=_TIMED) as source:
                began = time.perf_counter()
                count = sum(1 for _ in kind(source))
            rates.setdefault(name, []).append(count / (time.perf_counter() - began))
    return [RateCost(NANO, name, None, None, None, None, round(median(each), 1)) for name, each in rates.items()]


def _overlaps(rows: Sequence[_True], found: Detections) -> Any:
    from pycocotools import mask

    if not rows or not len(found):
        return np.zeros((len(rows), len(found)))
    assert found.rle is not None
    return np.asarray(mask.iou(found.rle, [row[0] for row in rows], [0] * len(rows))).T


def _hota(truth: Sequence[Sequence[_True]], every: Sequence[Detections], fps: float) -> float:
    """HOTA of a tracker's confident detections, in percent."""
    tracker, frames = Tracker(), []
    for index, (rows, found) in enumerate(zip(truth, every, strict=True)):
        tracked = tracker.update(found[found.confidence >= _WEAK], index / fps)
        tracked = tracked[tracked.confidence > tracker.threshold]
        assert tracked.track_id is not None
        assert tracked.track_class_id is not None
        true_ids = np.array([row[2] for row in rows], np.int64)
        frames.append(
            Tracked(index / fps, true_ids, tracked.track_id, tracked.track_class_id, _overlaps(rows, tracked))
        )
    return score(frames)["HOTA"]


def _mask_iou(truths: Sequence[Sequence[Sequence[_True]]], results: Sequence[Sequence[Detections]]) -> float:
    """Mean IoU of what is there, of 100 pixels or more, with the detection above 0.5 of its class that fits best."""
    overlaps: list[float] = []
    for truth, frames in zip(truths, results, strict=True):
        for rows, found in zip(truth, frames, strict=True):
            strong = found[found.confidence > 0.5]
            shared = _overlaps(rows, strong)
            for row, own in zip(rows, shared, strict=True):
                if coco_rle.area(row[0]) >= 100:
                    overlaps.append(float((own * (strong.class_id == row[1])).max(initial=0.0)))
    return mean(overlaps)


def _ap(truths: Sequence[Sequence[Sequence[_True]]], results: Sequence[Sequence[Detections]]) -> float:
    """COCO's AP of masks over all frames of all videos."""
    images: list[dict[str, Any]] = []
    things: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for truth, frames in zip(truths, results, strict=True):
        for rows, each in zip(truth, frames, strict=True):
            number = len(images) + 1
            images.append({"id": number, "width": _WIDTH, "height": _HEIGHT})
            for rle, class_id, _ in rows:
                left, top, right, bottom = coco_rle.to_xyxy(rle)
                things.append(
                    {
                        "id": len(things) + 1,
                        "image_id": number,
                        "category_id": class_id + 1,
                        "iscrowd": 0,
                        "segmentation": coco_rle.to_json(rle),
                        "area": coco_rle.area(rle),
                        "bbox": [left, top, right - left, bottom - top],
                    }
                )
            found += each.to_coco(number, {k: k + 1 for k in range(5)})
    categories = [{"id": k + 1, "name": str(k)} for k in range(5)]
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = COCO({"images": images, "annotations": things, "categories": categories})
        evaluation = COCOeval(dataset, dataset.load_res(found), "segm")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    ap = float(evaluation.stats[0])
    assert not math.isnan(ap)
    return ap


def main(
    folder: Annotated[Path, typer.Option(help="A folder for the videos, which are reused.")],
    out: ReportOption = None,
    only: OnlyOption = None,
    precision: Annotated[str, typer.Option(help="auto, or int8, which needs OpenVINO.")] = "auto",
) -> None:
    """Compare ways to have masks on every frame."""
    names = only or (*SETS, NANO)
    with progress("measuring", sum(len(SETS.get(name, [name])) for name in names)) as advance:
        found = run(out, folder, names=names, precision=precision, on_progress=advance)  # type: ignore[arg-type]
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)

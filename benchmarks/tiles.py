"""Tiles: average precision of small, medium and large things and time per frame, beside no tiling and other slicers.

    pip install sahi supervision
    python -m benchmarks.tiles --out benchmarks/results/tiles_4k_cpu.json
    python -m benchmarks.tiles --size 7680x4320 --frames 1 --scored 4 --out benchmarks/results/tiles_8k_cpu.json

Frames are drawn streets with exact masks. All ways have the same model and threshold; a peer that is not installed is
left out, and a note says so. Nothing is timed unless `predict(tile=…)` equals merging what the model finds in
tiles cut by hand. For scores, what the model finds in a slice is kept for all ways that cut the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import DeviceOption, OnlyOption, ReportOption, check_names, start
from benchmarks.peers.loading import load_module
from maskjet import load, traffic
from maskjet.checks import check_count
from maskjet.cli.options import parse_size, print_result
from maskjet.detections import Detections
from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.host import measuring, process
from maskjet.host.machine import describe_machine
from maskjet.host.tables import shown
from maskjet.masks import coco_rle
from maskjet.model import Model
from maskjet.parity.coco import evaluate
from maskjet.tiling.layout import cut_tiles
from maskjet.tiling.merging import merge
from maskjet.traffic.dataset import CATEGORIES, annotate

Image = NDArray[np.uint8]
_TILE, _OVERLAP, _BATCH, _THREADS = 640, 0.2, 8, 2
_INPUT_HW, _MOST = (240, 240), 100  # the demo model's
_SHOWN = ("ap", "ap_small", "ap_medium", "ap_large")
_INSTANCES = 300  # merged alone
LOWERED = 0.1
"""Confidence that scored detections exceed; below it sahi takes NMS whatever is asked for."""
FIRST_SEED = 7_000_000
"""Seed of the first street; the demo model was trained on streets of other seeds."""
CATEGORY_IDS: Mapping[int, int] = {number: number + 1 for number in range(len(CATEGORIES))}
"""The category of each class in the streets' truth."""


@dataclass(frozen=True)
class TilesCost:
    """One way to find things in a frame: scores, time, and that of merging alone."""

    way: str
    """Whose slices and merging, and their settings."""
    segm: Mapping[str, float | None]
    """COCO's average precisions of masks, by the names of `parity.coco.METRICS`; sizes in pixels of the frame."""
    bbox: Mapping[str, float | None]
    """Those of boxes."""
    wall_ms: float
    """Median time of a frame, at the model's own threshold."""
    cpu_ms: float
    """Median CPU time of all threads for a frame: others on the machine do not count."""
    merging_ms: float | None
    """Median CPU time from the detections of tiles to those of the frame; of the peers with cutting slices."""
    instances: int | None
    """Detections of tiles that this is the time of."""


@dataclass(frozen=True, kw_only=True)
class TilesReport(measuring.MeasuredReport):
    """All ways on frames of one size."""

    measurements: Sequence[TilesCost]
    size_hw: tuple[int, int]
    """Height and width of frames in pixels."""
    scored: int
    """Frames that scores are of."""
    frames: int
    """Timed frames."""
    threshold: float
    """Confidence that scored detections exceed."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per way."""
        header = ("way", "AP", "small", "medium", "large", "boxes' AP", "small", "medium", "large")
        rows: list[tuple[str, ...]] = [(*header, "wall, ms", "CPU, ms", "merging, ms", "of")]
        for each in self.measurements:
            scores = (shown(kind[name], 3) for kind in (each.segm, each.bbox) for name in _SHOWN)
            times = (shown(each.wall_ms, 0), shown(each.cpu_ms, 0), shown(each.merging_ms, 2))
            rows.append((each.way, *scores, *times, str(each.instances or "-")))
        return rows


Find = Callable[[Sequence[Image]], list[Detections]]
"""Finds things in images: the model, or one of its stand-ins below."""
Way = Callable[[Image, Find], Callable[[], Detections]]
"""Finds things in a frame; returns what converts its result, which is not timed."""


class _Kept:
    """The model at a threshold; keeps what it found in an image for the next way that cuts the same one."""

    def __init__(self, model: Model, threshold: float) -> None:
        self._predict = partial(model.predict, threshold=threshold)
        self._found: dict[bytes, Detections] = {}
        self.sequence: list[Detections] = []
        """What was found in all images, in the order in which they were given."""

    def __call__(self, images: Sequence[Image]) -> list[Detections]:
        names = [blake2b(each.tobytes() + bytes(str(each.shape), "ascii")).digest() for each in images]
        missing = [number for number, name in enumerate(names) if name not in self._found]
        found = self._predict([images[number] for number in missing])
        self._found |= {names[number]: each for number, each in zip(missing, found, strict=True)}
        self.sequence += [self._found[name] for name in names]
        return [self._found[name] for name in names]


def _ours(tile: Any, full: bool) -> Way:
    """By `predict`, or with a stand-in for the model the same by hand."""

    def detect(image: Image, find: Find) -> Callable[[], Detections]:
        if isinstance(find, Model):
            found = find.predict(image, tile=tile, overlap=_OVERLAP, full=full)
        else:
            size_hw = (image.shape[0], image.shape[1])
            tiles = cut_tiles(size_hw, tile, _OVERLAP, _INPUT_HW, full)
            cut = [image[top : top + height, left : left + width] for top, left, height, width in tiles]
            found = merge(find(cut), tiles, size_hw, _MOST)
        return lambda: found

    return detect


def _untiled(image: Image, find: Find) -> Callable[[], Detections]:
    found = find([image])[0]
    return lambda: found


def _supervision(merging: str, metric: str, *, masks: Any = "compact", batch: int = 1, threads: int = 1) -> Way:
    """Its slicer, with a callback for a slice or for a batch of them."""

    def detect(image: Image, find: Find) -> Callable[[], Detections]:
        def call(given: Any) -> Any:
            kind: Any = (
                masks if isinstance(find, Model) else "compact"
            )  # at the low threshold dense ones take 9 GB at 4K
            found = [each.to_supervision(masks=kind) for each in find([given] if batch == 1 else given)]
            return found[0] if batch == 1 else found

        found = load_module("supervision", "supervision").InferenceSlicer(
            call,
            slice_wh=_TILE,
            overlap_wh=int(_TILE * _OVERLAP),
            overlap_filter=merging,
            overlap_metric=metric,
            thread_workers=threads,
            batch_size=batch,
        )(image)
        return lambda: Detections.from_supervision(found, (image.shape[0], image.shape[1]))

    return detect


def _sahi(merging: str, metric: str, *, batch: int = 1) -> Way:
    """Its sliced prediction with the whole image, by default; masks become outlines as in its own wrappers."""

    def detect(image: Image, find: Find) -> Callable[[], Detections]:
        sahi = load_module("sahi.predict", "sahi")
        model = _wrap_for_sahi(find)
        overlaps = {f"overlap_{side}_ratio": _OVERLAP for side in ("height", "width")}
        how = {"postprocess_type": merging, "postprocess_match_metric": metric, "batch_size": batch, "verbose": 0}
        things = sahi.get_sliced_prediction(image, model, _TILE, _TILE, **overlaps, **how).object_prediction_list
        return partial(_read_sahi, things, (image.shape[0], image.shape[1]))

    return detect


def _wrap_for_sahi(find: Find) -> Any:
    from sahi.models.base import DetectionModel
    from sahi.prediction import ObjectPrediction
    from sahi.utils.cv import get_coco_segmentation_from_bool_mask

    class Wrapped(DetectionModel):  # type: ignore[misc]
        def load_model(self) -> None: ...

        def perform_inference(self, image: Image) -> None:
            self._original_predictions = find([image])

        def perform_batch_inference(self, images: list[Image]) -> None:
            self._original_predictions = find(images)

        def _create_object_prediction_list_from_original_predictions(self, *places: Any, **named: Any) -> None:
            given = [*places, *named.values()]  # shifts and shapes, of an image or of each
            images = zip(self._original_predictions, *(np.atleast_2d(each).tolist() for each in given), strict=True)
            self._object_prediction_list_per_image = [convert(*each) for each in images]

    def convert(found: Detections, shift: Any, shape: Any) -> list[Any]:
        outlines = map(get_coco_segmentation_from_bool_mask, found.masks())
        fields = zip(found.xyxy, found.class_id.tolist(), found.confidence.tolist(), outlines, strict=True)
        return [
            ObjectPrediction(box, class_id, str(class_id), outline, score, shift, shape)
            for box, class_id, score, outline in fields
            if outline  # it takes none of fewer than three points
        ]

    return Wrapped(confidence_threshold=LOWERED)


def _read_sahi(things: Sequence[Any], size_hw: tuple[int, int]) -> Detections:
    return Detections(
        size_hw,
        np.array([each.bbox.to_xyxy() for each in things], np.float32).reshape(-1, 4),
        np.array([each.score.value for each in things], np.float32),
        np.array([each.category.id for each in things], np.int32),
        [coco_rle.encode(each.mask.bool_mask)[0] for each in things],
    )


WAYS: Mapping[str, Way] = {
    "no tiling": _untiled,
    "maskjet, 640": _ours(_TILE, full=True),
    "maskjet, 640, no full": _ours(_TILE, full=False),
    "maskjet, auto": _ours("auto", full=True),
    "supervision, defaults: NMS by IoU, dense": _supervision("non_max_suppression", "IOU", masks="dense"),
    "supervision, NMS by IoU": _supervision("non_max_suppression", "IOU"),
    f"supervision, NMS by IoU, batches of {_BATCH}": _supervision("non_max_suppression", "IOU", batch=_BATCH),
    f"supervision, NMS by IoU, {_THREADS} threads": _supervision("non_max_suppression", "IOU", threads=_THREADS),
    "supervision, NMS by IoS": _supervision("non_max_suppression", "IOS"),
    "supervision, NMM by IoU": _supervision("non_max_merge", "IOU"),
    "supervision, NMM by IoS": _supervision("non_max_merge", "IOS"),
    "sahi, defaults: GREEDYNMM by IoS": _sahi("GREEDYNMM", "IOS"),
    f"sahi, GREEDYNMM by IoS, batches of {_BATCH}": _sahi("GREEDYNMM", "IOS", batch=_BATCH),
    "sahi, NMS by IoS": _sahi("NMS", "IOS"),
    "sahi, NMS by IoU": _sahi("NMS", "IOU"),
}
"""What is measured, by name; masks of supervision are compact where nothing else is said."""


def run(
    path: Path | None = None,
    *,
    size: str = "3840x2160",
    scored: int = 12,
    frames: int = 3,
    device: str = "auto",
    only: Sequence[str] = (),
) -> TilesReport:
    """Find the things of `scored` drawn streets in all ways or `only` some of `WAYS`, and time `frames` of them.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: `predict` finds other things than merging by hand.
    """
    check_count("frames", frames)
    check_count("scored, less frames,", scored - frames + 1)
    check_names(only, WAYS)
    size_hw, notes = parse_size(size), []
    ways = {name: way for name, way in WAYS.items() if not only or name in only}
    for peer in ("supervision", "sahi"):
        try:
            load_module(peer, peer)
        except UnsupportedError as error:
            notes.append(f"{peer} left out: {error}")
            ways = {name: way for name, way in ways.items() if not name.startswith(peer)}
    found: dict[str, list[Any]] = {name: [] for name in ways}
    truth: list[Any] = []
    images: list[Image] = []
    with load("demo", device=device) as model, process.garbage_frozen():
        for number in range(scored):
            scene = traffic.sample(FIRST_SEED + number, size_hw=size_hw)
            truth += annotate(scene, number, len(truth) + 1)
            images += [scene.image] if number < frames else []
            kept = _Kept(model, LOWERED)
            for name, way in ways.items():
                found[name].append(way(scene.image, kept)())
        scores = _score(found, truth, size_hw)
        for name, way in ways.items():
            if name.startswith("maskjet"):
                _check(model, name, way, images[0])
        times = _time(model, ways, images)
        alone = _time_merging(model, ways, images[0])
    costs = [TilesCost(name, *[*scores[name], *times[name], *alone[name]]) for name in ways]
    sizes: dict[str, Any] = {"size_hw": size_hw, "scored": scored, "frames": frames, "threshold": LOWERED}
    report = TilesReport(machine=describe_machine(), measurements=costs, notes=notes, **sizes)
    report.write(path)
    return report


def _check(model: Model, name: str, way: Way, image: Image) -> None:
    actual, expected = way(image, model)(), way(image, _Kept(model, model.spec.threshold))()
    if actual.rle != expected.rle or not np.array_equal(actual.confidence, expected.confidence):
        raise MaskjetError(f"{name}: predict(tile=…) must equal merging tiles that are cut by hand; nothing was timed.")


def _score(
    found: Mapping[str, Sequence[Detections]], truth: list[Any], size_hw: tuple[int, int]
) -> dict[str, list[Any]]:
    count, (height, width) = len(next(iter(found.values()))), size_hw
    listed = [{"id": number, "height": height, "width": width, "file_name": ""} for number in range(count)]
    data = {"images": listed, "categories": CATEGORIES, "annotations": truth}
    results: dict[str, list[Any]] = {name: [] for name in found}
    for kind in ("segm", "bbox"):
        entries: dict[str, list[Any]] = {name: [] for name in found}
        for name, every in found.items():
            for number, each in enumerate(every):
                entries[name] += each.to_coco(number, CATEGORY_IDS, kind=kind)
        for score in evaluate(data, entries).measurements:
            results[score.variant].append(score.metrics)
    return results


def _time(model: Model, ways: Mapping[str, Way], images: Sequence[Image]) -> dict[str, list[float]]:
    """Milliseconds of wall and CPU time of a frame; ways take turns, after one on the first frame to warm up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for image in [images[0], *images]:
        for name, way in ways.items():
            begun = perf_counter(), process_time()
            way(image, model)
            times[name].append((1000 * (perf_counter() - begun[0]), 1000 * (process_time() - begun[1])))
    return {name: np.median(each[1:], axis=0).round(1).tolist() for name, each in times.items()}


def _time_merging(model: Model, ways: Mapping[str, Way], image: Image, runs: int = 3) -> dict[str, tuple[Any, Any]]:
    """Milliseconds of CPU time to merge so many detections of a frame's tiles, and their number."""
    every = _Kept(model, 0.0)
    WAYS["maskjet, 640"](image, every)
    confidences = np.sort(np.concatenate([each.confidence for each in every.sequence]))
    kept = _Kept(model, float(confidences[-_INSTANCES:][0]))
    found: dict[str, tuple[Any, Any]] = {}
    for name, way in ways.items():
        found[name] = None, None
        if name == "no tiling" or name.endswith(("dense", "threads")):  # threads take them in any order
            continue
        kept.sequence = []
        way(image, kept)
        times = []
        for _ in range(runs + 1):
            replayed = iter(kept.sequence)
            begun = process_time()
            way(image, partial(_take, replayed))
            times.append(1000 * (process_time() - begun))
        found[name] = round(median(times[1:]), 3), sum(map(len, kept.sequence))
    return found


def _take(found: Iterator[Detections], images: Sequence[Image]) -> list[Detections]:
    return [next(found) for _ in images]


def main(
    size: Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")] = "3840x2160",
    scored: Annotated[int, typer.Option(help="Frames for the scores.")] = 12,
    frames: Annotated[int, typer.Option(help="Frames for the times.")] = 3,
    device: DeviceOption = "auto",
    only: OnlyOption = None,
    out: ReportOption = None,
) -> None:
    """Find small things in large drawn streets by tiles, beside no tiling, supervision's slicer and sahi."""
    report = run(out, size=size, scored=scored, frames=frames, device=device, only=tuple(only or ()))
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)

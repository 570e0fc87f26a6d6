"""COCO evaluators on the same results: equality with pycocotools, bit for bit, and time.

    pip install faster-coco-eval hotcoco pycocotools vernier
    python -m benchmarks.evaluators --images 1000

Things and detections are random ellipses, 100 detections an image, of 80 classes, with crowds and equal scores.
Each evaluator runs in a fresh process; times are from Python's dicts to the twelve numbers.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.command import start
from maskjet.host.tables import as_table
from maskjet.masks import coco_rle

_SIZE_HW = (480, 640)
_CLASSES, _DETECTIONS = 80, 100
_ARRAYS = ("precision", "recall", "scores")
# Module of COCO and module and class of the evaluator; vernier reads pycocotools' data sets.
EVALUATORS: Mapping[str, tuple[str, str, str]] = {
    "pycocotools": ("pycocotools.coco", "pycocotools.cocoeval", "COCOeval"),
    "faster-coco-eval": ("faster_coco_eval", "faster_coco_eval", "COCOeval_faster"),
    "hotcoco": ("hotcoco", "hotcoco", "COCOeval"),
    "vernier": ("pycocotools.coco", "vernier", "COCOeval"),
}


def make_data(images: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A truth and results, with boxes and masks, the same every time."""
    random = np.random.default_rng(0)
    annotations: list[dict[str, Any]] = []
    results = []
    for image_id in range(1, images + 1):
        things = [(_place(random), int(random.integers(1, _CLASSES + 1))) for _ in range(int(random.integers(1, 15)))]
        for ellipse, category in things:
            shape = _shape(ellipse)
            entry = {"id": len(annotations) + 1, "image_id": image_id, "category_id": category, **shape}
            annotations.append(
                {**entry, "iscrowd": int(random.random() < 0.02), "area": coco_rle.area(shape["segmentation"])}
            )
        for number in range(_DETECTIONS):
            ellipse, category = _place(random), int(random.integers(1, _CLASSES + 1))
            if number < 2 * len(things):
                near, category = things[number % len(things)]
                ellipse = near + random.normal(0, 0.15, 4) * np.tile(near[2:], 2)
            score = round(float(random.random()), 3)
            results.append({"image_id": image_id, "category_id": category, "score": score, **_shape(ellipse)})
    height, width = _SIZE_HW
    listed = [{"id": number, "height": height, "width": width, "file_name": ""} for number in range(1, images + 1)]
    categories = [{"id": number, "name": str(number)} for number in range(1, _CLASSES + 1)]
    return {"images": listed, "categories": categories, "annotations": annotations}, results


def _place(random: np.random.Generator) -> NDArray[np.float64]:
    """An ellipse's x, y and half axes, in pixels."""
    side = np.exp(random.uniform(2, 4.6))
    return np.array(
        [random.uniform(0, _SIZE_HW[1]), random.uniform(0, _SIZE_HW[0]), side, side * random.uniform(0.4, 1)]
    )


def _shape(ellipse: NDArray[np.float64]) -> dict[str, Any]:
    mask = np.zeros(_SIZE_HW, np.uint8)
    x, y, half_width, half_height = ellipse
    axes = max(round(half_width), 1), max(round(half_height), 1)
    cv2.ellipse(mask, (int(np.clip(x, 0, 639)), int(np.clip(y, 0, 479))), axes, 0, 0, 360, 1, cv2.FILLED)
    rle = coco_rle.encode(mask[None])[0]
    left, top, right, bottom = coco_rle.to_xyxy(rle)
    return {"bbox": [left, top, right - left, bottom - top], "segmentation": coco_rle.to_json(rle)}


def run(name: str, kind: str, data: tuple[dict[str, Any], list[dict[str, Any]]], pipe: Any) -> None:
    """Evaluate in this process; sends the time and the arrays."""
    left_out = "segmentation" if kind == "bbox" else "bbox"
    truth, entries = data
    entries = [{field: value for field, value in entry.items() if field != left_out} for entry in entries]
    loader, module, evaluator = EVALUATORS[name]
    make_index, make = (
        importlib.import_module(loader).COCO,
        getattr(importlib.import_module(module), evaluator),
    )
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        if loader == "pycocotools.coco":
            index = make_index()
            index.dataset = truth
            index.createIndex()
        else:
            index = make_index(truth)
        found = index.loadRes(entries)
        if name == "vernier":  # takes no NumPy arrays as boxes
            for entry in found.dataset["annotations"]:
                entry["bbox"] = list(map(float, entry["bbox"]))
        done = make(index, found, kind)
        done.evaluate()
        done.accumulate()
        done.summarize()
    seconds = time.perf_counter() - start
    pipe.send((seconds, {**{each: np.asarray(done.eval[each]) for each in _ARRAYS}, "stats": np.asarray(done.stats)}))


def compare(images: int, kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """The table: its header, then one row per kind and evaluator."""
    data = make_data(images)
    rows: list[tuple[str, ...]] = [("kind", "evaluator", "seconds", "arrays", "twelve numbers")]
    context = multiprocessing.get_context("spawn")
    for kind in kinds:
        expected: dict[str, NDArray[np.float64]] = {}
        for name in EVALUATORS:
            receiver, sender = context.Pipe()
            process = context.Process(target=run, args=(name, kind, data, sender))
            process.start()
            sender.close()  # so that one that fails ends this process, too
            seconds, found = receiver.recv()
            process.join()
            expected = expected or found
            off = [
                _tell([found[each] for each in names], [expected[each] for each in names])
                for names in (_ARRAYS, ["stats"])
            ]
            rows.append((kind, name, f"{seconds:.2f}", *off))
    return rows


def _tell(found: Sequence[NDArray[np.float64]], expected: Sequence[NDArray[np.float64]]) -> str:
    largest = max(
        np.abs(one.ravel()[: other.size] - other.ravel()).max() for one, other in zip(found, expected, strict=True)
    )
    return "equal" if largest == 0 else f"within {largest:.1e}"


def main(images: Annotated[int, typer.Option(help="Images.")] = 1000) -> None:
    """Compare COCO evaluators, and time them."""
    print(as_table(compare(images, ("bbox", "segm"))))
    print(json.dumps({"cores": len(os.sched_getaffinity(0)), "images": images}))


if __name__ == "__main__":
    start(main)

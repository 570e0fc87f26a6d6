"""A model measured on a data set: COCO's numbers to the last digit, and every other one counted again by hand."""

import copy
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

import maskjet
from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError, MissingDependencyError
from maskjet.evaluation import scoring
from maskjet.evaluation.datasets import DataSet
from maskjet.evaluation.evaluation import write_evaluation
from maskjet.masks import coco_rle
from maskjet.parity import pictures
from maskjet.parity.coco_files import draw_masks
from tests.parity.test_coco import oracle, random_set
from tests.parity.test_page import Page

NAMES = {0: "Car", 1: "bus", 5: "van", 6: "tree"}
THRESHOLDS = {"Car": 0.5, "bus": 0.3, "van": 0.5, "tree": 0.5}


class Model:
    """Finds on each image what a truth's results say, classes as in `NAMES`."""

    spec = SimpleNamespace(name="planned", class_names=NAMES)
    config = EngineConfig(device="cpu")
    thresholds = THRESHOLDS

    def __init__(self, truth, results, categories, *, has_masks=True):
        self.calls, self.truth, self.has_masks = [], truth, has_masks
        self.found = {image["file_name"]: [] for image in truth["images"]}
        names = {image["id"]: image["file_name"] for image in truth["images"]}
        for entry in results:
            self.found[names[entry["image_id"]]].append((entry, categories[entry["category_id"]]))

    def stream(self, source, *, threshold):
        self.calls.append(threshold)
        with source:
            for frame in source:
                yield frame, self.detect(frame)

    def detect(self, frame):
        entries = sorted(self.found[Path(frame.name).name], key=lambda each: -each[0]["score"])
        corners = np.array([entry["bbox"] for entry, _ in entries], np.float32).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        return Detections(
            image_size=frame.image.shape[:2],
            xyxy=corners,
            confidence=np.array([entry["score"] for entry, _ in entries], np.float32),
            class_id=np.array([class_id for _, class_id in entries], np.int32),
            rle=[coco_rle.from_json(entry["segmentation"]) for entry, _ in entries] if self.has_masks else None,
            class_names=NAMES,
        )


@pytest.fixture
def planned(tmp_path):
    """A data set of crowds, polygons and both forms of RLE, and results; with equal confidences, all below 1."""
    truth, results = random_set(3, images=6)
    entries = []
    for number, entry in enumerate(results["a"]):  # mostly surer where they are right; some of another class
        there = [each["bbox"] for each in truth["annotations"] if each["image_id"] == entry["image_id"]]
        is_near = any(overlap(entry["bbox"], box) >= 0.5 for box in there)
        score = float(np.float32(0.4 * entry["score"] + 0.5 * is_near + 0.05))
        other = {7: 2, 2: 7}.get(entry["category_id"]) if is_near and number % 9 == 0 else None
        entries.append({**entry, "score": score, "category_id": other or entry["category_id"]})
    for image in truth["images"]:
        image["file_name"] = f"{image['id']:03}.png"
    for category, name in zip(truth["categories"], ("CAR", "bus", "Van", "shed"), strict=True):
        category["name"] = name  # ids 7, 2, 90 and 3
    (tmp_path / "set" / "images").mkdir(parents=True)
    for image in truth["images"]:
        cv2.imwrite(
            str(tmp_path / "set" / "images" / image["file_name"]), np.full((image["height"], image["width"], 3), 90)
        )
    (tmp_path / "set" / "annotations.json").write_text(json.dumps(truth))
    known = [entry for entry in entries if entry["category_id"] != 3]
    return tmp_path / "set", truth, known


CLASSES = {7: 0, 2: 1, 90: 5}


def find_all(truth):
    """Detections of all annotated things."""
    return [
        {**entry, "score": 0.9}
        for entry in draw_masks(truth)["annotations"]
        if not entry["iscrowd"] and entry["category_id"] != 3
    ]


def rename(folder, **names):
    path = folder / "annotations.json"
    truth = json.loads(path.read_text())
    for category in truth["categories"]:
        category["name"] = names.get(category["name"], category["name"])
    path.write_text(json.dumps(truth))


def test_averages_are_those_of_pycocotools_to_the_last_digit(planned):
    folder, truth, results = planned
    model, calls = Model(truth, results, CLASSES), []
    report = maskjet.evaluate(model, folder, on_progress=lambda: calls.append(1))
    assert (model.calls, len(calls), report.images, list(report.notes)) == ([0.001], 6, 6, [])
    assert report.classes == ["bus", "Car", "van"]
    scored = copy.deepcopy(truth)
    scored["categories"] = [each for each in truth["categories"] if each["id"] in CLASSES]
    for kind in ("bbox", "segm"):
        alone = {name: number for number, class_id in CLASSES.items() for name in [NAMES[class_id]]}
        for m in (m for m in report.measurements if m.kind == kind):
            of_class = scored
            if m.class_name is not None:
                of_class = {**scored, "categories": [{"id": alone[m.class_name]}]}
            shown = {each["id"] for each in of_class["categories"]}
            of_class = {**of_class, "annotations": [a for a in scored["annotations"] if a["category_id"] in shown]}
            expected = oracle(of_class, [each for each in results if each["category_id"] in shown], kind)
            assert list(m.metrics.values()) == expected


def count(truth, results, threshold, category=None, iou=0.5):
    """Right and wrong detections above a threshold, and things: greedily, crowds aside."""
    right = wrong = 0
    for image in truth["images"]:
        for number in [category] if category else CLASSES:
            there = [
                entry
                for entry in truth["annotations"]
                if (entry["image_id"], entry["category_id"]) == (image["id"], number)
            ]
            free = [each for each in there if not each["iscrowd"]]
            crowds = [each["bbox"] for each in there if each["iscrowd"]]
            found = [e for e in results if (e["image_id"], e["category_id"]) == (image["id"], number)]
            for entry in sorted(found, key=lambda e: -e["score"]):
                if entry["score"] <= threshold:
                    continue
                best = max(free, key=lambda each: overlap(entry["bbox"], each["bbox"]), default=None)
                if best is not None and overlap(entry["bbox"], best["bbox"]) >= iou:
                    free.remove(best)
                    right += 1
                elif all(overlap(entry["bbox"], each, is_crowd=True) < iou for each in crowds):
                    wrong += 1
    things = [
        e
        for e in truth["annotations"]
        if not e["iscrowd"] and e["category_id"] in ([category] if category else CLASSES)
    ]
    return right, wrong, len(things)


def overlap(box, other, *, is_crowd=False):
    sides = [
        max(min(box[axis] + box[axis + 2], other[axis] + other[axis + 2]) - max(box[axis], other[axis]), 0)
        for axis in (0, 1)
    ]
    shared, area, other_area = sides[0] * sides[1], box[2] * box[3], other[2] * other[3]
    return shared / (area if is_crowd else area + other_area - shared)


def test_precision_and_recall_are_counted_at_the_given_and_at_the_best_threshold(planned):
    folder, truth, results = planned
    report = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    numbers = {"Car": 7, "bus": 2, "van": 90}
    levels = sorted({entry["score"] for entry in results})
    for m in (m for m in report.measurements if m.kind == "bbox"):
        number = numbers.get(m.class_name)
        counts = [count(truth, results, level - 1e-4, number) for level in levels]
        scores = [2 * right / (right + wrong + things) for right, wrong, things in counts]
        assert m.best.f1 == pytest.approx(max(scores))
        right, wrong, things = count(truth, results, m.best.threshold, number)
        assert (m.best.precision, m.best.recall) == (right / (right + wrong), right / things)
        assert m.things == things
        if m.class_name:
            right, wrong, things = count(truth, results, THRESHOLDS[m.class_name], number)
            assert m.given.threshold == THRESHOLDS[m.class_name]
            assert (m.given.precision, m.given.recall) == (right / (right + wrong), right / things)
        else:
            assert m.given.threshold is None  # the classes have different ones
    assert len({m.best.threshold for m in report.measurements}) > 1


def test_what_is_taken_for_what_is_counted(planned):
    folder, truth, results = planned
    report = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    matrix = np.array(report.confusion)
    things = {m.class_name: m.things for m in report.measurements if m.kind == "segm"}
    assert matrix.sum(axis=1)[:3].tolist() == [things[name] for name in report.classes]
    for column, name in enumerate(report.classes):
        m = next(m for m in report.measurements if (m.kind, m.class_name) == ("segm", name))
        counted = round(m.given.recall * m.things / m.given.precision)
        assert matrix[:, column].sum() == counted
    assert matrix[0, 1] + matrix[1, 0] + matrix[2, 0] > 0


def test_perfect_detections_of_boxes_alone(planned):
    folder, truth, _ = planned
    report = maskjet.evaluate(Model(truth, find_all(truth), CLASSES, has_masks=False), folder)
    assert {m.kind for m in report.measurements} == {"bbox"}
    assert report.notes == ["segm left out: the model has no masks."]
    for m in report.measurements:
        assert (
            (m.best.precision, m.best.recall, m.best.f1) == (m.given.precision, m.given.recall, m.given.f1) == (1, 1, 1)
        )
        assert 0.001 < m.best.threshold < 0.9
        assert m.curve == pytest.approx([1.0] * 101)
    assert np.array_equal(np.array(report.confusion), np.diag([m.things for m in report.measurements[1:]] + [0]))


def test_nothing_is_found(planned):
    folder, truth, _ = planned
    report = maskjet.evaluate(Model(truth, [], CLASSES), folder)
    for m in report.measurements:
        assert (m.metrics["ap"], m.best.threshold, m.best.precision, m.best.recall, m.best.f1) == (0, None, None, 0, 0)
    assert report.rows()[1][:4] == ("all", "bbox", str(report.measurements[0].things), "0.0000")


def test_classes_are_matched(planned):
    folder, truth, results = planned
    whole = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    rename(folder, Van="lorry")
    with pytest.warns(UserWarning, match=r"no such class: lorry \(\d+\); it also knows van, tree"):
        few = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    assert few.classes == ["bus", "Car"]
    assert [m for m in few.measurements if m.class_name == "bus"] == [
        m for m in whole.measurements if m.class_name == "bus"
    ]
    mapped = maskjet.evaluate(Model(truth, results, CLASSES), folder, class_map={"lorry": "VAN"})
    assert mapped.measurements == whole.measurements
    merged = maskjet.evaluate(Model(truth, results, CLASSES), folder, class_map={"lorry": "car"})
    assert merged.classes == ["bus", "Car"]
    counts = [{m.class_name: m.things for m in each.measurements} for each in (merged, whole)]
    assert counts[0]["Car"] == counts[1]["Car"] + counts[1]["van"]


def test_classes_that_differ_in_case_alone_are_two(planned):
    folder, truth, results = planned
    rename(folder, CAR="Car", bus="car")
    model = Model(truth, results, CLASSES)
    model.thresholds = {"Car": 0.5, "car": 0.5}
    assert {each["id"]: each["name"] for each in scoring.prepare(DataSet(folder), model, {}).truth["categories"]} == {
        7: "Car",
        2: "car",
    }


def test_masks_that_were_not_checked_are_not_looked_at(planned):
    folder, truth, results = planned
    first, second, *others = truth["annotations"]
    wrong = [{**first, "segmentation": [[[1, 2]] * 6]}, {**second, "segmentation": None}]
    (folder / "annotations.json").write_text(json.dumps({**truth, "annotations": [*wrong, *others]}))
    with pytest.warns(UserWarning, match="segm left out: not everything has a segmentation"):
        report = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    assert {m.kind for m in report.measurements} == {"bbox"}


def test_what_is_wrong_is_told_before_the_model_runs(planned, monkeypatch):
    folder, truth, results = planned
    model = Model(truth, results, CLASSES)
    for wrong, message in (
        ({"cars": "Car"}, "class_map must map classes of the data set, got 'cars'; did you mean 'CAR'"),
        ({"CAR": "cra"}, "class_map must map to classes of the model, got 'cra'; did you mean 'Car'"),
    ):
        with pytest.raises(InputError, match=message):
            maskjet.evaluate(model, folder, class_map=wrong)
    rename(folder, CAR="a", bus="b", Van="c")
    with pytest.raises(
        InputError, match=r"the model's classes, it has a \(\d+\), b \(\d+\), c \(\d+\); .* knows Car, bus, van"
    ):
        maskjet.evaluate(model, folder)
    (folder / "annotations.json").write_text(json.dumps({**truth, "annotations": []}))
    with pytest.raises(InputError, match=r"data must have annotations, '.*set' has none"):
        maskjet.evaluate(model, folder)
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    with pytest.raises(MissingDependencyError, match="COCO mAP needs hotcoco"):
        maskjet.evaluate(model, folder)
    assert model.calls == []


def test_images_that_can_not_be_read_count_as_missed(planned):
    folder, truth, results = planned
    name = truth["images"][0]["file_name"]
    data = (folder / "images" / name).read_bytes()
    (folder / "images" / name).write_bytes(data[:60])
    report = maskjet.evaluate(Model(truth, results, CLASSES), folder)
    assert report.notes == ["1 images could not be read; the things on them count as missed."]
    others = [entry for entry in results if entry["image_id"] != truth["images"][0]["id"]]
    scored = {**truth, "categories": [each for each in truth["categories"] if each["id"] in CLASSES]}
    assert report.measurements[0].metrics["ap"] == oracle(scored, others, "bbox")[0]


def test_the_files(planned, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_OVERVIEW_SIDE", 320)
    folder, truth, results = planned
    rename(folder, Van="<b>lorry")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = maskjet.evaluate(Model(truth, results, CLASSES), folder, out=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["page.html", "report.json"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["confusion"] == report.confusion
    page = Page((tmp_path / "out" / "page.html").read_text())
    assert "planned on 6 images" in page.words
    assert f"{report.measurements[0].metrics['ap']:.3f} AP of boxes" in page.words
    assert "no such class: <b>lorry" in page.words
    assert "annotated, but not found" in page.words
    assert "found as another class" in page.words
    assert sum("close-up" in image["alt"] for image in page.all("img")) > 10
    assert page.all("script") == []
    curves = [line["points"].split() for line in page.all("polyline")]
    for kind, drawn in (("bbox", curves[: len(curves) // 2]), ("segm", curves[len(curves) // 2 :])):
        mean, *scored = (m for m in report.measurements if m.kind == kind and m.curve)
        scored.sort(key=lambda m: -m.things)
        for line, m in zip(reversed(drawn), [mean, *scored], strict=True):
            points = np.array([point.split(",") for point in line], float)
            np.testing.assert_allclose(
                (points - [45, 385]) / [400, -370], np.stack([np.linspace(0, 1, 101), m.curve], axis=1), atol=2e-4
            )


def test_the_worst_images_are_those_with_the_most_lost_things(planned):
    folder, truth, _ = planned
    ids = [image["id"] for image in truth["images"]]
    found = [
        entry
        for entry in find_all(truth)
        if entry["image_id"] != ids[2] and not (entry["image_id"] == ids[4] and entry["id"] % 2)
    ]
    task = scoring.prepare(DataSet(folder), Model(truth, found, CLASSES), {})
    outcome = scoring.run(task, Model(truth, found, CLASSES))
    names = [image["file_name"] for image in truth["images"]]
    assert [worst.name for worst, *_ in outcome.worst] == [names[2], names[4]]
    assert {difference.kind for worst, *_ in outcome.worst for difference in worst.differences} == {"dropped"}
    assert outcome.worst[0][1].found.rle is not None
    (folder / "images" / names[2]).unlink()
    with pytest.raises(maskjet.SourceError, match=names[2]):
        write_evaluation(folder / "out", outcome, task.images)


@pytest.mark.gpu
def test_a_gpu_scores_as_a_cpu_does(tmp_path):
    traffic.write_coco(tmp_path, images=12, size_hw=(176, 312))  # more than a batch
    found = [maskjet.evaluate(maskjet.load("demo", device=device), tmp_path) for device in ("cpu", "cuda")]
    for one, other in zip(*(report.measurements for report in found), strict=True):
        assert (one.class_name, one.kind, one.things) == (other.class_name, other.kind, other.things)
    first = [report.measurements[0].metrics["ap"] for report in found]
    assert first[0] == pytest.approx(first[1], abs=0.02)

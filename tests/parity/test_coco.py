"""COCO mAP of variants: equal to pycocotools', draw by draw, and no planted fault goes unseen."""

import contextlib
import copy
import functools
import io
import json
import sys

import numpy as np
import pytest
from pycocotools import mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from maskjet import traffic
from maskjet.errors import InputError, MissingDependencyError
from maskjet.masks import coco_rle
from maskjet.parity import coco
from maskjet.parity.coco_files import check_truth, draw_masks
from maskjet.traffic.dataset import CATEGORIES, annotate

SIZE = (96, 160)


draw = functools.cache(functools.partial(traffic.sample, size_hw=SIZE))


def streets(images):
    """A truth of traffic scenes, and the detections that get full marks on it."""
    scenes = [draw(seed) for seed in range(images)]
    listed = [{"id": number, "height": SIZE[0], "width": SIZE[1]} for number in range(images)]
    found = []
    for number, scene in enumerate(scenes):
        found += annotate(scene, number, len(found) + 1)
    fields = ("image_id", "category_id", "bbox", "segmentation")
    confidence = np.random.default_rng(0).uniform(0.5, 1, len(found)).tolist()
    perfect = [
        {**{field: copy.deepcopy(entry[field]) for field in fields}, "score": score}
        for entry, score in zip(found, confidence, strict=True)
    ]
    return {"images": listed, "categories": CATEGORIES, "annotations": found}, perfect


def random_set(seed=0, images=8):
    """A truth in all of COCO's forms, and two variants that are right now and then, with equal scores among them."""
    random = np.random.default_rng(seed)
    ids = random.permutation(100)[:images].tolist()  # neither from 0 nor in order
    sizes = {image_id: (200 + 10 * number, 300 - 7 * number) for number, image_id in enumerate(ids)}
    truth = {
        "images": [{"id": image_id, "height": sizes[image_id][0], "width": sizes[image_id][1]} for image_id in ids],
        "categories": [{"id": category} for category in (7, 2, 90, 3)],  # 3 has no annotations
        "annotations": [],
    }
    results = {"a": [], "b": []}
    for image_id in ids:
        for number in range(14):
            box, category = random_box(random, sizes[image_id]), int(random.choice([2, 7, 90]))
            is_crowd = number == 13
            rle = rectangle(box, sizes[image_id])
            x, y, w, h = box
            segmentation = [
                coco_rle.to_json(rle),
                [[x, y, x + w, y, x + w, y + h, x, y + h]],
                {"size": rle["size"], "counts": coco_rle._expand(rle["counts"], 2**62)[0].tolist()},
            ][2 if is_crowd else number % 2]
            entry = {"image_id": image_id, "category_id": category, "bbox": box, "area": w * h}
            entry |= {"id": len(truth["annotations"]) + 1, "segmentation": segmentation, "iscrowd": int(is_crowd)}
            truth["annotations"].append(entry)
            for entries in results.values():
                if random.random() < 0.8:
                    entries.append(detection(random, image_id, category, moved(random, box), sizes[image_id]))
        for entries in results.values():
            for _ in range(6):
                box, category = random_box(random, sizes[image_id]), int(random.choice([2, 3, 7, 90]))
                entries.append(detection(random, image_id, category, box, sizes[image_id]))
    return truth, results


def random_box(random, size):
    side = int(np.exp(random.uniform(2, 5)))
    w, h = side, max(1, int(side * random.uniform(0.6, 1)))
    return [int(random.integers(0, size[1] - w)), int(random.integers(0, size[0] - h)), w, h]


def moved(random, box):
    x, y, w, h = box
    dx, dy = (int(random.normal(0, 0.06) * side) for side in (w, h))
    return [max(x + dx, 0), max(y + dy, 0), w, h]


def rectangle(box, size):
    x, y, w, h = box
    mask = np.zeros(size, np.uint8)
    mask[y : y + h, x : x + w] = 1
    mask[y : y + h // 3, x : x + w // 3] = 0  # so that a mask is not its box
    return coco_rle.encode(mask)[0]


def detection(random, image_id, category, box, size):
    score = round(float(random.random()), 1)
    mask = coco_rle.to_json(rectangle(box, size))
    return {"image_id": image_id, "category_id": category, "bbox": box, "score": score, "segmentation": mask}


def oracle(truth, entries, kind):
    """The twelve numbers by pycocotools."""
    truth = copy.deepcopy(truth)
    left_out = "segmentation" if kind == "bbox" else "bbox"
    entries = [{field: value for field, value in entry.items() if field != left_out} for entry in entries]
    with contextlib.redirect_stdout(io.StringIO()):
        expected = COCO()
        expected.dataset = truth
        expected.createIndex()
        scored = COCOeval(expected, expected.loadRes(copy.deepcopy(entries)), kind)
        scored.evaluate()
        scored.accumulate()
        scored.summarize()
    return [None if score == -1 else score for score in scored.stats[:12].tolist()]


def drawn(truth, entries, draw):
    """The data set that has the drawn images, each as often as drawn, under new ids."""
    ids = sorted(image["id"] for image in truth["images"])
    images = {image["id"]: image for image in truth["images"]}
    copies = {"images": [], "categories": truth["categories"], "annotations": []}
    found = []
    for number, position in enumerate(sorted(draw.tolist())):
        image_id = ids[position]
        copies["images"].append({**images[image_id], "id": number})
        for source, target in ((truth["annotations"], copies["annotations"]), (entries, found)):
            target += [{**entry, "image_id": number} for entry in source if entry["image_id"] == image_id]
    copies["annotations"] = [{**entry, "id": number + 1} for number, entry in enumerate(copies["annotations"])]
    return copies, found


def only(report, variant, kind="bbox"):
    (found,) = (m for m in report.measurements if (m.variant, m.kind) == (variant, kind))
    return found


def scores(measurement):
    return list(measurement.metrics.values())


def test_scores_equal_pycocotools():
    truth, results = random_set()
    report = coco.evaluate(truth, {name: results[name] for name in "ba"})
    assert [(m.kind, m.variant) for m in report.measurements] == [(k, v) for k in coco.KINDS for v in "ba"]
    for m in report.measurements:
        expected = oracle(truth, results[m.variant], m.kind)
        assert None not in expected
        assert scores(m) == expected  # to the last digit
        base = oracle(truth, results["b"], m.kind)
        assert list(m.deltas.values()) == pytest.approx(np.subtract(expected, base).tolist(), abs=1e-12)
    assert only(report, "a").deltas["ap"] != 0
    assert (report.baseline, report.images, list(report.notes)) == ("b", 8, [])


def test_polygons_are_drawn_as_by_pycocotools():
    lines = np.random.default_rng(0).uniform(-20, 120, (7, 10)).tolist()
    truth = {"images": [{"id": 1, "height": 90, "width": 100}], "annotations": [{"image_id": 1, "segmentation": lines}]}
    expected = mask.merge(mask.frPyObjects(lines, 90, 100))
    assert draw_masks(truth)["annotations"][0]["segmentation"] == expected


def test_differences_are_those_to_the_baseline():
    truth, perfect = streets(20)
    results = {
        "base": perfect,
        "same": copy.deepcopy(perfect),
        "one less": perfect[1:],
        "half": perfect[::2],
        "nothing": [],
    }
    report = coco.evaluate(truth, results)
    for kind in coco.KINDS:
        same, fewer, half, nothing = (only(report, name, kind) for name in list(results)[1:])
        assert half.deltas["ap"] < fewer.deltas["ap"] < 0 == same.deltas["ap"]
        assert tuple(nothing.metrics[name] for name in ("ap", "ap_small", "ap_large")) == (0, 0, None)
        assert nothing.deltas["ap"] == pytest.approx(-1)


def test_a_truth_without_annotations_scores_nothing():
    truth, perfect = streets(2)
    report = coco.evaluate({**truth, "annotations": []}, {"a": perfect, "b": []})
    for m in report.measurements:
        assert scores(m) == [None] * 12
        assert set(m.deltas.values()) == {None}
    assert report.rows()[2][2:] == ("-",) * 12


def test_numbering_and_optional_fields_of_the_truth_do_not_matter():
    truth, results = random_set(images=4)
    expected = coco.evaluate(truth, results)
    bare = [{**entry, "id": 0} for entry in truth["annotations"]]
    for entry in bare:
        if not entry["iscrowd"]:
            del entry["iscrowd"]
        entry["bbox"] = np.array(entry["bbox"], np.float32)
        entry["image_id"] = np.int64(entry["image_id"])
    actual = coco.evaluate({**truth, "annotations": bare}, results)
    assert actual.measurements == expected.measurements


def test_masks_are_left_out_where_one_has_none():
    truth, perfect = streets(3)
    boxes = [{field: value for field, value in entry.items() if field != "segmentation"} for entry in perfect]
    results = {"masks": perfect, "boxes": boxes}
    calls = []
    report = coco.evaluate(truth, results, on_progress=lambda: calls.append(1))
    assert {m.kind for m in report.measurements} == {"bbox"}
    assert report.notes == ["segm left out: not everything has a segmentation in boxes."]
    assert report.notes[0] in str(report)
    assert len(calls) == 2
    bare = {**truth, "annotations": [{**entry, "segmentation": None} for entry in truth["annotations"]]}
    notes = coco.evaluate(bare, {"masks": perfect, "none": []}).notes
    assert notes == ["segm left out: not everything has a segmentation in the truth."]


def test_results_of_one_kind_are_scored_of_that_kind():
    truth, results = random_set(images=3)
    expected = coco.evaluate(truth, results)
    masks, boxes = (
        [{name: value for name, value in entry.items() if name != left_out} for entry in results["a"]]
        for left_out in ("bbox", "segmentation")
    )
    for kind, entries in (("segm", masks), ("bbox", boxes)):
        report = coco.evaluate(truth, {"a": entries})
        assert [measurement.kind for measurement in report.measurements] == [kind]
        assert scores(only(report, "a", kind)) == scores(only(expected, "a", kind))
    with pytest.raises(InputError, match=r"results must all have boxes, or all .* a bbox in a\. segm left out"):
        coco.evaluate(truth, {"a": masks, "b": boxes})


def test_progress_is_told_and_nothing_is_changed_or_printed(capfd):
    truth, results = random_set(images=3)
    before = copy.deepcopy((truth, results))
    for variants, expected in ("a", 2), ("ab", 4):
        chosen, calls = {name: results[name] for name in variants}, []
        coco.evaluate(truth, chosen, on_progress=lambda calls=calls: calls.append(1))
        assert len(calls) == expected
    assert (truth, results) == before
    assert capfd.readouterr() == ("", "")


def test_the_report_is_a_table_and_json(tmp_path):
    truth, results = random_set(images=3)
    report = coco.evaluate(truth, results)
    header, first, second, *_ = report.rows()
    assert header[:9] == ("variant", "kind", "AP", "50", "75", "S", "M", "L", "ΔAP")
    a, b = (only(report, name) for name in "ab")
    assert first == ("a", "bbox", *(f"{score:.4f}" for score in scores(a)[:6]), *["+0.0000"] * 6)
    assert second[8:] == tuple(f"{b.deltas[metric]:+.4f}" for metric in coco.METRICS)
    report.write(tmp_path / "r.json")
    written = json.loads((tmp_path / "r.json").read_text())
    assert written["measurements"][1]["deltas"]["ap75"] == b.deltas["ap75"]
    assert (written["baseline"], written["images"]) == ("a", 3)


def test_a_truth_that_lacks_a_list():
    truth, _ = streets(2)
    with pytest.raises(InputError, match="truth must be a COCO data set: 'categories'"):
        check_truth({"images": truth["images"]})
    with pytest.raises(InputError, match="truth must have at least one entry in 'images', got none"):
        check_truth({**truth, "images": []})


def test_without_the_library(monkeypatch):
    truth, perfect = streets(1)
    monkeypatch.setitem(sys.modules, "hotcoco", None)
    with pytest.raises(MissingDependencyError, match=r'needs hotcoco: pip install "maskjet\[coco\]"'):
        coco.evaluate(truth, {"a": perfect})

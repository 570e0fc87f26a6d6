"""COCO files from anybody: what is wrong is our error before compiled code sees it; other numberings are told."""

import json

import numpy as np
import pytest

from maskjet import limits
from maskjet.errors import InputError, MaskjetError, SourceError
from maskjet.evaluation.datasets import DataSet
from maskjet.parity import coco
from maskjet.parity.coco_files import check_truth, compare_names, read_results_file
from tests.parity.dumps import STREETS, dump, truthful
from tests.parity.hostile import STRANGE, deep, flip, read_truth, replaced

POLYGON = [[20.0, 20.0, 60.0, 20.0, 60.0, 50.0]]


@pytest.fixture(scope="module")
def truth():
    """Of four streets, one thing an outline and one an uncompressed RLE."""
    found = json.loads(json.dumps(STREETS.truth()))
    first, second, *_ = found["annotations"]
    first["segmentation"] = POLYGON
    second["segmentation"] = {"size": [96, 160], "counts": [100, 50, 96 * 160 - 150]}
    return found


@pytest.fixture(scope="module")
def results(truth):
    unread = ("area", "iscrowd")
    found = json.loads(json.dumps(truthful("one").to_annotations(truth)))
    return [{name: value for name, value in entry.items() if name not in unread} for entry in found]


def use(folder, truth, results):
    """All that is done with a data set and results in files."""
    (folder / "annotations.json").write_bytes(truth)
    (folder / "r.json").write_bytes(results)
    read = read_results_file(folder / "r.json")
    data_set = DataSet(folder)
    read_truth(folder / "annotations.json")
    len(data_set._listed)
    dump().to_annotations(data_set.truth())
    compare_names(data_set.truth(), "a", read.categories)
    report = coco.evaluate(data_set.truth(), {"a": read.entries, "b": []})
    str(report).encode()
    json.dumps(report.as_dict())


def fuzz(folder, mutate, count, seed):
    """How many of the mutated pairs of files were taken."""
    random = np.random.default_rng(seed)
    taken = 0
    for _ in range(count):
        try:
            use(folder, *mutate(random))
            taken += 1
        except MaskjetError as error:
            str(error).encode(errors="backslashreplace")
    return taken


def as_bytes(value):
    return json.dumps(value).encode()


def test_edited_files(tmp_path, truth, results):
    use(tmp_path, as_bytes(truth), as_bytes(results))
    written = as_bytes(truth), as_bytes({"annotations": results, "categories": truth["categories"]})

    def edit_truth(random):
        return as_bytes(replaced(random, truth, STRANGE)), written[1]

    def edit_results(random):
        return written[0], as_bytes(replaced(random, json.loads(written[1]), STRANGE))

    assert fuzz(tmp_path, edit_truth, 24, 0) < 16
    assert fuzz(tmp_path, edit_results, 24, 1) < 16


def test_flipped_and_cut_files(tmp_path, truth, results):
    written = as_bytes(truth), as_bytes(results)
    assert fuzz(tmp_path, lambda random: (flip(random, written[0], 3), written[1]), 24, 2) < 20
    assert fuzz(tmp_path, lambda random: (written[0], flip(random, written[1], 3)), 24, 3) < 20
    assert fuzz(tmp_path, lambda random: (written[0][: int(random.integers(len(written[0])))], b"[]"), 20, 4) == 0


@pytest.mark.parametrize("read", [read_results_file, read_truth])
def test_files_that_can_not_be_read_are_named(tmp_path, read):
    with pytest.raises(SourceError, match=r"r\.json' must be a readable file: No such file or directory"):
        read(tmp_path / "r.json")
    for content in (b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff\xfe", b"", b"[{"):
        (tmp_path / "r.json").write_bytes(content)
        with pytest.raises(SourceError, match=r"r\.json' must be JSON: "):
            read(tmp_path / "r.json")


def edited(truth, name, /, **fields):
    """With fields of the first entry of a list changed."""
    return {**truth, name: [{**truth[name][0], **fields}, *truth[name][1:]]}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("images", {"id": 1}, "'images' in truth must have different ids, got 1 more than once"),
        ("images", {"id": 10**30}, "must have a whole number as 'id', got 1000"),
        ("images", {"height": 0}, "must have a whole number of 1 or more as 'height', got 0"),
        ("categories", {"id": None}, "entry 0 of 'categories' in truth must have a whole number as 'id', got None"),
        ("annotations", {"image_id": 5}, r"'annotations' in truth must be of the truth's images, got image_id \[5\]"),
        ("annotations", {"category_id": 99}, r"must be of the truth's categories, got category_id \[99\]"),
        ("annotations", {"area": "big"}, "entry 0 of 'annotations' in truth must have a finite number as 'area'"),
        ("annotations", {"bbox": [0, 0, 10**400, 1]}, "must have four finite numbers as 'bbox'"),
        ("annotations", {"area": 1e300}, "must have a finite number as 'area', got 1e"),
        ("annotations", {"iscrowd": 7}, "must have 0 or 1 as 'iscrowd', got 7"),
        (
            "annotations",
            {"segmentation": [[]]},
            r"must have .*, or polygons of 3 or more points near the image, as .*, got \[\[\]\]",
        ),
        ("annotations", {"segmentation": [["m"]]}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": [[1, 2, 3, 4, 5]]}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": [[1, 2, 1e9, 4, 5, 6]]}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": [[0, 0, 160, 96] * 20_000]}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": deep(50)}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": {"size": [96, 160], "counts": "\ud800"}}, "must have an RLE of its image's"),
        ("annotations", {"segmentation": {"size": [96, 160], "counts": [2**31, -(2**31)]}}, "must have an RLE"),
    ],
)
def test_a_truth_that_would_mislead_compiled_code(truth, results, name, fields, message):
    with pytest.raises(InputError, match=message):
        coco.evaluate(edited(truth, name, **fields), {"a": results})


def test_images_larger_than_the_limit(truth, results, monkeypatch):
    monkeypatch.setattr(limits, "mask_pixels", 96 * 160 - 1)
    with pytest.raises(InputError, match="image 0 of the truth has 15,360 pixels, the limit is 15,359"):
        coco.evaluate(truth, {"a": results})


def test_a_dump_and_a_truth_that_do_not_meet(truth):
    with pytest.raises(InputError, match=r"truth must have 'street 5' with \[96, 160\] pixels, got \[96, 161\]"):
        dump().to_annotations(edited(truth, "images", width=161))
    with pytest.raises(InputError, match="truth must have different names in its images, got 'street 6' twice"):
        dump().to_annotations(edited(truth, "images", file_name="street 6"))
    with pytest.raises(InputError, match="truth must have a 'file_name' in each of its images, got None"):
        dump().to_annotations(edited(truth, "images", file_name=None))
    with pytest.raises(InputError, match="truth must have different names in its categories, got 'truck' twice"):
        dump().to_annotations(edited(truth, "categories", name="truck"))
    assert dump().classes_without(edited(truth, "categories", name="van")) == {"car": 8}


def test_other_names_are_told(truth, tmp_path):
    content = {"annotations": [], "categories": [{"id": 1, "name": "truck"}, {"id": 2, "name": "truck"}, {"id": "x"}]}
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert read_results_file(tmp_path / "r.json").categories == {1: "truck", 2: "truck"}
    assert compare_names(truth, "a", {1: "truck", 2: "truck"}) == [
        "results['a'] has other categories than the truth: 1 is 'truck', in the truth 'car'."
    ]
    assert compare_names(truth, "a", {}) == []
    check_truth(truth)

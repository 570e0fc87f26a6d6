"""COCO files from anybody: what is wrong is our error before compiled code sees it; other numberings are told."""

import json

import numpy as np
import pytest

from maskjet import limits
from maskjet.errors import InputError, MaskjetError, SourceError
from maskjet.evaluation.datasets import DataSet
from maskjet.parity import coco
from maskjet.parity.coco_files import check_truth, read_json
from tests.parity.hostile import STRANGE, deep, flip, replaced
from tests.parity.records import STREETS, truthful

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
def found(tmp_path_factory):
    return truthful(tmp_path_factory.mktemp("found") / "one.jsonl")


def use(folder, truth, found):
    """All that is done with a data set in a file."""
    (folder / "annotations.json").write_bytes(truth)
    data_set = DataSet(folder)
    len(data_set._listed)
    read = data_set.truth()
    report = coco.evaluate(read, {"a": found.to_annotations(read), "b": []})
    str(report).encode()
    json.dumps(report.as_dict())


def fuzz(folder, found, mutate, count, seed):
    """How many of the mutated files were taken."""
    random = np.random.default_rng(seed)
    taken = 0
    for _ in range(count):
        try:
            use(folder, mutate(random), found)
            taken += 1
        except MaskjetError as error:
            str(error).encode(errors="backslashreplace")
    return taken


def as_bytes(value):
    return json.dumps(value).encode()


def test_mutants(tmp_path, truth, found):
    written = as_bytes(truth)
    use(tmp_path, written, found)
    assert fuzz(tmp_path, found, lambda random: as_bytes(replaced(random, truth, STRANGE)), 40, 0) < 28
    assert fuzz(tmp_path, found, lambda random: flip(random, written, 3), 24, 2) < 20
    assert fuzz(tmp_path, found, lambda random: written[: int(random.integers(len(written)))], 20, 4) == 0


def test_files_that_can_not_be_read_are_named(tmp_path):
    with pytest.raises(SourceError, match=r"r\.json' must be a readable file: No such file or directory"):
        read_json(tmp_path / "r.json")
    for content in (b"[" * 200_000, b'{"a":' * 100_000, b"9" * 10_000, b"\xff\xfe", b"", b"[{", b"[Infinity]"):
        (tmp_path / "r.json").write_bytes(content)
        with pytest.raises(SourceError, match=r"r\.json' must be JSON: "):
            read_json(tmp_path / "r.json")


def score(truth, results):
    check_truth(truth)
    coco.evaluate(truth, {"a": results})


def edited(truth, name, /, **fields):
    """With fields of the first entry of a list changed."""
    return {**truth, name: [{**truth[name][0], **fields}, *truth[name][1:]]}


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("images", {"id": 1}, "'images' in truth must have different ids, got 1 more than once"),
        ("images", {"id": 10**30}, r"truth must be a COCO data set: images\[0\]: field 'id'"),
        ("images", {"height": "9"}, r"truth must be a COCO data set: images\[0\]: field 'height'"),
        ("categories", {"id": None}, r"truth must be a COCO data set: categories\[0\]: field 'id'"),
        ("annotations", {"image_id": 5}, r"'annotations' in truth must be of the truth's images, got image_id \[5\]"),
        ("annotations", {"category_id": 99}, r"must be of the truth's categories, got category_id \[99\]"),
        ("annotations", {"bbox": [0, 0, 10**400, 1]}, r"must be a COCO data set: annotations\[0\]: field 'bbox'"),
        ("annotations", {"iscrowd": "x"}, r"must be a COCO data set: annotations\[0\]: field 'iscrowd'"),
        (
            "annotations",
            {"segmentation": [[]]},
            r"must have .*, or polygons of 3 or more points near the image, not long, as .*, got \[\[\]\]",
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
def test_a_truth_that_would_mislead_compiled_code(truth, found, name, fields, message):
    with pytest.raises(InputError, match=message):
        score(edited(truth, name, **fields), found.to_annotations(truth))


def test_more_categories_than_memory_is_for(truth, found):
    many = [{"id": number, "name": str(number)} for number in range(20_000)]
    with pytest.raises(InputError, match=r"truth must have at most 4,096 categories, got 20,000\."):
        coco.evaluate({**truth, "categories": many}, {"a": found.to_annotations(truth)})


def test_images_larger_than_the_limit(truth, found, monkeypatch):
    results = found.to_annotations(truth)
    monkeypatch.setattr(limits, "mask_pixels", 96 * 160 - 1)
    with pytest.raises(InputError, match="image 0 of the truth has 15,360 pixels, the limit is 15,359"):
        coco.evaluate(truth, {"a": results})

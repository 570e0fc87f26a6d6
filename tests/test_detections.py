"""Detections: the arrays, their views, and the formats they turn into."""

import json
import sys

import numpy as np
import pytest
from pycocotools import mask as pycoco_mask

from maskjet import coco_rle
from maskjet.detections import Detections
from maskjet.errors import InputError, MissingDependencyError

NAMES = {0: "car", 2: "bus"}


def some_detections(count, *, size=(48, 64), with_masks=True):
    """Ellipses of growing size, classes car, bus, and one without a name, in turn."""
    height, width = size
    y, x = np.mgrid[0:height, 0:width]
    masks = np.zeros((count, height, width), bool)
    for index in range(count):
        cy, cx = height * (0.3 + 0.1 * index), width * (0.4 + 0.1 * index)
        masks[index] = ((y - cy) / (0.2 * height + 1)) ** 2 + ((x - cx) / (0.15 * width + 1)) ** 2 <= 1
    rle = coco_rle.encode(masks)
    return Detections(
        image_size=size,
        xyxy=np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4),
        confidence=np.linspace(0.9, 0.5, count, dtype=np.float32),
        class_id=np.array([(0, 2, 7)[index % 3] for index in range(count)], np.int32),
        rle=rle if with_masks else None,
        class_names=NAMES,
    )


def test_views():
    found = some_detections(3)
    assert len(found) == 3
    assert found.class_name == ["car", "bus", "7"]
    np.testing.assert_array_equal(found.masks(), [coco_rle.decode(rle) for rle in found.rle])
    np.testing.assert_array_equal(found.area, found.masks().sum((1, 2)))
    assert found.area.dtype == np.int64
    assert [len(outlines) for outlines in found.polygons()] == [1, 1, 1]


@pytest.mark.parametrize("index", [slice(1, None), [1, 2], np.array([False, True, True])])
def test_picking(index):
    found = some_detections(3)
    picked = found[index]
    assert picked.class_id.tolist() == [2, 7]
    assert picked.rle == found.rle[1:]
    assert picked.image_size == found.image_size


def test_picking_one_must_stay_a_list():
    with pytest.raises(InputError, match=r"index must pick a list of detections, got 1; use \[1:1\+1\] for one"):
        some_detections(3)[1]


@pytest.mark.parametrize("with_masks", [True, False])
def test_none_found_works_everywhere(with_masks):
    found = some_detections(0, with_masks=with_masks)
    assert len(found) == 0
    assert found.class_name == found.to_coco(1) == []
    assert found.area.shape == (0,)
    assert len(found[:]) == 0
    assert len(found.to_supervision()) == 0
    assert Detections.from_dict(found.as_dict()).rle == found.rle
    if with_masks:
        assert found.masks().shape == (0, 48, 64)
        assert found.polygons() == []


def test_without_masks():
    found = some_detections(2, with_masks=False)
    boxes = found.xyxy
    np.testing.assert_allclose(found.area, (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
    assert "segmentation" not in found.to_coco(5)[0]
    assert found[:1].rle is None
    for method in (found.masks, found.polygons):
        with pytest.raises(InputError, match=r"needs masks, and a model without a mask head made these detections"):
            method()


def test_json_round_trip():
    found = some_detections(3)
    again = Detections.from_dict(json.loads(json.dumps(found.as_dict())))
    np.testing.assert_array_equal(again.xyxy, found.xyxy)
    np.testing.assert_array_equal(again.confidence, found.confidence)
    np.testing.assert_array_equal(again.class_id, found.class_id)
    assert again.rle == found.rle
    assert again.image_size == found.image_size
    assert again.class_name == found.class_name


def test_to_coco():
    found = some_detections(2)
    first, second = json.loads(json.dumps(found.to_coco(12, category_ids={0: 3, 2: 6})))
    x1, y1, x2, y2 = found.xyxy[0].tolist()
    assert first["bbox"] == [x1, y1, x2 - x1, y2 - y1]
    assert (first["image_id"], first["category_id"], second["category_id"]) == (12, 3, 6)
    assert first["score"] == pytest.approx(0.9)
    np.testing.assert_array_equal(pycoco_mask.decode(second["segmentation"]), found.masks()[1])
    assert found.to_coco(12)[1]["category_id"] == 2
    with pytest.raises(InputError, match=r"category_ids must have every class that was found, got none for \[2\]"):
        found.to_coco(12, category_ids={0: 3})


def test_to_supervision():
    found = some_detections(3)
    theirs = found.to_supervision()
    np.testing.assert_array_equal(theirs.xyxy, found.xyxy)
    np.testing.assert_array_equal(theirs.mask, found.masks())
    np.testing.assert_array_equal(theirs.confidence, found.confidence)
    assert theirs.class_id.tolist() == [0, 2, 7]
    assert theirs.data["class_name"].tolist() == ["car", "bus", "7"]
    assert len(theirs[theirs.class_id == 2]) == 1


def test_a_missing_package_is_one_clear_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(MissingDependencyError, match=r'needs supervision: pip install "maskjet\[supervision\]"'):
        some_detections(1).to_supervision()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xyxy": np.zeros((2, 3), np.float32)}, r"xyxy must be float32 \[2, 4\], got float32 \[2, 3\]"),
        ({"confidence": np.zeros(2)}, r"confidence must be float32 \[2\], got float64 \[2\]"),
        ({"class_id": np.zeros(3, np.int32)}, r"class_id must be int32 \[2\], got int32 \[3\]"),
        ({"rle": []}, "rle must have one mask per box, 2, got 0"),
        ({"image_size": (64, 48)}, r"rle\[0\] must have the image's size \(64, 48\), got \[48, 64\]"),
        ({"confidence": [0.5, 0.4]}, r"confidence must be float32 \[2\], got list"),
        ({"xyxy": None}, "xyxy must be float32 .*, got NoneType"),
        ({"rle": 5}, "rle must be a list of COCO RLEs, each with size and counts"),
        ({"rle": [None, None]}, "rle must be a list of COCO RLEs"),
        ({"rle": [{"counts": b"0"}] * 2}, "rle must be a list of COCO RLEs"),
        ({"rle": [{"size": [48, 64]}] * 2}, "rle must be a list of COCO RLEs"),
        ({"rle": [{"size": 48, "counts": b"0"}] * 2}, "rle must be a list of COCO RLEs"),
        ({"rle": [{"size": [48, 64], "counts": None}] * 2}, "rle must have one mask per box, 2, got 0"),
        ({"image_size": None}, r"image_size must be \(height, width\) in pixels, got None"),
        ({"image_size": (48.5, 64)}, r"image_size must be \(height, width\) in pixels, got \(48\.5, 64\)"),
        ({"image_size": (-1, 64)}, r"image_size must be at least 0, got \(-1, 64\)"),
    ],
)
def test_wrong_arrays_are_named(change, message):
    with pytest.raises(InputError, match=message):
        Detections(**{**vars(some_detections(2)), **change})


def test_dense_masks_beyond_the_limit_are_refused():
    few_bytes = [{"size": [2**14, 2**14], "counts": coco_rle.counts_to_string([2**28])}] * 40
    found = Detections(
        image_size=(2**14, 2**14),
        xyxy=np.zeros((40, 4), np.float32),
        confidence=np.ones(40, np.float32),
        class_id=np.zeros(40, np.int32),
        rle=few_bytes,
    )
    with pytest.raises(InputError, match=r"masks\(\) needs 10,737,418,240 bytes, the limit is .*limits\.masks_bytes"):
        found.masks()


def test_foreign_dictionaries_are_refused():
    with pytest.raises(InputError, match=r"fields must be what Detections\.as_dict returns: 'has_masks'"):
        Detections.from_dict({"size": [4, 4], "detections": []})

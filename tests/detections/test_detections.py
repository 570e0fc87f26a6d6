"""Detections: the arrays, their views, and the formats they turn into."""

import copy
import gc
import json
import pickle
import re
import sys
import threading
import typing
from dataclasses import FrozenInstanceError, asdict, replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from pycocotools import mask as pycoco_mask

from maskjet.detections import Detections, assemble
from maskjet.detections.pictures import DrawOptions
from maskjet.drawing import DrawStyle, draw
from maskjet.errors import InputError, MissingDependencyError, OutputError, SourceError
from maskjet.masks import coco_rle
from maskjet.sources.images import ImageReference, read_image
from tests.threads import run_at_once

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


def tracked_detections(count):
    ids = np.arange(count) - 1
    return replace(some_detections(count), track_id=ids, track_class_id=ids * 2)


def test_views():
    found = some_detections(3)
    assert len(found) == 3
    assert found.class_name.tolist() == ["car", "bus", "7"]
    np.testing.assert_array_equal(found.masks(), [coco_rle.decode(rle) for rle in found.rle])
    np.testing.assert_array_equal(found.area, found.masks().sum((1, 2)))
    assert found.area.dtype == np.int64
    assert [len(outlines) for outlines in found.polygons()] == [1, 1, 1]


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(1, None), [1, 2]),
        ([-1, 0], [2, 0]),
        (np.array([False, True, True]), [1, 2]),
        ([True, False, True], [0, 2]),
        (-1, [2]),
        (np.int64(1), [1]),
        ([], []),
        (np.array([]), []),
    ],
)
def test_picking(index, rows):
    found = tracked_detections(3)
    picked = found[index]
    assert isinstance(picked, Detections)
    assert picked.track_id.tolist() == [row - 1 for row in rows]
    assert picked.track_class_id.tolist() == [2 * row - 2 for row in rows]
    assert picked.class_id.tolist() == [found.class_id[row] for row in rows]
    assert picked.confidence.tolist() == [found.confidence[row] for row in rows]
    assert picked.rle == [found.rle[row] for row in rows]
    assert picked.image_size == found.image_size
    np.testing.assert_array_equal(picked.area, found.area[rows] if rows else [])


@pytest.mark.parametrize(
    "use",
    [
        lambda found: found.keep_mask_pixels("box"),
        lambda found: replace(found, rle=None),
        lambda found: pickle.loads(pickle.dumps(found)),
        copy.deepcopy,
    ],
)
def test_tracks_stay(use):
    found = tracked_detections(3)
    assert some_detections(3).track_id is some_detections(3).track_class_id is masks_on_demand()[1].track_id is None
    np.testing.assert_array_equal(use(found).track_id, found.track_id)
    np.testing.assert_array_equal(use(found).track_class_id, found.track_class_id)


@pytest.mark.parametrize("index", [3, -4, [0, 3], np.array([-4])])
def test_positions_beyond_the_end(index):
    with pytest.raises(IndexError, match=r"index must be below the number of detections, 3, got (3|-4)\."):
        some_detections(3)[index]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (np.ones(2, bool), "index must be a mask with one value per detection, 3, got 2 values"),
        ("car", r"a mask or a list of positions, got 'car'; for a class, use found\[found\.class_name == \"car\"\]"),
        (True, "index must be a position, a slice, a mask or a list of positions, got True"),
        (np.zeros((2, 2), int), "a list of positions, got 'ndarray'"),
    ],
)
def test_what_is_no_index_is_named(index, message):
    with pytest.raises(InputError, match=message):
        some_detections(3)[index]


def test_repr_counts_classes():
    assert repr(some_detections(0)) == "Detections(0 on 64×48; masks)"
    assert repr(some_detections(0, with_masks=False)) == "Detections(0 on 64×48; no masks)"
    assert repr(some_detections(4)) == "Detections(4 on 64×48: 2 car, 1 bus, 1 7; masks)"
    many = Detections((4, 4), *_boxes(20), class_names={0: "two\nlines"})
    assert repr(many) == (
        "Detections(20 on 4×4: 1 two\\nlines, 1 1, 1 2, 1 3, 1 4, 1 5, 1 6, 1 7, 12 of 12 other classes; no masks)"
    )


def _boxes(count):
    """Of classes 0, 1, 2 and so on."""
    return np.zeros((count, 4), np.float32), np.ones(count, np.float32), np.arange(count, dtype=np.int32)


@pytest.mark.parametrize("with_masks", [True, False])
def test_none_found_works_everywhere(with_masks):
    found = some_detections(0, with_masks=with_masks)
    assert len(found) == len(found[:]) == len(found[found.class_name == "car"]) == len(found.to_supervision()) == 0
    assert found.class_name.tolist() == found.to_coco(1) == found.as_dict()["detections"] == []
    np.testing.assert_array_equal(found.draw(picture()), picture())
    assert found.area.shape == (0,)
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


def test_json_round_trip(tmp_path):
    found = some_detections(3)
    again = Detections.from_dict(json.loads(json.dumps(found.as_dict())))
    for name in ("xyxy", "confidence", "class_id", "class_name", "rle", "image_size"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name), name)
    assert json.loads(found.to_json()) == found.as_dict()
    found.save(tmp_path / "new" / "a.json")
    found.save(str(tmp_path / "b.json"))
    for path in (tmp_path / "new" / "a.json", tmp_path / "b.json"):
        assert json.loads(path.read_text()) == found.as_dict()
    with pytest.raises(OutputError, match="path must be writable"):
        found.save(tmp_path / "b.json" / "c.json")
    with pytest.raises(InputError, match=r"fields must be what Detections\.as_dict returns: 'has_masks'"):
        Detections.from_dict({"size": [4, 4], "detections": []})
    odd = Detections((4, 4), *_boxes(1), class_names={0: "car\0"})  # NumPy's text ends at trailing zeros
    assert Detections.from_dict(json.loads(odd.to_json())).class_names == {0: "car\0"}


def test_to_coco():
    found = some_detections(2)
    first, second = json.loads(json.dumps(found.to_coco(12, category_ids={0: 3, 2: 6})))
    assert "bbox" not in first
    assert (first["image_id"], first["category_id"], second["category_id"]) == (12, 3, 6)
    assert first["score"] == pytest.approx(0.9)
    np.testing.assert_array_equal(pycoco_mask.decode(second["segmentation"]), found.masks()[1])
    assert found.to_coco(12)[1]["category_id"] == 2
    x1, y1, x2, y2 = found.xyxy[0].tolist()
    boxes = found.to_coco(12, kind="bbox")
    assert boxes[0] == {"image_id": 12, "category_id": 0, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": first["score"]}
    assert replace(found, rle=None).to_coco(12) == boxes
    with pytest.raises(InputError, match=r"to_coco\(\) needs masks"):
        replace(found, rle=None).to_coco(12, kind="segm")
    with pytest.raises(InputError, match=r"kind must be one of .*, got 'mask'"):
        found.to_coco(12, kind="mask")
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
    assert theirs.tracker_id is None
    assert found.to_supervision(masks=False).mask is None
    with pytest.raises(InputError, match="masks must be 'dense', 'compact' or False, got True"):
        found.to_supervision(masks=True)


@pytest.mark.parametrize("size", [(48, 64), (300, 200)], ids=str)
def test_compact_masks_of_supervision_have_all_pixels(size):
    """Of masks that leave their detection's box, too, and of an empty one."""
    found = some_detections(4, size=size)
    found.rle[3] = coco_rle.encode(np.zeros(size, bool))[0]
    found = replace(found, xyxy=found.xyxy / 2)
    theirs, dense = found.to_supervision(masks="compact"), found.masks()
    np.testing.assert_array_equal(theirs.mask.to_dense(), dense)
    np.testing.assert_array_equal(theirs.mask.area, dense.sum((1, 2)))
    np.testing.assert_array_equal(theirs[[2, 0]].mask.to_dense(), dense[[2, 0]])
    assert Detections.from_supervision(theirs, size).as_dict() == found.as_dict()
    assert len(found[:0].to_supervision(masks="compact").mask) == 0


@pytest.mark.parametrize("found", [some_detections(3), tracked_detections(3), some_detections(0)], ids=len)
def test_supervision_is_read_back(found):
    theirs = found.to_supervision()
    again = Detections.from_supervision(theirs, found.image_size)
    expected = replace(found, track_class_id=None)  # which supervision does not have
    assert again.as_dict() == expected.as_dict()
    if found.track_id is not None:
        assert theirs.tracker_id.tolist() == found.track_id.tolist()


def test_boxes_alone_are_read_from_supervision():
    import supervision

    found = Detections.from_supervision(supervision.Detections(xyxy=np.array([[1.0, 2, 3, 4]])), (9, 9))
    assert found.as_dict()["detections"] == [
        {"class_id": 0, "class_name": "0", "confidence": 1.0, "xyxy": [1.0, 2.0, 3.0, 4.0]}
    ]
    with pytest.raises(InputError, match=r"rle\[0\] must have the image's size \(9, 9\)"):
        Detections.from_supervision(some_detections(1).to_supervision(), (9, 9))
    with pytest.raises(InputError, match=r"found must be supervision.Detections"):
        Detections.from_supervision({"xyxy": []}, (9, 9))
    theirs = supervision.Detections(xyxy=np.array([[1.0, 2, 3, 4]]))
    for name, value, message in (
        ("class_id", np.int64(2**40), "class_id must be a whole number of 32 bits, got 1099511627776."),
        ("tracker_id", np.uint64(2**64 - 1), "tracker_id must be a whole number of 64 bits, got 18446744073709551615."),
        ("tracker_id", 1.5, "tracker_id must be a whole number of 64 bits, got 1.5."),
        ("tracker_id", np.nan, "tracker_id must be a whole number of 64 bits, got nan."),
        ("confidence", "high", "confidence must be numbers, got <U4."),
    ):
        theirs_wrong = copy.copy(theirs)
        vars(theirs_wrong)[name] = np.array([value])
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            Detections.from_supervision(theirs_wrong, (9, 9))
    theirs.tracker_id = np.array([7.0])
    assert Detections.from_supervision(theirs, (9, 9)).track_id.tolist() == [7]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([], "fields must be what Detections.as_dict returns, with a list of dicts as 'detections'."),
        ({"detections": []}, "fields must be what Detections.as_dict returns: 'has_masks' is missing"),
        ({"detections": [], "has_masks": 0, "size": 5}, "size must be [height, width] in pixels, got 5."),
    ],
)
def test_fields_that_cannot_be_read_are_named(fields, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        Detections.from_dict(fields)


def test_tracks_are_in_every_conversion():
    found = tracked_detections(3)
    rows = [{"track_id": i - 1, "track_class_id": 2 * (i - 1)} for i in range(3)]
    assert [{name: each[name] for name in rows[0]} for each in found.as_dict()["detections"]] == rows
    for kind in ("segm", "bbox"):
        assert [each["track_id"] for each in found.to_coco(1, kind=kind)] == [-1, 0, 1]
    columns = found.to_columns()
    assert list(columns)[-2:] == ["track_id", "track_class_id"]
    assert columns["track_id"].tolist() == [-1, 0, 1]
    again = Detections.from_dict(json.loads(found.to_json()))
    assert again.as_dict() == found.as_dict()
    assert again.track_id.dtype == np.int64


@pytest.mark.parametrize("name", ["supervision", "pandas"])
def test_a_missing_package_is_one_clear_sentence(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    message = rf'^to_{name}\(\) needs {name}: pip install "maskjet\[{name}\]"\.$'
    with pytest.raises(MissingDependencyError, match=message):
        getattr(some_detections(1), f"to_{name}")()


@pytest.mark.parametrize("count", [0, 3])
def test_to_pandas(count, monkeypatch):
    """With a stand-in where pandas is not installed, which keeps the columns."""
    try:
        import pandas  # noqa: F401
    except ImportError:
        monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    found = some_detections(count)
    table = found.to_pandas()
    assert list(table) == ["class_id", "class_name", "confidence", "x1", "y1", "x2", "y2", "area"]
    assert list(table["class_name"]) == found.class_name.tolist()
    corners = np.column_stack([table[name] for name in ("x1", "y1", "x2", "y2")])
    np.testing.assert_array_equal(corners, found.xyxy)
    for name in ("class_id", "confidence", "area"):
        np.testing.assert_array_equal(table[name], getattr(found, name))
    for name in ("class_id", "confidence"):
        assert not np.shares_memory(np.asarray(table[name]), getattr(found, name))


def picture(value=100, size=(48, 64)):
    return np.full((*size, 3), value, np.uint8)


class TestPictures:
    def test_options_are_the_styles(self, tmp_path):
        found, image = some_detections(3), picture()
        options = {"labels": False, "boxes": False, "line_width": 3, "color_by": "instance"}
        expected = draw(image, found, DrawStyle(**options))
        assert (expected != draw(image, found)).any()
        np.testing.assert_array_equal(found.draw(image, **options), expected)
        np.testing.assert_array_equal(found.draw(image), draw(image, found))
        assert (image == 100).all()
        found.save(tmp_path / "a.png", image, **options)
        np.testing.assert_array_equal(read_image(tmp_path / "a.png"), expected)
        assert typing.get_type_hints(DrawOptions) == typing.get_type_hints(DrawStyle)
        with pytest.raises(InputError, match=r"options of draw\(\), got 'color'; did you mean 'color_by'\?$"):
            found.draw(image, color="class")
        with pytest.raises(InputError, match=r"color_by must be one of .*, got 'name'"):
            found.draw(image, color_by="name")

    def test_images_of_other_kinds(self, tmp_path):
        found = some_detections(2)
        with pytest.raises(InputError, match="image must be the one of these detections, 64×48, got 48×64"):
            found.draw(picture(size=(64, 48)))
        PILImage.fromarray(picture()).save(tmp_path / "a.png")
        for image in (tmp_path / "a.png", PILImage.fromarray(picture()), torch.full((3, 48, 64), 100 / 255)):
            np.testing.assert_array_equal(found.draw(image), found.draw(picture()))

    @pytest.mark.parametrize("suffix", [".png", ".JPEG", ".webp", ".tif"])
    def test_save(self, suffix, tmp_path):
        found, path = some_detections(2), tmp_path / "new" / f"a{suffix}"
        found.save(path, picture())
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        difference = abs(read_image(path).astype(int) - found.draw(picture()))
        if suffix in (".png", ".tif"):
            assert difference.max() == 0
        else:  # thin coloured lines, whose colours four pixels share
            assert difference.mean() < 8

    def test_the_image_itself_is_not_written_over(self, tmp_path):
        path = tmp_path / "a.png"
        PILImage.fromarray(picture()).save(path)
        (tmp_path / "link.png").symlink_to(path)
        found = some_detections(2)
        before = path.read_bytes()
        for image in (None, path, str(path)):
            found.remember(ImageReference(path))
            with pytest.raises(InputError, match=r"path must not be the image's own, .*link\.png' would be"):
                found.save(tmp_path / "link.png", image)
        assert path.read_bytes() == before
        found.save(tmp_path / "b.png")

    def test_what_a_format_can_not_hold(self, tmp_path):
        for name in ("a", "a.gif"):
            with pytest.raises(InputError, match=r"path must end in \.jpg, .* or \.json, got"):
                some_detections(2).save(tmp_path / name, picture())
        wide = Detections((1, 70_000), *_boxes(0))
        with pytest.raises(OutputError, match=r"path must be of a format that holds 70000×1 pixels, got \.jpg"):
            wide.save(tmp_path / "a.jpg", picture(size=(1, 70_000)))
        assert list(tmp_path.iterdir()) == []

    def test_notebooks_get_a_png(self):
        found = some_detections(2)
        pixels = cv2.imdecode(np.frombuffer(found._repr_png_(), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        np.testing.assert_array_equal(pixels, found.draw(picture(128)))


class TestOrigins:
    """Where the image comes from when none is given."""

    def test_what_is_held_is_drawn_into_and_what_is_not_is_asked_for(self):
        found, image = some_detections(2), picture()
        found.remember(ImageReference(image))
        expected = found.draw(image)
        for same in (found, found[:], found[[0, 1]]):
            np.testing.assert_array_equal(same.draw(), expected)
        del image
        gc.collect()
        with pytest.raises(InputError, match="image must be given"):
            found.draw()
        assert found._repr_png_() == some_detections(2)._repr_png_()

    def test_a_file_is_read_again(self, tmp_path, monkeypatch):
        PILImage.fromarray(picture()).save(tmp_path / "a.png")
        monkeypatch.chdir(tmp_path)
        found = some_detections(2)
        found.remember(ImageReference("a.png"))
        monkeypatch.chdir("/")
        np.testing.assert_array_equal(found.draw(), found.draw(picture()))
        (tmp_path / "a.png").unlink()
        with pytest.raises(SourceError, match=r"a\.png"):
            found.draw()
        assert len(found._repr_png_()) > 0

    def test_copies_and_other_processes_know_files_only(self, tmp_path):
        PILImage.fromarray(picture()).save(tmp_path / "a.png")
        found, image = some_detections(2), picture()
        for origin in (ImageReference(tmp_path / "a.png"), ImageReference(image), ImageReference(3)):
            found.remember(origin)
            for again in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
                assert again.rle == found.rle
                if origin.path is not None:
                    np.testing.assert_array_equal(again.draw(), found.draw())
                else:
                    with pytest.raises(InputError, match="image must be given"):
                        again.draw()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xyxy": np.zeros((2, 3), np.float32)}, r"xyxy must be float32 \[2, 4\], got float32 \[2, 3\]"),
        ({"confidence": np.zeros(2)}, r"confidence must be float32 \[2\], got float64 \[2\]"),
        ({"class_id": np.zeros(3, np.int32)}, r"class_id must be int32 \[2\], got int32 \[3\]"),
        ({"rle": []}, "rle must have one mask per box, 2, got 0"),
        ({"image_size": (64, 48)}, r"rle\[0\] must have the image's size \(64, 48\), got \[48, 64\]"),
        ({"confidence": [0.5, 0.4]}, r"confidence must be float32 \[2\], got list"),
        ({"rle": 5}, "rle must be a list of COCO RLEs, each with size and counts"),
        ({"rle": [{"size": [48, 64]}] * 2}, "rle must be a list of COCO RLEs"),
        ({"rle": [{"size": [48, 64], "counts": None}] * 2}, "rle must have one mask per box, 2, got 0"),
        ({"track_id": np.zeros(3, np.int64)}, r"track_id must be int64 \[2\], got int64 \[3\]"),
        ({"track_class_id": np.zeros(2, np.int32)}, r"track_class_id must be int64 \[2\], got int32 \[2\]"),
        ({"image_size": (48.5, 64)}, r"image_size must be \(height, width\) in pixels, got \(48\.5, 64\)"),
        ({"image_size": (-1, 64)}, r"image_size must be at least 0 and below 2\*\*31, got \(-1, 64\)"),
        ({"image_size": (48, 2**31)}, r"image_size must be at least 0 and below 2\*\*31, got \(48, 2147483648\)"),
        ({"class_names": ["car", "bus"]}, "class_names must be names by class id, got list"),
    ],
)
def test_wrong_arrays_are_named(change, message):
    with pytest.raises(InputError, match=message):
        Detections(**{**vars(some_detections(2)), **change})


def test_a_size_of_any_integers_and_ids_of_numpys_become_json():
    found = Detections(np.array([48, 64]), *_boxes(1), class_names={0: "car"})
    assert Detections.from_dict(json.loads(found.to_json())).image_size == found.image_size == (48, 64)
    (row,) = json.loads(json.dumps(found.to_coco(np.int64(7), {0: np.int64(3)})))
    assert (row["image_id"], row["category_id"]) == (7, 3)


def test_the_area_of_a_box_that_has_none_is_0():
    boxes = [
        [1, 1, 4, 5],
        [np.nan, 0, 9, 9],
        [0, 0, np.inf, 9],
        [-np.inf, 0, np.inf, 0],
        [9, 9, 1, 5],
        [0, 0, 1e30, 1e30],
    ]
    xyxy = np.array(boxes, np.float32)
    found = Detections((48, 64), xyxy, np.ones(len(xyxy), np.float32), np.zeros(len(xyxy), np.int32))
    assert found.area.tolist() == [12, 0, 0, 0, 0, 0]


def test_dense_masks_beyond_the_limit_are_refused():
    rle = {"size": [2**14, 2**14], "counts": coco_rle.counts_to_string([2**28])}  # a few bytes
    found = Detections((2**14, 2**14), *_boxes(40), rle=[rle] * 40)
    with pytest.raises(InputError, match=r"masks\(\) needs 10,737,418,240 bytes, the limit is .*limits\.masks_bytes"):
        found.masks()


def masks_on_demand(count=3, gate=None):
    """The same detections twice: with their masks, and with masks that are made when they are asked for."""
    plain, asked = some_detections(count), []

    def cut():
        asked.append(1)
        if gate is not None:
            gate.wait(10)
        return [dict(rle) for rle in plain.rle]

    names = ("image_size", "xyxy", "confidence", "class_id", "class_names")
    return plain, assemble(*(getattr(plain, name) for name in names), cut), asked


@pytest.mark.parametrize(
    "use",
    [
        lambda found: found.rle,
        lambda found: found.as_dict(),
        lambda found: found.to_coco(3),
        lambda found: found[1:].rle,
        lambda found: found.area.tolist(),
        lambda found: replace(found, confidence=found.confidence / 2).rle,
        lambda found: pickle.loads(pickle.dumps(found)).as_dict(),
        lambda found: copy.deepcopy(found).as_dict(),
        lambda found: asdict(found)["rle"],
        repr,
    ],
)
def test_masks_made_on_demand_are_the_same(use):
    plain, found, _ = masks_on_demand()
    assert use(found) == use(plain)


def test_masks_are_made_once_and_only_if_asked_for():
    plain, found, asked = masks_on_demand()
    assert len(found) == 3
    assert found.class_name.tolist() == plain.class_name.tolist()
    assert asked == []
    assert type(found.rle) is list  # as pycocotools wants it
    assert found.rle is found.rle
    assert asked == [1]
    with pytest.raises(FrozenInstanceError):
        found.rle = None


def test_threads_that_ask_at_once_get_the_same_list():
    gate, lists = threading.Barrier(4), []
    _, found, asked = masks_on_demand(gate=gate)  # all are within at once
    run_at_once(lambda _: lists.append(found.rle), range(4))
    assert len(asked) == 4
    assert all(one is found.rle for one in lists)


def test_assembled_without_masks():
    plain = some_detections(2, with_masks=False)
    found = assemble(plain.image_size, plain.xyxy, plain.confidence, plain.class_id, plain.class_names, None)
    assert found.as_dict() == plain.as_dict()
    assert pickle.loads(pickle.dumps(found)).rle is found.rle is None

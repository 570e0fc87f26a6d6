"""Crops, and annotations for other tools: LabelMe, Label Studio and FiftyOne."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from maskjet.detections import Detections
from maskjet.drawing import Redaction
from maskjet.errors import InputError, MissingDependencyError
from maskjet.masks import coco_rle
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.opening import check_outputs
from maskjet.sources.frames import Frame, ListSource
from tests.detections.test_detections import some_detections, tracked_detections
from tests.outputs.outputs import frames, names, read_json, write
from tests.sources.clips import picture, write_image

pytestmark = pytest.mark.usefixtures("in_folder")
NOISE = np.random.default_rng(1).integers(1, 256, (40, 60, 3), np.uint8)


def found_in(boxes, masks=None, names=("car",)):
    return Detections(
        NOISE.shape[:2],
        np.array(boxes, np.float32),
        np.linspace(0.9, 0.5, len(boxes), dtype=np.float32),
        np.arange(len(boxes), dtype=np.int32) % len(names),
        None if masks is None else coco_rle.encode(np.stack(masks)),
        dict(enumerate(names)),
    )


@pytest.mark.parametrize(
    ("box", "tight", "square"),
    [
        ((10.2, 5.9, 19.7, 10), (10, 5, 20, 10), (10, 2, 20, 12)),
        ((0, 0, 4, 20), (0, 0, 4, 20), (0, 0, 20, 20)),  # moved into the image
        ((50, 35, 60, 40), (50, 35, 60, 40), (50, 30, 60, 40)),
        ((7, 7, 7, 7), (7, 7, 8, 8), (7, 7, 8, 8)),  # at least one pixel
        ((60, 40, 60, 40), (59, 39, 60, 40), (59, 39, 60, 40)),
        ((-9, -9, 99, 1), (0, 0, 60, 1), (0, -10, 60, 50)),  # wider than the image is high
    ],
)
def test_crops_are_of_whole_pixels_in_the_image(box, tight, square):
    mask = np.zeros(NOISE.shape[:2], np.uint8)
    cv2.circle(mask, (15, 8), 4, 1, -1)
    found = found_in([box], [mask])
    padded = np.pad(NOISE, ((10, 10), (0, 0), (0, 0)))
    for shape, (left, top, right, bottom) in (("tight", tight), ("square", square)):
        (crop,) = found.crops(NOISE, shape=shape)
        np.testing.assert_array_equal(crop, padded[top + 10 : bottom + 10, left:right])
        (cut,) = found.crops(NOISE, shape=shape, background="transparent")
        np.testing.assert_array_equal(cut[..., :3], crop)
        np.testing.assert_array_equal(
            cut[..., 3], 255 * np.pad(mask, ((10, 10), (0, 0)))[top + 10 : bottom + 10, left:right]
        )


def test_wrong_crops_are_named():
    found = found_in([(1, 2, 3, 4)])
    for options, message in (
        ({"background": "transparent"}, r"crops\(\) needs masks"),
        ({"shape": "round"}, "shape must be one of"),
        ({"background": "white"}, "background must be one of"),
        ({"image": NOISE[1:]}, "image must be the one of these detections, 60×40, got 60×39"),
    ):
        with pytest.raises(InputError, match=message):
            found.crops(**{"image": NOISE, **options})
    found.xyxy[0, 0] = np.nan
    with pytest.raises(InputError, match="xyxy and confidence must be finite"):
        found.crops(NOISE)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_crops_lie_in_folders_by_class_with_names_for_every_file_system(device):
    classes = ("Car", "car", "../..", "a/b", "é" * 200)
    found = found_in([(1, 2, 9, 9)] * 6, names=classes)
    pixels = NOISE if device == "cpu" else torch.from_numpy(NOISE).to(device)
    options = LabelOptions(yolo_images="copy")
    write(["crops/", "l.yolo"], [Frame(3, 0.1, pixels, "clip.mp4", "clip.mp4#3")], found, label_options=options)
    folders = ["Car", "car_1", "2", "a_b", "é" * 50, "Car"]
    made = {str(path.relative_to("crops")) for path in Path("crops").rglob("*.jpg")}
    assert made == {f"{folder}/clip_000003_{i}.jpg" for i, folder in enumerate(folders)}
    shown = cv2.imread("crops/Car/clip_000003_0.jpg")[..., ::-1]
    assert (shown.shape, np.abs(shown.astype(int) - NOISE[2:9, 1:9]).mean() < 60) == ((7, 8, 3), True)
    whole = cv2.imread("l.yolo/images/clip_000003.jpg")[..., ::-1]
    assert np.abs(whole.astype(int) - NOISE).mean() < 60
    options = LabelOptions(crop="square", crop_background="transparent")
    write(["cut.crops"], frames(1), tracked_detections(2), label_options=options)
    (first, second) = sorted(Path("cut.crops").rglob("*.*"))
    assert (first.name, second.name) == ("clip_000000_1_track0.png", "clip_000000_0.png")
    assert cv2.imread(str(first), cv2.IMREAD_UNCHANGED).shape[2] == 4


def test_crops_overwrite_no_source_and_show_nothing_that_is_redacted():
    Path("in.crops/car").mkdir(parents=True)
    write_image("in.crops/car/1_0.jpg", picture())
    sources = [ListSource(["in.crops/car/1_0.jpg"], "s")]
    sinks = check_outputs(["in.crops"], sources).open()
    sinks.write(Frame(0, None, NOISE, "s", "1.jpg"), found_in([(1, 2, 9, 9)]))
    with pytest.raises(InputError, match="out must not be where the source is"):
        sinks.close()
    for out in ("a.crops", "crops", "a.labelme"):
        with pytest.raises(InputError, match="out must not show frames that are redacted or cut out"):
            check_outputs([out], sources, style=Redaction())


def test_labelme_gets_a_polygon_per_part_and_its_image():
    mask = np.zeros((48, 64), np.uint8)
    mask[5:15, 5:25] = mask[30:40, 30:50] = 1
    found = replace(tracked_detections(2), rle=coco_rle.encode(np.stack([mask, mask[::-1, ::-1]])))
    Path("in/day1").mkdir(parents=True)
    write_image("in/day1/1.png", np.zeros((48, 64, 3), np.uint8))
    source = ListSource([Path("in/day1/1.png")], "in", root=Path("in"))
    with check_outputs(["l.labelme"], [source]).open() as sinks:
        for frame in source:
            sinks.write(frame, found)
    document = read_json("l.labelme/day1/1.json")
    assert Path("l.labelme/day1", document["imagePath"]).resolve() == Path("in/day1/1.png").resolve()
    assert (document["imageHeight"], document["imageWidth"], document["imageData"]) == (48, 64, None)
    shapes = document["shapes"]
    assert [(each["label"], each["group_id"], each["shape_type"]) for each in shapes] == [
        *[("car", 0, "polygon")] * 2,
        *[("bus", 1, "polygon")] * 2,
    ]
    assert sorted(map(sorted, (each["points"] for each in shapes[:2]))) == [
        [[5, 5], [5, 15], [25, 5], [25, 15]],
        [[30, 30], [30, 40], [50, 30], [50, 40]],
    ]
    assert [each["description"] for each in shapes[1:3]] == ["0.900", "0.500, track 0"]
    write(["v.labelme"], frames(1), some_detections(1, with_masks=False))
    assert names("v.labelme") == ["clip_000000.jpg", "clip_000000.json"]
    document = read_json("v.labelme/clip_000000.json")
    assert (document["imagePath"], document["shapes"][0]["shape_type"]) == ("clip_000000.jpg", "rectangle")
    assert np.ravel(document["shapes"][0]["points"]) == pytest.approx(some_detections(1).xyxy[0])


def decode_brush(data):
    """Label Studio's RLE, as its own reader takes it apart; equal to label-studio-sdk 2.1's `decode_rle`."""
    bits = iter("".join(f"{byte:08b}" for byte in data))

    def take(count):
        return int("".join(next(bits) for _ in range(count)), 2)

    total, word, sizes, values = take(32), take(5) + 1, [take(4) + 1 for _ in range(4)], []
    while len(values) < total:
        is_run, length = take(1), take(sizes[take(2)]) + 1
        values += [take(word)] * length if is_run else [take(word) for _ in range(length)]
    return values


def test_label_studio_gets_exact_masks_or_rectangles():
    large, speck = np.zeros((2, 150, 200), bool)
    large[1:149] = True  # of more values than one run of the RLE holds
    cv2.circle(speck.view(np.uint8), (30, 20), 9, 1, -1)
    speck[0, 0] = speck[-1, -1] = True
    name = os.fsdecode(b"a b\xff.png")
    write_image("a b.png", np.zeros((150, 200, 3), np.uint8))
    Path("a b.png").rename(name)
    frame = Frame(0, None, np.zeros((150, 200, 3), np.uint8), "s", name)
    boxes = np.float32([[0, 0, 200, 150], [20, 15, 60, 30]])
    found = Detections((150, 200), boxes, np.float32([0.75, 0.25]), np.int32([0, 0]), None, {0: "car"})
    write(["l.labelstudio.json"], [frame] * 2, replace(found, rle=coco_rle.encode(np.stack([large, speck]))))
    first, _ = read_json("l.labelstudio.json")
    assert first["data"] == {"image": "/data/local-files/?d=a%20b%FF.png"}
    (prediction,) = first["predictions"]
    assert prediction["score"] == 0.5
    for region, mask in zip(prediction["result"], (large, speck), strict=True):
        assert (region["type"], region["value"]["brushlabels"]) == ("brushlabels", ["car"])
        values = np.reshape(decode_brush(region["value"]["rle"]), (*mask.shape, 4))
        np.testing.assert_array_equal(values, np.repeat(255 * mask[..., None], 4, axis=2))
    write(["r.labelstudio.json"], [frame], found)
    value = read_json("r.labelstudio.json")[0]["predictions"][0]["result"][1]["value"]
    assert value == {"x": 10, "y": 10, "width": 20, "height": 10, "rotation": 0, "rectanglelabels": ["car"]}
    with pytest.raises(InputError, match=r"source must be image files for 'v.labelstudio.json', got 'clip.mp4#0'"):
        write(["v.labelstudio.json"], frames(1), some_detections(1))


def test_fiftyone_gets_masks_in_their_own_boxes(monkeypatch):
    """By a stand-in, as the package needs a database; 243 of 243 masks were equal in fiftyone 1.22 itself."""
    made = SimpleNamespace(Detection=SimpleNamespace, Detections=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    found = tracked_detections(2)
    with pytest.raises(MissingDependencyError, match=r"to_fiftyone\(\) needs fiftyone: pip install fiftyone"):
        found.to_fiftyone()
    monkeypatch.setitem(sys.modules, "fiftyone", made)
    height, width = found.image_size
    for one, mask, rle in zip(found.to_fiftyone().detections, found.masks(), found.rle, strict=True):
        x, y, w, h = np.array(one.bounding_box) * (width, height, width, height)
        left, top, right, bottom = coco_rle.to_xyxy(rle)
        assert (int(x), int(y), round(w), round(h)) == (left, top, right - left, bottom - top)  # FiftyOne truncates
        np.testing.assert_array_equal(one.mask, mask[top:bottom, left:right])
    first, second = replace(found, rle=None).to_fiftyone().detections
    assert (first.label, second.label, first.index, second.index) == ("car", "bus", -1, 0)
    x1, y1, x2, y2 = found.xyxy[0].tolist()
    expected = [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
    assert first.bounding_box == pytest.approx(expected)
    assert not hasattr(first, "mask")

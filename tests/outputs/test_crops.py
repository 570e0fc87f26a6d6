"""Crops."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from maskjet.detections import Detections
from maskjet.drawing import Redaction
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.opening import check_outputs
from maskjet.sources.frames import Frame, ListSource
from tests.detections.test_detections import tracked_detections
from tests.outputs.outputs import frames, write
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
    for out in ("a.crops", "crops"):
        with pytest.raises(InputError, match="out must not show frames that are redacted or cut out"):
            check_outputs([out], sources, style=Redaction())

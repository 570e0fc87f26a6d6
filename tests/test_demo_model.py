"""The embedded model: it sees streets it was not trained on, and nothing where there is nothing."""

from importlib.resources import files

import cv2
import numpy as np
import pytest

import maskjet
from maskjet.traffic import Street, sample

SIZE_HW = (176, 312)
SEEDS = range(9_100_000, 9_100_006)  # training used 1,000,000 to 3,000,400


@pytest.fixture(scope="module")
def model():
    with maskjet.load("demo", device="cpu") as loaded:
        yield loaded


def overlaps(first, second):
    """IoU [n, m] of bool masks [n, H, W] and [m, H, W]."""
    flat = [masks.reshape(len(masks), -1).astype(np.float32) for masks in (first, second)]
    shared = flat[0] @ flat[1].T
    return shared / np.maximum(flat[0].sum(1)[:, None] + flat[1].sum(1) - shared, 1)


def test_it_is_small():
    weights = files("maskjet.networks.demo") / "weights.safetensors"
    assert len(weights.read_bytes()) <= 12_000_000


def test_it_sees_what_is_there_and_no_more(model):
    seen, confirmed = [], []
    for seed in SEEDS:
        scene = sample(seed, size_hw=SIZE_HW)
        found = model.predict(scene.image)
        iou = overlaps(scene.masks(), found.masks()) * (scene.class_id[:, None] == found.class_id)
        large = scene.masks().sum((1, 2)) >= 64
        seen += (iou.max(1, initial=0) > 0.5)[large].tolist()
        confirmed += (iou.max(0, initial=0) > 0.5).tolist()
    assert len(seen) > 50
    assert np.mean(seen) > 0.9
    assert np.mean(confirmed) > 0.9


@pytest.mark.slow  # where a processor has no bfloat16
def test_bf16_sees_the_same(model):
    with maskjet.load("demo", device="cpu", precision="bf16") as half:
        same = []
        for seed in SEEDS[:2]:
            image = sample(seed, size_hw=SIZE_HW).image
            expected, actual = model.predict(image), half.predict(image)
            iou = overlaps(expected.masks(), actual.masks()) * (expected.class_id[:, None] == actual.class_id)
            same += (iou.max(1, initial=0) > 0.8).tolist()
    assert np.mean(same) > 0.9


def nothing():
    """Images without any thing on them."""
    random = np.random.default_rng(8)
    for seed in range(2):
        yield "empty street", Street(9_200_000 + seed, SIZE_HW, density=0).frame(0).image
        yield "noise", random.integers(0, 256, (*SIZE_HW, 3), np.uint8)
        yield "patches", cv2.resize(random.integers(0, 256, (9, 16, 3), np.uint8), SIZE_HW[::-1])
        yield "one colour", np.full((*SIZE_HW, 3), random.integers(0, 256, 3), np.uint8)


def test_it_sees_nothing_where_nothing_is(model):
    ghosts = [what for what, image in nothing() if len(model.predict(image))]
    assert ghosts == []

"""Non-maximum suppression on detections, against torchvision's and a definition on dense masks."""

import numpy as np
import pytest
import torch
from torchvision.ops import batched_nms, nms

import maskjet
from maskjet import Detections
from maskjet.config import EngineConfig
from maskjet.detections import join
from maskjet.engine.duplicates import drop_duplicates
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from tests.test_postprocessing import assert_same


def detections(seed, count=40, size_hw=(50, 70), *, has_masks=True):
    """Ragged blobs that overlap, of three classes; many have the same confidence, some are empty."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((count, *size_hw), bool)
    for mask in masks[1:]:
        (y, x), (h, w) = rng.integers(0, 25, 2), rng.integers(1, 45, 2)
        mask[y : y + h, x : x + w] = rng.random(mask[y : y + h, x : x + w].shape) < 0.9
    masks[-1] = True
    boxes = np.array([coco_rle.to_xyxy(rle) for rle in coco_rle.encode(masks)], np.float32)
    return masks, Detections(
        image_size=size_hw,
        xyxy=boxes + rng.random((count, 4), np.float32) * has_masks,
        confidence=np.sort(rng.integers(1, 9, count).astype(np.float32) / 10)[::-1],
        class_id=rng.integers(0, 3, count).astype(np.int32),
        rle=coco_rle.encode(masks) if has_masks else None,
        class_names={},
    )


def kept_by_definition(masks, groups, threshold):
    """Positions that stay, by dense masks one after the other."""
    stay = []
    for j, mask in enumerate(masks):
        rivals = [masks[i] for i in stay if groups[i] == groups[j]]
        if not any((mask & other).sum() > threshold * (mask | other).sum() for other in rivals):
            stay.append(j)
    return stay


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5])
def test_by_masks_it_is_as_defined(threshold, across):
    masks, found = detections(int(threshold * 10))
    config = EngineConfig(nms_across_classes=across)
    stay = kept_by_definition(masks, found.class_id * (not across), threshold)
    assert 1 < len(stay) < len(found)
    assert_same(drop_duplicates(found, threshold, config), found[stay])


@pytest.mark.parametrize("has_masks", [True, False])
@pytest.mark.parametrize("across", [False, True])
def test_by_boxes_it_is_torchvisions(across, has_masks):
    _, found = detections(3, has_masks=has_masks)
    config = EngineConfig(nms_by="box" if has_masks else "mask", nms_across_classes=across)
    # torchvision sorts without a rule for ties: confidences in the order of ours
    boxes, order = torch.from_numpy(found.xyxy), torch.arange(len(found), 0, -1).float()
    expected = nms(boxes, order, 0.3) if across else batched_nms(boxes, order, torch.from_numpy(found.class_id), 0.3)
    assert 1 < len(expected) < len(found)
    assert_same(drop_duplicates(found, 0.3, config), found[expected.numpy()])


@pytest.mark.parametrize("count", [0, 1])
def test_without_rivals_all_stay(count):
    found = detections(0)[1][:count]
    assert_same(drop_duplicates(found, 0.0, EngineConfig()), found)


@pytest.fixture(scope="module")
def model():
    return maskjet.load("demo", device="cpu", nms=0.3, nms_by="box", threshold=0.02)


@pytest.fixture(scope="module")
def street():
    return maskjet.traffic.sample(seed=3).image


def test_models_and_calls(model, street):
    everything, few = model.predict(street, nms=1), model.predict(street)
    assert 1 < len(few) < len(everything)
    assert_same(few, drop_duplicates(everything, 0.3, model.config))
    assert_same(model.predict(street, nms=0.1), drop_duplicates(everything, 0.1, model.config))
    assert_same(model.predict(street, max_detections=3), few[:3])  # duplicates take no place
    ((_, streamed),) = model.stream([street], nms=0.1)
    assert_same(streamed, model.predict(street, nms=0.1))
    with maskjet.load("demo", device="cpu", threshold=0.02) as off:
        found = off.predict(street)
        assert "rle" not in vars(found)  # made when it is asked for
        assert_same(found, everything)


@pytest.mark.slow
def test_tiles_are_merged_first(model, street):
    for more in ({}, {"weak": True, "threshold": 0.3}):
        merged = model.predict(street, tile=200, nms=1, **more)
        found = model.predict(street, tile=200, **more)
        assert 1 < len(found) < len(merged)
        assert_same(found, drop_duplicates(merged, 0.3, model.config))


def test_weak_detections_drop_no_others(model, street):
    reported, both = (model.predict(street, threshold=0.3, weak=weak) for weak in (False, True))
    assert len(both) > len(reported) > 0
    assert_same(both[: len(reported)], reported)
    assert_same(join(reported, both[len(reported) :]), both)


@pytest.mark.parametrize("nms", [-0.1, 1.5, float("nan"), "0.5"])
def test_a_threshold_that_is_none(model, street, nms):
    with pytest.raises(InputError, match="nms must be"):
        model.predict(street, nms=nms)
    with pytest.raises(InputError, match="nms must be"):
        EngineConfig(nms=nms)

"""Rewritten steps of detectors: bit for bit what torchvision's own code returns."""

import pytest
import torch
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops import boxes as box_ops

from benchmarks.aten.capture import batched_nms
from benchmarks.aten.nms_topk import nms_topk
from benchmarks.aten.pooler import roi_align_levels


def candidates(count):
    generator = torch.Generator().manual_seed(count)
    corner = 100 * torch.rand(count, 2, generator=generator)
    boxes = torch.cat((corner, corner + 5 + 40 * torch.rand(count, 2, generator=generator)), dim=1)
    # A permutation has no two equal scores.
    scores = torch.randperm(count, generator=generator).float() / count
    return boxes, scores, torch.randint(3, (count,), generator=generator)


@pytest.mark.parametrize(
    ("count", "k", "iou"),
    [(0, 3, 0.5), (1, 1, 0.5), (400, 7, 0.0), (400, 1000, 0.3), (1500, 100, 0.7), (1500, 2000, 1.0)],
)
def test_nms_equals_torchvision(count, k, iou):
    boxes, scores, classes = candidates(count)
    expected = box_ops._batched_nms_vanilla(boxes, scores, classes, iou)[:k]
    assert torch.equal(nms_topk(boxes, scores, classes, iou, k), expected)
    assert torch.equal(batched_nms(boxes, scores, classes, iou)[:k], expected)
    if count <= 400:  # torchvision's last sort of more is not stable
        scores = (4 * scores).floor()  # equal ones keep their order
        expected = box_ops._batched_nms_coordinate_trick(boxes, scores, classes, iou)[:k]
        assert torch.equal(nms_topk(boxes, scores, classes, iou, k), expected)


@pytest.mark.parametrize(("threshold", "some_stay"), [(0.7, True), (0.3, False)])
def test_overlaps_at_the_threshold(threshold, some_stay):
    # Pairs of boxes whose overlap is the threshold but for rounding, each pair a class. torchvision compares a float
    # with a double: the float32 nearest to 0.7 is smaller and stays, that nearest to 0.3 is larger and goes.
    high = torch.arange(10, 1000).float()
    zero, ten = torch.zeros_like(high), torch.full_like(high, 10)
    pairs = [torch.stack((zero, zero, ten, bottom), dim=1) for bottom in (high, high * threshold)]
    scores = torch.cat((1 + high, 1 / high))
    classes = torch.arange(len(high)).repeat(2)
    expected = box_ops._batched_nms_vanilla(torch.cat(pairs), scores, classes, threshold)
    assert torch.equal(nms_topk(torch.cat(pairs), scores, classes, threshold, 10_000), expected)
    assert (len(expected) > len(high)) == some_stay


def test_a_box_pools_from_its_level():
    torch.manual_seed(1)
    pool = MultiScaleRoIAlign(list("0123"), 7, 2)
    features = [torch.rand(1, 3, 256 >> level, 256 >> level) for level in range(4)]
    sides = torch.cat((torch.tensor([0, 111.9, 112, 223.9, 224, 447.9, 448]), 600 * torch.rand(200)))
    boxes = torch.stack((sides, sides, 2 * sides, 2 * sides), dim=1)
    boxes[9] = torch.nan  # of no level
    expected = pool(dict(zip("0123", features, strict=True)), [boxes], [(1024, 1024)])
    levels = pool.map_levels([boxes])
    assert {*range(4)} <= {*levels.tolist()}
    rois = torch.cat((torch.zeros(len(boxes), 1), boxes), dim=1)
    actual = roi_align_levels(features, rois, levels, pool.scales, 7, 7, 2, False)
    assert torch.equal(actual, expected)
    assert not actual[9].any()

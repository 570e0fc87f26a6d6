"""Ops on what is not finite: every implementation gives what the reference gives, which is defined for it."""

import numpy as np
import pytest
import torch

from maskjet import ops
from maskjet.masks import coco_rle
from maskjet.ops.paste_masks.reference import LARGEST
from tests.ops.cases import CHECKS
from tests.ops.serving import on_cpu

STRANGE = [torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 0.0, -0.0]
SEEDS = range(2)


def spoil(tensor, generator, count=3):
    """Some values of a tensor replaced by strange ones, in place."""
    flat = tensor.view(-1)
    for place in torch.randint(flat.numel(), (count,), generator=generator).tolist():
        flat[place] = STRANGE[int(torch.randint(len(STRANGE), (), generator=generator))]
    return tensor


def assert_agree(op, inputs):
    """Every implementation gives what the reference gives; returns that."""
    expected = getattr(ops, op)(**inputs, implementation="reference")
    for implementation in on_cpu(op):
        actual = getattr(ops, op)(**inputs, implementation=implementation)
        assert CHECKS[op].tolerance_used(inputs, expected, actual) <= 1, implementation
    return expected


@pytest.mark.parametrize("seed", SEEDS)
def test_select(seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = {
        "logits": spoil(torch.randn(2, 4, 3, generator=generator), generator, 8),
        "boxes": spoil(torch.rand(2, 4, 4, generator=generator), generator, 8),
        "image_sizes": [(40, 50), (7, 9)],
        "max_detections": 12,
    }
    thresholds = spoil(torch.rand(3, generator=generator), generator, 2)
    for threshold in (0.0, -1.0, thresholds, thresholds.tolist(), torch.nan, -torch.inf, torch.inf):
        for options in ({}, {"num_select": 7}):
            found = assert_agree("select", {**inputs, **options, "threshold": threshold})
            for image, (height, width) in enumerate(inputs["image_sizes"]):
                count = int(found.count[image])
                xyxy = found.xyxy[image, :count]
                assert (xyxy >= 0).all()
                assert (xyxy <= torch.tensor([width, height] * 2)).all()
                assert found.confidence[image, :count].isfinite().all()


@pytest.mark.parametrize("implementation", on_cpu("select"))
def test_no_score_exceeds_nan(implementation):
    logits, boxes = torch.full((1, 2, 3), 5.0), torch.full((1, 2, 4), 0.5)
    given = {"image_sizes": [(8, 8)], "implementation": implementation}
    assert ops.select(logits, boxes, threshold=torch.nan, **given).count.tolist() == [0]
    found = ops.select(logits, boxes, threshold=[0.5, torch.nan, 0.5], **given)
    assert found.class_id[0, :4].tolist() == [0, 2, 0, 2]
    assert found.count.tolist() == [4]


@pytest.mark.parametrize("implementation", on_cpu("select"))
def test_a_coordinate_that_is_no_number_lies_at_0(implementation):
    boxes = torch.tensor([[[torch.nan, 0.5, 0.5, 0.5], [0.5, 0.5, torch.nan, 1.0], [torch.inf, 0.5, torch.inf, 0.5]]])
    found = ops.select(torch.full((1, 3, 1), 5.0), boxes, [(8, 8)], implementation=implementation)
    assert found.xyxy[0, :3].tolist() == [[0, 2, 0, 6], [0, 0, 0, 8], [0, 2, 8, 6]]


@pytest.mark.parametrize("seed", SEEDS)
def test_masks(seed):
    generator = torch.Generator().manual_seed(seed)
    dtype = (torch.float32, torch.float16, torch.bfloat16)[seed % 3]
    for side, size in (((4, 5), (9, 13)), ((3, 1), (3, 1)), ((5, 4), (70, 3))):
        masks = torch.randn(1, 2, *side, generator=generator)
        inputs = {"mask_logits": spoil(masks, generator, 1 + seed).to(dtype), "query": [torch.tensor([1, 0])]}
        assert_agree("encode_masks", {**inputs, "image_sizes": [size]})
    masks = spoil(torch.randn(1, 2, 4, 5, generator=generator), generator, 1 + seed)
    inputs["mask_logits"] = torch.nn.functional.pad(masks, (1, 1, 1, 1), value=-0.5)
    boxes = [torch.tensor([[-7, 5, 30, 35], [15, 20, 11, 9]], dtype=torch.int32)]
    assert_agree("encode_masks", {**inputs, "image_sizes": [(35, 45)], "boxes": boxes})


@pytest.mark.parametrize("implementation", on_cpu("encode_masks"))
@pytest.mark.parametrize(("strange", "finite"), [(torch.inf, LARGEST), (-torch.inf, -LARGEST), (torch.nan, -LARGEST)])
def test_a_logit_that_is_not_finite_counts_as_a_large_one(implementation, strange, finite):
    masks = torch.randn(1, 1, 5, 6, generator=torch.Generator().manual_seed(3))
    masks[0, 0, 2, 3] = strange
    expected = masks.nan_to_num(nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    assert (masks != expected).sum() == 1
    assert expected[0, 0, 2, 3] == finite
    for size in ((5, 6), (20, 31)) if implementation == "triton" else ((20, 31), (80, 131)):
        given = {"query": [torch.tensor([0])], "image_sizes": [size], "implementation": implementation}
        ((text,),), ((wanted,),) = ops.encode_masks(masks, **given), ops.encode_masks(expected, **given)
        assert text == wanted
        inside = coco_rle.decode({"size": size, "counts": text})[size[0] // 2, size[1] * 7 // 12]
        assert inside == (strange == torch.inf)


def assert_same_bins(inputs):
    """Returns the reference's, in which what is not finite stands where it does for all."""
    expected = ops.roi_align(**inputs, implementation="reference")
    for implementation in on_cpu("roi_align"):
        actual = ops.roi_align(**inputs, implementation=implementation)
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    return expected


@pytest.mark.parametrize("seed", SEEDS)
def test_roi_align_of_strange_boxes(seed):
    generator = torch.Generator().manual_seed(seed)
    corner = 30 * torch.rand(1, 5, 2, generator=generator)
    boxes = spoil(torch.cat((corner, corner + 20), dim=2), generator, 6)
    features = [torch.randn(1, 2, 8 >> level, 8 >> level, generator=generator) for level in range(2)]
    for finest in (0.25, 2.0**100):
        bins = assert_same_bins({"boxes": boxes, "features": features, "scales": [finest, finest / 2], "size": 2})
        assert bins.isfinite().all()


@pytest.mark.parametrize("seed", SEEDS)
def test_roi_align_of_strange_features(seed):
    generator = torch.Generator().manual_seed(seed)
    # Positions that need no rounding, so that every implementation looks at the same pixels.
    corner = torch.randint(-2, 6, (1, 4, 2), generator=generator).float()
    boxes = torch.cat((corner, corner + 2 * torch.randint(1, 4, (1, 4, 2), generator=generator)), dim=2)
    features = [spoil(torch.randn(1, 2, 8, 8, generator=generator), generator, 4)]
    assert_same_bins({"boxes": boxes, "features": features, "scales": [1.0], "size": 2})


@pytest.mark.parametrize("implementation", on_cpu("roi_align"))
def test_a_box_without_finite_sides_gives_zeros(implementation):
    strange = (torch.nan, torch.inf, -torch.inf, 3e38, -3e38)
    boxes = torch.tensor([[2.0, 2, 6, 6]]).repeat(20, 1)
    for number, value in enumerate(strange):
        boxes[4 * number : 4 * number + 4][range(4), range(4)] = value
    boxes = torch.cat((boxes, torch.tensor([[-3e38, 0, 3e38, 4], [3e38, 3e38, 3e38, 3e38]])))[None]
    bins = ops.roi_align(boxes, [torch.ones(1, 1, 8, 8)], scales=[2.0], size=2, implementation=implementation)
    assert not bins.any()


@pytest.mark.parametrize("seed", SEEDS)
def test_nms(seed):
    generator = torch.Generator().manual_seed(seed)
    corner = 20 * torch.rand(1, 12, 2, generator=generator)
    boxes = spoil(torch.cat((corner, corner + 15 * torch.rand(1, 12, 2, generator=generator)), dim=2), generator, 12)
    for threshold in (0.0, 0.4, 1.0):
        with np.errstate(all="ignore"):
            assert_agree("nms", {"boxes": boxes, "iou_threshold": threshold})

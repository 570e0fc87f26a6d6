"""paste_masks and encode_masks: against F.interpolate and pycocotools and on random inputs."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from pycocotools import mask as pycoco_mask
from torchvision.models.detection.roi_heads import expand_boxes, paste_masks_in_image

from maskjet import limits, ops
from maskjet.masks import coco_rle
from maskjet.ops import Selection
from tests.ops.cases import CHECKS
from tests.ops.cases.paste_masks import blobs
from tests.ops.serving import on_cpu


def interpolated(masks, size):
    return torch.nn.functional.interpolate(masks[None], size, mode="bilinear", align_corners=False)[0]


def test_paste_is_interpolate_and_a_sign():
    masks = blobs(2, 6, (40, 40), torch.Generator().manual_seed(0))
    masks[1, 3] = -1
    rows = [torch.tensor([5, 0]), torch.tensor([3, 3, 2])]
    sizes = [(100, 155), (49, 140)]
    pasted = ops.paste_masks(masks, rows, sizes)
    for image, (dense, is_inside) in enumerate(pasted):
        expected = interpolated(masks[image], sizes[image])[rows[image]] > 0
        assert dense.dtype == torch.uint8
        assert torch.equal(dense.bool(), expected)
        assert is_inside.tolist() == expected.flatten(1).any(1).tolist()
    assert pasted[1][1].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("implementation", "sizes"),
    [
        *((name, [(720, 1280), (176, 312), (64, 64), (1, 1)]) for name in on_cpu("encode_masks") if name != "triton"),
        ("triton", [(31, 64), (1, 1)]),
        pytest.param("triton", [(176, 312)], marks=pytest.mark.slow),
    ],
)
def test_encode_is_pycocotools_of_paste(implementation, sizes):
    if implementation not in on_cpu("encode_masks"):
        pytest.skip("kernels are compiled on a machine with a GPU, not interpreted")
    masks = blobs(1, 3, (78, 78), torch.Generator().manual_seed(1))
    rows = [torch.arange(3)]
    for size in sizes:
        dense = ops.paste_masks(masks, rows, [size])[0][0].numpy()
        expected = [pycoco_mask.encode(np.asfortranarray(plane))["counts"] for plane in dense]
        assert ops.encode_masks(masks, rows, [size], implementation=implementation) == [expected]


@st.composite
def masks_and_sizes(draw, widest):
    """Noise of some size, with a few values that are not finite, and a size to encode it at."""
    side = draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    size = draw(st.tuples(st.integers(1, 200), st.integers(1, widest)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale, shift = draw(st.sampled_from([0.01, 1, 5])), draw(st.sampled_from([-3, 0, 3]))
    masks = torch.randn(1, 3, *side, generator=generator) * scale + shift
    for place in draw(st.lists(st.integers(0, masks.numel() - 1), max_size=3)):
        masks.view(-1)[place] = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf, 0.0]))
    return masks, size


def assert_encodes_as_the_reference(masks, size, implementation):
    inputs = {"mask_logits": masks, "query": [torch.tensor([2, 0, 2])], "image_sizes": [size]}
    expected = ops.encode_masks(**inputs, implementation="reference")
    actual = ops.encode_masks(**inputs, implementation=implementation)
    assert CHECKS["encode_masks"].tolerance_used(inputs, expected, actual) <= 1


@settings(max_examples=40)
@given(drawn=masks_and_sizes(widest=200))
def test_encode_implementations_agree(drawn):
    assert_encodes_as_the_reference(*drawn, "cpu")


@pytest.mark.skipif("triton" not in on_cpu("encode_masks"), reason="kernels are compiled here, not interpreted")
@settings(max_examples=5)
@given(drawn=masks_and_sizes(widest=40))
def test_interpreted_encode_agrees(drawn):
    masks, size = drawn
    # Interpreted kernels round positions as no CPU kernel of PyTorch does: a share is 0 here and 6e-8 there, which
    # times infinity is NaN here and infinity there.
    assert_encodes_as_the_reference(masks.nan_to_num(nan=torch.nan, posinf=3, neginf=-3), size, "triton")


def test_no_full_size_mask_is_made(monkeypatch):
    """One mask of 65,536 × 65,536 pixels would take 4 GB, and its values 17."""
    masks = torch.full((1, 1, 8, 8), -1.0)
    masks[0, 0, 3:5, 3:5] = 1
    size, rows = (2**16, 2**16), [torch.tensor([0])]
    ((counts,),) = ops.encode_masks(masks, rows, [size], implementation="cpu")
    (small, _) = ops.paste_masks(masks, rows, [(2**9, 2**9)])[0]
    rle = {"size": size, "counts": counts}
    monkeypatch.setattr(limits, "mask_pixels", 2**32)
    assert coco_rle.area(rle) / 2**32 == pytest.approx(small.sum().item() / 2**18, rel=0.01)
    left, top, right, bottom = coco_rle.to_xyxy(rle)
    assert (left + right, top + bottom) == size


def test_logits_that_need_a_gradient_are_taken():
    masks = blobs(1, 2, (20, 20), torch.Generator().manual_seed(4))
    rows, sizes = [torch.tensor([1])], [(100, 90)]
    expected = ops.encode_masks(masks, rows, sizes)
    for implementation in on_cpu("encode_masks"):
        assert ops.encode_masks(masks.requires_grad_(), rows, sizes, implementation=implementation) == expected


def test_a_selection_is_taken_as_it_is():
    masks = blobs(2, 4, (20, 20), torch.Generator().manual_seed(2))
    selection = Selection(
        count=torch.tensor([2, 3, 0, 3])[::2],  # int64, as somebody else may have made it
        query=torch.tensor([[3, 1, 99], [99, 99, 99]]),
        class_id=torch.zeros(2, 3, dtype=torch.int32),
        confidence=torch.zeros(2, 3),
        xyxy=torch.zeros(2, 3, 4),
    )
    sizes = [(90, 40), (30, 100)]
    rows = [torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64)]
    for each in (selection, replace(selection, count=selection.count.int().repeat_interleave(2)[::2])):
        for implementation in on_cpu("encode_masks"):
            given = {"image_sizes": sizes, "implementation": implementation}
            strings = ops.encode_masks(masks, each, **given)
            assert strings == ops.encode_masks(masks, rows, **given)
            assert [len(counts) for counts in strings] == [2, 0]
        assert [len(dense) for dense, _ in ops.paste_masks(masks, each, sizes)] == [2, 0]


@pytest.mark.parametrize("implementation", on_cpu("encode_masks"))
def test_boxes_are_torchvisions_paste(implementation):
    generator = torch.Generator().manual_seed(7)
    size, count = (60, 90), 5 if implementation == "triton" else 24
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([110.0, 80.0]) - 15
    side = 0.5 + 70 * torch.rand(count, 2, generator=generator) ** 2
    xyxy = torch.cat((corner, corner + side), dim=1).clamp(min=0)
    xyxy = xyxy.minimum(torch.tensor([90.0, 60, 90, 60]))  # as a detector's are
    probabilities = blobs(1, count, (28, 28), generator)[0].sigmoid()
    pasted = paste_masks_in_image(probabilities[:, None], xyxy, size)[:, 0]
    boxes = expand_boxes(xyxy, 30 / 28).long()
    boxes[:, 2:] = (boxes[:, 2:] - boxes[:, :2] + 1).clamp(min=1)
    masks = torch.nn.functional.pad(probabilities - 0.5, (1, 1, 1, 1), value=-0.5)[None]
    rows = [torch.arange(count)]
    (strings,) = ops.encode_masks(masks, rows, [size], boxes=[boxes.int()], implementation=implementation)
    for text, expected in zip(strings, pasted.numpy(), strict=True):
        differs = coco_rle.decode({"size": size, "counts": text}) != (expected > 0.5)
        assert (abs(expected[differs] - 0.5) < 1e-5).all()
    assert 0 < (pasted > 0.5).flatten(1).any(dim=1).sum() <= count

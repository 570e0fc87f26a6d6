"""select: against rfdetr's PostProcess, on random inputs, and bad input."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from maskjet import ops
from maskjet.errors import InputError
from tests.ops.cases import CHECKS
from tests.ops.serving import on_cpu

IMPLEMENTATIONS = on_cpu("select")


def predictions(batch, queries, classes, seed, coarseness):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, queries, classes, generator=generator)
    boxes = torch.rand(batch, queries, 4, generator=generator) * 1.4 - 0.2
    return (logits * coarseness).round() / coarseness, boxes  # a coarse grid makes ties


def has_a_score_for_each_logit(logits):
    """Whether equal logits have equal scores: on a CPU torch may round the last few of a tensor otherwise."""
    pairs = torch.stack((logits.flatten(), logits.sigmoid().flatten())).nan_to_num(nan=torch.pi)  # no logit
    return pairs.unique(dim=1).shape[1] == len(pairs[0].unique())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("queries", "num_select", "threshold", "coarseness"), [(100, 100, 0.5, 1000), (50, 20, 0.05, 1), (30, 30, 0.0, 1)]
)
def test_equals_rfdetrs_postprocess(queries, num_select, threshold, coarseness, implementation):
    postprocess = pytest.importorskip("rfdetr.models.postprocess", reason="rfdetr, the oracle, is not installed")
    logits, boxes = predictions(2, queries, 91, queries, coarseness)
    sizes = [(720, 1280), (97, 61)]
    expected = postprocess.PostProcess(num_select=num_select)(
        {"pred_logits": logits, "pred_boxes": boxes}, torch.tensor(sizes)
    )
    given = {"threshold": threshold, "num_select": num_select, "max_detections": num_select}
    actual = ops.select(logits, boxes, sizes, **given, implementation=implementation)
    for image, theirs in enumerate(expected):
        kept = theirs["scores"] > threshold
        count = int(actual.count[image])
        assert count == int(kept.sum())
        assert count > 0
        assert actual.class_id[image, :count].tolist() == theirs["labels"][kept].tolist()
        exponential_ulp = 2**-23 if implementation == "triton" else 0  # NumPy's, in the interpreter
        torch.testing.assert_close(
            actual.confidence[image, :count], theirs["scores"][kept], atol=exponential_ulp, rtol=0
        )
        # Below an ULP of 1,280 pixels: only near zero may the order of the operations show.
        torch.testing.assert_close(actual.xyxy[image, :count], theirs["boxes"][kept], atol=1e-4, rtol=0)


@settings(max_examples=30)
@given(data=st.data())
def test_implementations_agree(data):
    batch, queries, classes = (data.draw(st.integers(1, high)) for high in (3, 30, 12))
    seed, coarseness = data.draw(st.integers(0, 2**31)), data.draw(st.sampled_from([1, 50]))
    logits, boxes = predictions(batch, queries, classes, seed, coarseness)
    for place in data.draw(st.lists(st.integers(0, logits.numel() - 1), max_size=3)):
        logits.view(-1)[place] = data.draw(st.sampled_from([torch.nan, torch.inf, -torch.inf]))
    inputs = {
        "logits": logits,
        "boxes": boxes,
        "image_sizes": [(data.draw(st.integers(1, 2000)), data.draw(st.integers(1, 2000))) for _ in range(batch)],
        "threshold": data.draw(st.sampled_from([0.0, 0.3, 0.5, np.linspace(0, 1, classes).tolist()])),
        "class_map": data.draw(st.none() | st.lists(st.integers(-1, 5), min_size=classes, max_size=classes)),
        "max_detections": data.draw(st.integers(1, 400)),
        "num_select": data.draw(st.none() | st.integers(1, 400)),
    }
    assume(has_a_score_for_each_logit(logits))
    expected = ops.select(**inputs, implementation="reference")
    for implementation in IMPLEMENTATIONS:
        actual = ops.select(**inputs, implementation=implementation)
        assert CHECKS["select"].tolerance_used(inputs, expected, actual) <= 1


def test_a_query_may_appear_under_several_classes():
    logits = torch.full((1, 2, 3), -9.0)
    logits[0, 1] = torch.tensor([2.0, -9, 3.0])
    selection = ops.select(logits, torch.rand(1, 2, 4), [(10, 10)])
    assert selection.query[0, :2].tolist() == [1, 1]
    assert selection.class_id[0, :2].tolist() == [2, 0]
    assert [row.tolist() for row in selection.queries()] == [[1, 1]]


def test_boxes_are_clamped():
    boxes = torch.tensor([[[0.5, 0.5, 3.0, 0.5], [0.4, 0.35, 0.5, 0.3]]])  # the second: 1.5..6.5, 2..5 of 10
    selection = ops.select(torch.full((1, 2, 1), 5.0), boxes, [(10, 10)])
    assert selection.xyxy[0, :2].tolist() == [pytest.approx(box) for box in ([0, 2.5, 10, 7.5], [1.5, 2, 6.5, 5])]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(5, 3)}, r"logits must be a floating tensor \[B, Q, C\], got float32 \[5, 3\] on cpu"),
        (
            {"boxes": torch.zeros(2, 5, 3)},
            r"boxes must be \[2, 5, 4\] on cpu to go with the logits, got float32 \[2, 5, 3\]",
        ),
        ({"boxes": torch.zeros(2, 5, 4).cfloat()}, r"boxes must be \[2, 5, 4\] on cpu .*, got complex64"),
        ({"image_sizes": [(4, 4)]}, r"image_sizes must have one \(height, width\) per image, 2, got 1"),
        ({"image_sizes": None}, r"image_sizes must have one \(height, width\) per image"),
        (
            {"image_sizes": [(4, 4), (0, 5)]},
            r"image_sizes\[1\] must be \(height, width\) of at least 1 pixel, got \(0, 5\)",
        ),
        ({"image_sizes": [(True, 5), (5, 5)]}, r"image_sizes\[0\] must be \(height, width\) of at least 1 pixel"),
        ({"image_sizes": [(2**31, 1), (5, 5)]}, r"image_sizes\[0\] must be .* with sides of at most 2,147,483,647 and"),
        ({"image_sizes": [(2**17, 2**17)] * 2}, r"\[0\] must be .* 17,179,869,183 pixels, got \(131072, 131072\)"),
        ({"threshold": [0.5, 0.5]}, r"threshold must have one value per class, 3, got \[2\]"),
        ({"threshold": ["a", "b", "c"]}, "threshold must be numbers"),
        ({"class_map": [0, 1.5, 2]}, "class_map must be whole numbers, one per class"),
        ({"class_map": [0, 1, 2**31]}, "class_map must be numbers"),
        ({"class_map": torch.tensor([0.0, 1, 2])}, "class_map must be int, got float32"),
        ({"class_map": torch.tensor([0, 1, 2**32])}, "class_map must hold class ids of 32 bits"),
        ({"max_detections": True}, "max_detections must be a whole number of at least 1, got True"),
        ({"max_detections": 0}, "max_detections must be a whole number of at least 1, got 0"),
        ({"max_detections": 2**40}, "max_detections must be at most 134,217,728 here, got 1,099,511,627,776"),
        ({"num_select": "7"}, "num_select must be a whole number of at least 1, got '7'"),
    ],
)
def test_bad_input_is_named(change, message):
    inputs = {"logits": torch.zeros(2, 5, 3), "boxes": torch.zeros(2, 5, 4), "image_sizes": [(4, 4), (5, 5)]}
    with pytest.raises(InputError, match=message):
        ops.select(**{**inputs, **change})

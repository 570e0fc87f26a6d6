"""select: against rfdetr's PostProcess and on random inputs."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings

from maskjet import ops
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

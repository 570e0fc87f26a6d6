"""The detectors with fixed shapes against torchvision's own, bit for bit where the same modules see the same boxes."""

import numpy as np
import pytest
import torch

from maskjet.errors import UnsupportedError
from maskjet.networks.torchvision.detector import StaticDetector, _best_by_level
from tests.networks.torchvision.detectors import detector, images
from tests.rounding import pair_rows


def run_torchvision(model, pictures):
    """Proposals and detections in the pixels of the network's input; and that input, with its sizes."""
    with torch.inference_mode():
        batch, _ = model.transform([picture.clone() for picture in pictures])
        features = model.backbone(batch.tensors)
        proposals, _ = model.rpn(batch, features)
        found, _ = model.roi_heads(features, proposals, batch.image_sizes)
    return proposals, found, batch.tensors, torch.tensor(batch.image_sizes, dtype=torch.float32)


def run_static(model, inputs, sizes, **options):
    with torch.inference_mode():
        return StaticDetector(model)(inputs, sizes, **options)


def assert_same(output, expected, *, box_tolerance=0.0, tolerance=0.0, mask_tolerance=1e-4):
    """Returns how many detections were compared."""
    for image, found in enumerate(expected):
        count = len(found["boxes"])
        assert int(output.counts[image]) == count
        nothing = torch.zeros(count)
        masks = nothing if output.mask_logits is None else output.mask_logits[image, :count].sigmoid()
        their_masks = found["masks"][:, 0] if "masks" in found else nothing
        mine = output.xyxy[image, :count], output.confidence[image, :count], output.class_id[image, :count], masks
        rows = pair_rows(mine[0], mine[2], found["boxes"], found["labels"])  # torchvision leaves ties in any order
        wanted = [values[rows] for values in (found["boxes"], found["scores"], found["labels"], their_masks)]
        assert (mine[1].diff() <= 0).all()
        for ours, theirs, limit in zip(mine, wanted, (box_tolerance, tolerance, 0, mask_tolerance), strict=True):
            torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=0, atol=limit)
        assert not output.xyxy[image, count:].any()
        assert not output.confidence[image, count:].any()
    return sum(len(found["boxes"]) for found in expected)


@pytest.mark.parametrize(
    ("seed", "sizes"),
    [(0, [(100, 140)]), (1, [(100, 140), (90, 160)]), (2, [(64, 64), (160, 60), (33, 47)])],
)
def test_detections_are_torchvisions(seed, sizes):
    model = detector(seed=seed, box_score_thresh=0.3)
    proposals, expected, inputs, shapes = run_torchvision(model, images(*sizes, seed=seed))
    static = StaticDetector(model)
    with torch.inference_mode():
        output = static(inputs, shapes)
        chosen, is_valid = static._propose(list(model.backbone(inputs).values()), inputs.shape[2:], shapes)
    for image, boxes in enumerate(proposals):
        mine = chosen[image][is_valid[image]]
        ours, theirs = np.lexsort(mine.T.numpy()), np.lexsort(boxes.T.numpy())
        assert torch.equal(mine[ours], boxes[theirs])
        assert abs(ours - theirs).max() < 5  # places: torchvision leaves ties in any order, and few scores are equal
    assert assert_same(output, expected) > 10
    assert output.is_exact.all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "has_masks"),
    [
        ({"box_score_thresh": 0.9999}, True),  # no detections
        ({"box_score_thresh": 0.9999}, False),
        ({"box_detections_per_img": 4, "box_score_thresh": 0.1}, False),  # more than fit
        ({"box_score_thresh": 0.0, "box_detections_per_img": 300}, True),  # everything is a candidate
        ({"rpn_post_nms_top_n_test": 7}, False),
        ({"rpn_pre_nms_top_n_test": 20}, True),
        ({"rpn_nms_thresh": 0.1, "box_nms_thresh": 0.05}, False),
        ({"rpn_score_thresh": 0.5}, True),
    ],
)
def test_options_are_torchvisions(options, has_masks):
    model = detector(seed=4, has_masks=has_masks, **options)
    _, expected, inputs, sizes = run_torchvision(model, images((100, 140), (80, 150), seed=4))
    output = run_static(model, inputs, sizes, candidates=20_000)
    assert_same(output, expected)
    assert output.is_exact.all()
    assert (output.mask_logits is not None) == has_masks


@pytest.mark.parametrize("emptied", ["all", "some levels"])
def test_no_proposals(emptied):
    model = detector(seed=1)
    if emptied == "all":
        model.rpn.min_size = 1000.0
    else:  # small boxes only, which the coarse levels lack
        model.rpn.head.bbox_pred.weight.zero_()
        model.rpn.min_size = 60.0
    proposals, expected, inputs, sizes = run_torchvision(model, images((100, 140), seed=1))
    assert (len(proposals[0]) == 0) == (emptied == "all")
    assert_same(run_static(model, inputs, sizes), expected)


def test_a_cpu_predicts_masks_of_detections_only():
    model = detector(seed=2, box_score_thresh=0.4)
    static, rows = StaticDetector(model), []
    static.heads.mask_head.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    _, expected, inputs, sizes = run_torchvision(model, images((100, 140), (60, 140), seed=2))
    rows.clear()
    with torch.inference_mode():
        output = static(inputs, sizes)
    counts = [len(found["boxes"]) for found in expected]
    assert 0 < max(counts) < 40
    assert rows == [2 * max(counts)]
    assert output.mask_logits.shape[:2] == (2, 40)
    assert not output.mask_logits[:, max(counts) :].any()
    model.roi_heads.score_thresh = 0.9999
    with torch.inference_mode():
        output = StaticDetector(model)(inputs, sizes)
    assert output.counts.tolist() == [0, 0]
    assert output.mask_logits.shape == (2, 40, 28, 28)


def test_one_empty_image_of_two():
    model, pictures = detector(seed=2), images((100, 140), (100, 140), seed=2)
    best = [float(found["scores"].max()) for found in run_torchvision(model, pictures)[1]]
    model.roi_heads.score_thresh = sum(best) / 2
    _, expected, inputs, sizes = run_torchvision(model, pictures)
    assert sorted(len(found["boxes"]) > 0 for found in expected) == [False, True]
    assert_same(run_static(model, inputs, sizes), expected)


def test_ties_stay_in_order():
    # Every class of every box is as likely. Of more than 1,000 pairs torchvision itself would choose any.
    model = detector(seed=3, rpn_post_nms_top_n_test=100)
    model.roi_heads.box_predictor.cls_score.weight.zero_()
    _, expected, inputs, sizes = run_torchvision(model, images((100, 140), seed=3))
    output = run_static(model, inputs, sizes, candidates=10_000)
    assert len(set(output.confidence[0, : output.counts[0]].tolist())) == 1
    assert assert_same(output, expected) > 10


def test_candidates_beyond_the_capacity_are_seen():
    model = detector(seed=4, box_score_thresh=0.0, box_detections_per_img=60)
    _, expected, inputs, sizes = run_torchvision(model, images((100, 140), seed=4))
    enough = run_static(model, inputs, sizes, candidates=400)
    assert enough.is_exact.all()  # sixty stay among the first 400, so the others could not have changed anything
    assert_same(enough, expected)
    few = run_static(model, inputs, sizes, candidates=20)
    assert not few.is_exact.any()
    assert (few.counts < 60).all()


def test_padding_never_leaks():
    model = detector(seed=5)
    inputs, sizes = run_torchvision(model, images((100, 140), (60, 160), seed=5))[2:]
    first = run_static(model, inputs, sizes)
    other = inputs.clone()
    other[1] = 7.0
    second = run_static(model, other, sizes)
    assert int(first.counts[0]) == int(second.counts[0])
    assert torch.equal(first.xyxy[0], second.xyxy[0])


@pytest.mark.slow
def test_there_is_no_graph_break_and_no_size_that_depends_on_values():
    model = detector(seed=6)
    _, expected, inputs, sizes = run_torchvision(model, images((100, 140), (80, 150), seed=6))
    static = StaticDetector(model)
    torch._dynamo.reset()
    with torch.inference_mode():
        output = torch.compile(static, fullgraph=True, backend="eager")(inputs, sizes)
    assert assert_same(output, expected) > 10
    exported = torch.export.export(static, (inputs, sizes), strict=False)
    shapes = [node.meta["val"].shape for node in exported.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert all(isinstance(side, int) for shape in shapes for side in shape)


def test_what_is_not_known_is_refused():
    model = detector()
    model.roi_heads.box_roi_pool.sampling_ratio = 0
    with pytest.raises(UnsupportedError, match=r"model must pool square bins .* level of \(0, 224, 4\)"):
        StaticDetector(model)
    for predictor in (torch.nn.Identity(), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Conv2d(16, 7, 3))):
        model = detector()
        model.roi_heads.mask_predictor = predictor
        with pytest.raises(UnsupportedError, match=r"mask_predictor of which the last is a convolution of one pixel"):
            StaticDetector(model)
    model = detector()
    model.roi_heads.keypoint_roi_pool = model.roi_heads.mask_roi_pool
    with pytest.raises(UnsupportedError, match="must not have a keypoint head"):
        StaticDetector(model)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1), (torch.float16, 7), (torch.float32, 50)])
def test_best_of_each_level(dtype, most):
    generator = torch.Generator().manual_seed(most)
    levels = [torch.randn(3, count, generator=generator).to(dtype) for count in (40, 9, 1)]
    levels[0][0, :30] = levels[0][0, 30]  # ties
    levels[0][1, 3], levels[1][1, 2], levels[1][1, 4] = torch.inf, -torch.inf, -0.0
    found = _best_by_level(torch.cat(levels, dim=1), [40, 9, 1], most)
    assert found.shape == (3, 3, min(most, 40))
    starts = (0, 40, 49)
    for level, values in enumerate(levels):
        count = min(most, values.shape[1])
        expected = values.sort(dim=1, descending=True, stable=True).indices[:, :count]
        assert torch.equal(found[:, level, :count] - starts[level], expected)
        assert (found[:, level, count:] == -1).all()


def test_a_nan_is_the_best_as_for_topk():
    values = torch.tensor([[1.0, torch.nan, torch.inf, -torch.nan, 5.0]])
    chosen = _best_by_level(values, [5], 3)[0, 0].tolist()
    assert sorted(chosen) == sorted(values.topk(3).indices[0].tolist())

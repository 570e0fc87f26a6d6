"""Captured and rewritten detectors: bit for bit what torchvision's own code returns."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import MultiScaleRoIAlign, poolers
from torchvision.ops import boxes as box_ops

from benchmarks.aten import FOLD_NMS, GATHER_LEVELS, PICK_LEVELS, capture
from benchmarks.aten.capture import batched_nms
from benchmarks.aten.nms_topk import nms_topk
from benchmarks.aten.pooler import roi_align_levels

COMBINATIONS = ((), (FOLD_NMS, GATHER_LEVELS), (FOLD_NMS, PICK_LEVELS))
SIZE = (64, 96)
MOST = 20
CHANNELS = 16


class Backbone(nn.Module):
    """Five levels, as a feature pyramid has them, of few operators."""

    out_channels = CHANNELS

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.others = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1) for _ in range(4))

    def forward(self, images):
        levels = [self.first(images)]
        for layer in self.others:
            levels.append(layer(levels[-1]))
        return dict(zip(("0", "1", "2", "3", "pool"), levels, strict=True))


def planted():
    """A small detector with weights that let more than `MOST` of its candidates survive."""
    torch.manual_seed(0)
    model = MaskRCNN(
        Backbone(),
        min_size=SIZE[0],
        max_size=SIZE[1],
        box_detections_per_img=MOST,
        # As in the second versions of torchvision's models.
        box_head=FastRCNNConvFCHead((CHANNELS, 7, 7), [16], [64], norm_layer=nn.BatchNorm2d),
        box_predictor=FastRCNNPredictor(64, 6),
        mask_head=MaskRCNNHeads(CHANNELS, (16,), 1),
        mask_predictor=MaskRCNNPredictor(16, 16, 6),
        rpn_pre_nms_top_n_test=150,
        rpn_post_nms_top_n_test=24,
    )
    for pool in (model.roi_heads.box_roi_pool, model.roi_heads.mask_roi_pool):
        pool.canonical_scale = 56  # boxes this small are on all levels
    with torch.no_grad():  # random weights are far from those of a trained model
        for layer, factor in (
            (model.rpn.head.cls_logits, 30),
            (model.rpn.head.bbox_pred, 10),
            (model.roi_heads.box_predictor.cls_score, 8),
            (model.roi_heads.box_predictor.bbox_pred, 5),
        ):
            layer.weight.mul_(factor)
    return model.eval()


@contextlib.contextmanager
def changed(parameter, change):
    """Other weights for a while, in the model and in the programs, which share them."""
    before = parameter.detach().clone()
    with torch.no_grad():
        change(parameter)
    yield
    with torch.no_grad():
        parameter.copy_(before)


def picture(seed, size=SIZE):
    return torch.rand(3, *size, generator=torch.Generator().manual_seed(seed))


def settled(model):
    """All that the model holds besides the modules within it, and what capture replaces elsewhere."""
    held = {
        f"{name} {key}": [each.tolist() for each in value] if key == "cell_anchors" else value
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key[0] != "_"
    }
    weights = {name: value.tolist() for name, value in model.state_dict().items()}
    return held, weights, box_ops.batched_nms, hasattr(poolers, "len")


@pytest.fixture(scope="module")
def mask_rcnn():
    """A model, and its program with each combination of rewrites."""
    model = planted()
    before = settled(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.export, "export", raise_no_graph)
        with pytest.raises(RuntimeError, match="no graph"):
            capture(model, [picture(0)])
    assert settled(model) == before
    program = capture(model, [picture(0)])
    assert settled(model) == before
    return model, [rewritten(program, *rewrites) for rewrites in COMBINATIONS]


def raise_no_graph(*_args, **_options):
    raise RuntimeError("no graph")


def rewritten(program, *rewrites):
    """A copy of the program with rewrites applied, twice each: to boxes and masks."""
    module = GraphModule(program.module, copy.deepcopy(program.module.graph))
    for rewrite in rewrites:
        report = rewrite.apply(module)
        assert (report.matches, report.skipped) == (2, ())
    return dataclasses.replace(program, module=module)


def assert_equal(model, programs, images):
    """Bit for bit, and in the same order; returns how many were detected per image."""
    with torch.no_grad():
        expected = model(list(images))
    for program in programs:
        actual = program.detect(images)
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            assert list(ours) == list(theirs)
            for name, value in theirs.items():
                assert ours[name].dtype == value.dtype
                assert torch.equal(ours[name], value), name
    return [len(found["boxes"]) for found in expected]


@pytest.mark.slow
class TestDetections:
    """Of a captured detector, and of its graph with either pooler rewritten."""

    def test_many_and_few(self, mask_rcnn):
        assert assert_equal(*mask_rcnn, [picture(0)]) == [MOST]
        with changed(mask_rcnn[0].roi_heads.box_predictor.cls_score.bias, lambda bias: bias[0].add_(4)):
            counts = [assert_equal(*mask_rcnn, [picture(seed)])[0] for seed in range(3)]
        assert any(0 < count < MOST for count in counts), counts
        with changed(mask_rcnn[0].roi_heads.box_predictor.cls_score.bias, lambda bias: bias[0].add_(1000)):
            assert assert_equal(*mask_rcnn, [picture(0)]) == [0]

    def test_no_proposal(self, mask_rcnn):
        with changed(mask_rcnn[0].rpn.head.bbox_pred.bias, lambda bias: bias.view(-1, 4)[:, 2].sub_(1000)):  # no width
            assert assert_equal(*mask_rcnn, [picture(0)]) == [0]

    def test_equal_scores(self, mask_rcnn):
        # torchvision sorts up to 1,000 boxes stably, so that the order is pinned.
        head, score = mask_rcnn[0].rpn.head.cls_logits, mask_rcnn[0].roi_heads.box_predictor.cls_score
        with changed(head.weight, torch.Tensor.zero_), changed(score.weight, torch.Tensor.zero_):
            assert assert_equal(*mask_rcnn, [picture(0)]) == [MOST]


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

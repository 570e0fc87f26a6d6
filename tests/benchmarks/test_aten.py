"""Captured and rewritten detectors: bit for bit what torchvision's own code returns, and never rewritten by mistake."""

import contextlib
import copy
import dataclasses

import pytest
import torch
from torch.fx import GraphModule
from torchvision.models import detection
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import boxes as box_ops
from torchvision.ops import poolers

from benchmarks.aten import FOLD_NMS, GATHER_LEVELS, PICK_LEVELS, capture
from maskjet.errors import InputError, UnsupportedError

POOLERS = [GATHER_LEVELS, PICK_LEVELS]
COMBINATIONS = [(), (FOLD_NMS, GATHER_LEVELS), (FOLD_NMS, PICK_LEVELS)]
SIZE = (64, 96)
OTHER_SIZE = (90, 70)
MOST = 20


def planted(kind):
    """A small detector with weights that let more than `MOST` of its candidates survive."""
    torch.manual_seed(0)
    if kind is FasterRCNN:  # as in the second versions of torchvision's models
        head = FastRCNNConvFCHead((256, 7, 7), [16], [64], norm_layer=torch.nn.BatchNorm2d)
    else:
        head = TwoMLPHead(256 * 7**2, 64)
    options = {
        "min_size": SIZE[0],
        "max_size": SIZE[1],
        "box_detections_per_img": MOST,
        "box_head": head,
        "box_predictor": FastRCNNPredictor(64, 6),
        "rpn_pre_nms_top_n_test": 150,
        "rpn_post_nms_top_n_test": 24,
    }
    if kind is MaskRCNN:
        options |= {"mask_head": MaskRCNNHeads(256, (16,), 1), "mask_predictor": MaskRCNNPredictor(16, 16, 6)}
    backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
    model = kind(backbone, **options)
    for pool in (model.roi_heads.box_roi_pool, model.roi_heads.mask_roi_pool):
        if pool is not None:
            pool.canonical_scale = 56  # boxes this small are on all levels
    return plant(model)


@torch.no_grad()
def plant(model, objectness=30, proposals=10, scores=8, boxes=5):
    """Scale the weights of the last layers, whose random ones are far from those of a trained model."""
    model.rpn.head.cls_logits.weight.mul_(objectness)
    model.rpn.head.bbox_pred.weight.mul_(proposals)
    model.roi_heads.box_predictor.cls_score.weight.mul_(scores)
    model.roi_heads.box_predictor.bbox_pred.weight.mul_(boxes)
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


@pytest.fixture(scope="module", autouse=True)
def _one_thread(request):
    # Unless another number is asked for.
    # Hundreds of short operators: beside another process on the second core, each waits for the scheduler at its end,
    # 1.2 s an image in place of 0.06.
    before = torch.get_num_threads()
    torch.set_num_threads(request.config.getoption("--torch-threads") or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def mask_rcnn():
    model = planted(MaskRCNN)
    return model, capture(model, [picture(0)])


@pytest.fixture(scope="module")
def batch_of_two():
    model = planted(MaskRCNN)
    return model, capture(model, [picture(0), picture(1, OTHER_SIZE)])


def rewritten(program, *rewrites, **expected):
    """A copy of the program with rewrites applied."""
    module = GraphModule(program.module, copy.deepcopy(program.module.graph))
    for rewrite in rewrites:
        rewrite.apply(module, **expected)
    return dataclasses.replace(program, module=module)


def assert_equal(model, program, images):
    """Bit for bit, and in the same order; returns how many were detected per image."""
    with torch.no_grad():
        expected = model(list(images))
    actual = program.detect(images)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert list(ours) == list(theirs)
        for name, value in theirs.items():
            assert ours[name].dtype == value.dtype
            assert torch.equal(ours[name], value), name
    return [len(found["boxes"]) for found in expected]


def settled(model):
    """All that the model holds besides its weights."""
    return {
        name: {key: value for key, value in vars(module).items() if key[0] != "_"}
        for name, module in model.named_modules()
    }


@pytest.mark.slow
class TestCapture:
    def test_model_is_left_as_it_was(self):
        model, image = planted(MaskRCNN), picture(0)
        before = settled(model)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        own = (box_ops.batched_nms, dict(vars(model.rpn.box_coder)))
        capture(model, [image])
        after = settled(model)
        anchors = [state["rpn.anchor_generator"].pop("cell_anchors") for state in (before, after)]
        assert all(torch.equal(one, other) for one, other in zip(*anchors, strict=True))
        assert after == before
        assert model.roi_heads.box_roi_pool.scales is None
        assert (box_ops.batched_nms, dict(vars(model.rpn.box_coder))) == own
        assert not hasattr(poolers, "len")
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())

    def test_model_is_left_as_it_was_after_a_failure(self, monkeypatch):
        model, own = planted(FasterRCNN), box_ops.batched_nms

        def fail(*_args, **_options):
            raise RuntimeError("no graph")

        monkeypatch.setattr(torch.export, "export", fail)
        before = settled(model)
        with pytest.raises(RuntimeError, match="no graph"):
            capture(model, [picture(0)])
        assert box_ops.batched_nms is own
        assert not hasattr(poolers, "len")
        assert settled(model)["roi_heads.box_roi_pool"] == before["roi_heads.box_roi_pool"]
        assert set(vars(model.rpn.anchor_generator)) == set(vars(planted(FasterRCNN).rpn.anchor_generator))

    def test_notes_say_what_differs(self, batch_of_two):
        notes = batch_of_two[1].notes
        assert notes[0] == "batched_nms is one node, maskjet::batched_nms: 4 for 2 images"
        assert any("masks are pasted outside of the graph" in note for note in notes)

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ([picture(0, OTHER_SIZE)], r"captured sizes 3×64×96, got 3×90×70\. Capture the model again"),
            ([picture(0), picture(1)], "got 3×64×96, 3×64×96"),
            ([], "got none"),
            ([picture(0).double()], "images must be torch.float32 on cpu, got torch.float64 on cpu"),
        ],
    )
    def test_other_images_are_refused(self, mask_rcnn, images, message):
        with pytest.raises(InputError, match=message):
            mask_rcnn[1].detect(images)

    @pytest.mark.parametrize(
        ("images", "message"),
        [
            ([], "at least one tensor"),
            ([picture(0)[None]], r"float tensors \[C, H, W\], got torch.float32 \[1, 3, 64, 96\]"),
            ([picture(0).byte()], r"got torch.uint8 \[3, 64, 96\]"),
        ],
    )
    def test_images_are_checked(self, mask_rcnn, images, message):
        with pytest.raises(InputError, match=message):
            capture(mask_rcnn[0], images)

    def test_other_models_are_refused(self):
        options = {"weights": None, "weights_backbone": None}
        with pytest.raises(InputError, match="must be a Faster or Mask R-CNN of torchvision, got FCOS"):
            capture(detection.fcos_resnet50_fpn(**options).eval(), [picture(0)])
        keypoints = detection.keypointrcnn_resnet50_fpn(**options)
        with pytest.raises(InputError, match=r"got one in training mode\. Call model\.eval\(\)"):
            capture(keypoints, [picture(0)])
        with pytest.raises(UnsupportedError, match="without keypoints"):
            capture(keypoints.eval(), [picture(0)])


@pytest.mark.parametrize(
    "rewrites", COMBINATIONS, ids=lambda rewrites: " ".join(r.name for r in rewrites) or "captured"
)
class TestDetections:
    def test_images(self, mask_rcnn, rewrites):
        model, program = mask_rcnn
        ours = rewritten(program, *rewrites, expected=2)
        for seed in range(4):
            assert assert_equal(model, ours, [picture(seed)]) == [MOST]

    def test_few_detections(self, mask_rcnn, rewrites):
        model, program = mask_rcnn
        with changed(model.roi_heads.box_predictor.cls_score.bias, lambda bias: bias[0].add_(8)):
            counts = [assert_equal(model, rewritten(program, *rewrites), [picture(seed)])[0] for seed in range(4)]
        assert any(0 < count < MOST for count in counts), counts

    def test_no_detection(self, mask_rcnn, rewrites):
        model, program = mask_rcnn
        with changed(model.roi_heads.box_predictor.cls_score.bias, lambda bias: bias[0].add_(1000)):
            assert assert_equal(model, rewritten(program, *rewrites), [picture(0)]) == [0]

    def test_no_proposal(self, mask_rcnn, rewrites):
        model, program = mask_rcnn
        with changed(model.rpn.head.bbox_pred.bias, lambda bias: bias.view(-1, 4)[:, 2].sub_(1000)):  # no width
            with torch.no_grad():
                batch, _ = model.transform([picture(0)])
                proposals, _ = model.rpn(batch, model.backbone(batch.tensors))
            assert len(proposals[0]) == 0
            assert assert_equal(model, rewritten(program, *rewrites), [picture(0)]) == [0]

    def test_equal_scores(self, mask_rcnn, rewrites):
        # torchvision sorts up to 1,000 boxes stably, so that the order is pinned.
        model, program = mask_rcnn
        head, score = model.rpn.head.cls_logits, model.roi_heads.box_predictor.cls_score
        with changed(head.weight, torch.Tensor.zero_), changed(score.weight, torch.Tensor.zero_):
            assert assert_equal(model, rewritten(program, *rewrites), [picture(0)]) == [MOST]

    def test_batch_of_two_sizes(self, batch_of_two, rewrites):
        model, program = batch_of_two
        ours = rewritten(program, *rewrites)
        for seed in range(3):
            assert assert_equal(model, ours, [picture(seed), picture(9 + seed, OTHER_SIZE)]) == [MOST, MOST]
        blank = torch.zeros(3, *SIZE)
        assert_equal(model, ours, [blank, picture(4, OTHER_SIZE)])


@pytest.mark.parametrize("rewrite", [FOLD_NMS, *POOLERS], ids=lambda rewrite: rewrite.name)
def test_each_alone(mask_rcnn, rewrite):
    model, program = mask_rcnn
    ours = rewritten(program, rewrite, expected=2)
    for seed in range(2):
        assert assert_equal(model, ours, [picture(seed)]) == [MOST]


def test_counts_of_matches(mask_rcnn, batch_of_two):
    for (_, program), images in ((mask_rcnn, 1), (batch_of_two, 2)):
        module = rewritten(program).module
        report = FOLD_NMS.apply(module, expected=2 * images)
        assert (report.rewrite, report.matches, report.skipped) == ("nms_topk", 2 * images, ())
        assert PICK_LEVELS.apply(module).matches == 2
        assert FOLD_NMS.apply(module).matches == GATHER_LEVELS.apply(module).matches == 0
        targets = [node.target for node in module.graph.nodes]
        for gone in (torch.ops.maskjet.batched_nms.default, torch.ops.torchvision.roi_align.default):
            assert gone not in targets
        assert torch.ops.aten.index_put_.default not in targets


def test_faster_rcnn():
    model = planted(FasterRCNN)
    program = capture(model, [picture(0)])
    FOLD_NMS.apply(program.module, expected=2)
    PICK_LEVELS.apply(program.module, expected=1)
    for seed in range(3):
        assert assert_equal(model, program, [picture(seed)])[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "poolers"),
    [
        (detection.fasterrcnn_resnet50_fpn, 1),
        (detection.fasterrcnn_resnet50_fpn_v2, 1),
        (detection.fasterrcnn_mobilenet_v3_large_320_fpn, 1),
        (detection.fasterrcnn_mobilenet_v3_large_fpn, 1),
        (detection.maskrcnn_resnet50_fpn_v2, 2),
    ],
)
def test_torchvision_models(build, poolers):
    torch.manual_seed(0)
    # Scores of random weights are equal by the dozen: up to 1,000 boxes torchvision's order among them is pinned.
    options = {"min_size": 128, "max_size": 192, "rpn_pre_nms_top_n_test": 200, "rpn_post_nms_top_n_test": 11}
    model = build(weights=None, weights_backbone=None, box_score_thresh=0.011, **options).eval()
    program = capture(model, [picture(0, (128, 160))])
    FOLD_NMS.apply(program.module, expected=2)
    PICK_LEVELS.apply(program.module, expected=poolers)
    for seed in range(3):
        assert assert_equal(model, program, [picture(seed, (128, 160))])[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("pooler", POOLERS, ids=lambda pooler: pooler.name)
def test_full_size(pooler):
    torch.manual_seed(0)
    model = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=480, max_size=640)
    plant(model, objectness=1, proposals=0.05, scores=0.2, boxes=0.1)  # 1,000 proposals, 4,700 candidates
    size = (480, 640)
    program = capture(model, [picture(0, size)])
    FOLD_NMS.apply(program.module, expected=2)
    pooler.apply(program.module, expected=2)
    for seed in range(2):
        assert assert_equal(model, program, [picture(seed, size)]) == [100]

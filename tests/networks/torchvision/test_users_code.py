"""A user's own code in a detector: refused by name where it would not run, run where it is called."""

import pytest
import torch
from torch import nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from benchmarks.aten.capture import capture
from maskjet.errors import UnsupportedError
from maskjet.export.rewrites import StaticDetector, optimize
from maskjet.networks.torchvision.layers import rewrite_layers
from maskjet.networks.torchvision.layers.proposing import JoinedRPNHead, join_predictors
from tests.networks.torchvision.detectors import detector, images

PARTS = {
    "": MaskRCNN,
    "transform": GeneralizedRCNNTransform,
    "rpn": RegionProposalNetwork,
    "rpn.anchor_generator": AnchorGenerator,
    "roi_heads": RoIHeads,
    "roi_heads.box_roi_pool": MultiScaleRoIAlign,
    "roi_heads.mask_roi_pool": MultiScaleRoIAlign,
    "roi_heads.mask_predictor": MaskRCNNPredictor,
}


@pytest.fixture(scope="module")
def detector_of_all():
    return detector()


@pytest.fixture
def model(detector_of_all):
    """Shared: a test that changes it puts it back."""
    return detector_of_all


def part_of(model, path):
    for name in filter(None, path.split(".")):
        model = getattr(model, name)
    return model


def assert_refused(model, message, makers=(optimize, StaticDetector)):
    for make in makers:
        with pytest.raises(UnsupportedError, match=message):
            make(model)


@pytest.mark.parametrize("path", PARTS)
def test_a_subclass_is_refused(path, model, monkeypatch):
    monkeypatch.setattr(part_of(model, path), "__class__", type("Mine", (PARTS[path],), {}))
    message = rf"model{'.' if path else ''}{path} must be torchvision's .*{PARTS[path].__name__}.*, got .*\.Mine, whose"
    assert_refused(model, message)


METHODS = [
    *((path, "forward") for path in PARTS),
    ("roi_heads", "postprocess_detections"),
    ("rpn", "filter_proposals"),
    ("transform", "postprocess"),
    ("rpn.box_coder", "decode_single"),
    ("roi_heads.box_coder", "decode"),
    ("backbone.body.relu", "forward"),
]


@pytest.mark.parametrize(("path", "method"), METHODS)
def test_a_method_set_on_an_instance_is_refused(path, method, model, monkeypatch):
    part = part_of(model, path)
    monkeypatch.setitem(vars(part), method, lambda *_: None)
    message = rf"{f'model.{path}'.rstrip('.')}\.{method} must be the method of {type(part).__name__}, got one"
    assert_refused(model, message, (optimize,) if path.startswith("backbone") else (optimize, StaticDetector))


@pytest.mark.parametrize("path", [*PARTS, "backbone", "backbone.body.layer1.0.conv1", "rpn.head", "roi_heads.box_head"])
def test_hooks_are_refused(path, model):
    name = f"model.{path}".rstrip(".")
    message = rf"{name} must have no (forward|backward) (pre )?hooks, which would not run: remove"
    for kind in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        hook = getattr(part_of(model, path), f"register_{kind}")(lambda *_: None)
        try:
            assert_refused(model, message, (optimize, StaticDetector) if path in PARTS else (optimize,))
        finally:
            hook.remove()


def test_what_differs_or_is_missing_is_refused(model, monkeypatch):
    with monkeypatch.context() as patching:
        patching.setattr(model.transform, "_skip_resize", True)
        assert_refused(model, r"model\.transform must resize, got one made with _skip_resize", [optimize])
    with monkeypatch.context() as patching:
        patching.delitem(model._modules, "transform")
        assert_refused(model, r"model\.transform must be torchvision's, got none", [optimize])
    monkeypatch.setattr(RoIHeads, "postprocess_detections", lambda *_: None)
    assert_refused(model, r"model\.roi_heads\.postprocess_detections must be torchvision's, got", [optimize])


class _Backbone(nn.Module):
    """Around another, with something of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.out_channels = inner, inner.out_channels

    def forward(self, images):
        return {name: features.clamp(max=0.5) for name, features in self.inner(images).items()}


class RPNHead2(RPNHead):
    """Likewise."""

    def forward(self, levels):
        scores, codes = super().forward(levels)
        return [score + self.conv[0][0].weight.mean() for score in scores], codes


@pytest.mark.slow
def test_what_is_called_may_be_the_users_own():
    model = detector()
    model.backbone = _Backbone(model.backbone)
    model.rpn.head.__class__ = RPNHead2
    fast = optimize(model)
    assert not isinstance(fast.rpn_head, JoinedRPNHead)
    (picture,) = images((96, 160))
    with torch.inference_mode():
        features = model.backbone(picture[None])
        for name, level in fast.backbone(picture[None]).items():
            torch.testing.assert_close(level, features[name], rtol=0, atol=1e-4)
        for ours, theirs in zip(fast.rpn_head([*features.values()]), model.rpn.head([*features.values()]), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


def test_a_head_of_the_same_name_stays(model, monkeypatch):
    assert isinstance(join_predictors(model.rpn.head), JoinedRPNHead)
    monkeypatch.setattr(model.rpn.head, "__class__", type("RPNHead", (RPNHead2,), {}))
    assert join_predictors(model.rpn.head) is model.rpn.head


def test_a_norm_of_a_similar_name_is_not_folded():
    class ClampedBatchNorm2d(FrozenBatchNorm2d):
        def forward(self, x):
            return super().forward(x).clamp(max=50.0)  # above what an example has

    layers = nn.Sequential(nn.Conv2d(3, 4, 3), ClampedBatchNorm2d(4)).eval().requires_grad_(requires_grad=False)
    rewritten, _ = rewrite_layers(layers, torch.randn(1, 3, 8, 8))
    assert rewritten(100 * torch.randn(1, 3, 8, 8) + 1000).max() <= 50


def test_capture_refuses_what_it_leaves_out(model, monkeypatch):
    monkeypatch.setitem(vars(model.transform), "postprocess", lambda *_: None)
    with pytest.raises(UnsupportedError, match=r"model\.transform\.postprocess must be the method of"):
        capture(model, images((96, 160)))

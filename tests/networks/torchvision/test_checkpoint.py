"""torchvision's detectors by name, from state dicts: as `optimize` makes them of the model whose state was saved."""

import argparse
import re
import sys

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

import maskjet
from maskjet import limits
from maskjet.errors import CheckpointError, InputError, MissingDependencyError
from maskjet.networks import find_family
from maskjet.networks.torchvision import family
from maskjet.networks.torchvision.checkpoint import read_detector
from maskjet.spec import COCO_CLASS_NAMES, TORCHVISION_NAMES
from tests.networks.checkpoints import save_torch
from tests.networks.torchvision.detectors import named

SMALL = "fasterrcnn_mobilenet_v3_large_320_fpn"
WITH_MASKS = "maskrcnn_resnet50_fpn"


def state_of(name):
    """A detector's state, each tensor of one value of its own, so that a file of it takes no room."""
    with torch.device("meta"):
        built = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None)
    return {
        name: torch.tensor(number / 1000 if value.is_floating_point() else number).expand(value.shape)
        for number, (name, value) in enumerate(built.state_dict().items())
    }


@pytest.fixture(scope="module")
def small():
    return state_of(SMALL)


@pytest.fixture(scope="module")
def shapes():
    return state_of(WITH_MASKS)


FORMS = {
    "state dict": lambda state, path: torch.save(state, path),
    "training script": lambda state, path: torch.save(
        {"model": state, "optimizer": {"state": {}}, "args": argparse.Namespace(lr=0.02), "epoch": 25}, path
    ),
    "lightning": lambda state, path: torch.save({"state_dict": {f"model.{n}": t for n, t in state.items()}}, path),
    "parallel": lambda state, path: torch.save({f"module.{n}": t for n, t in state.items()}, path),
    "before 1.6": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
    "parameters before 1.6": lambda state, path: torch.save(
        {"model": {n: torch.nn.Parameter(t) if t.is_floating_point() else t for n, t in state.items()}},
        path,
        _use_new_zipfile_serialization=False,
    ),
    "safetensors": lambda state, path: save_file({name: t.contiguous() for name, t in state.items()}, path),
    "float16": lambda state, path: torch.save(
        {n: t.half() if t.is_floating_point() else t for n, t in state.items()}, path
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_state_dict_fills_the_same_detector(form, small, tmp_path):
    FORMS[form](small, tmp_path / "weights")
    read = read_detector(SMALL, tmp_path / "weights")
    assert read.state_dict().keys() == small.keys()
    for name, tensor in read.state_dict().items():
        if tensor.is_floating_point():
            wanted = small[name].half().float() if form == "float16" else small[name]
            assert torch.equal(tensor, wanted), name
    assert not read.training
    assert not any(parameter.requires_grad for parameter in read.parameters())


@pytest.mark.slow
def test_detections_are_those_of_the_optimized_model(tmp_path):
    builder = getattr(torchvision.models.detection, SMALL)
    plain = named(SMALL)
    rebuilt = builder(weights=None, weights_backbone=None, num_classes=12).eval()  # with torchvision's own limits
    rebuilt.load_state_dict(plain.state_dict())
    torch.save(plain.state_dict(), tmp_path / "a.pth")
    image = maskjet.traffic.sample(seed=3).image
    with (
        maskjet.load(f"torchvision:{SMALL}", weights=tmp_path / "a.pth", device="cpu") as by_name,
        maskjet.load(maskjet.rewrites.optimize(rebuilt), device="cpu") as expected,
    ):
        found, wanted = by_name.predict(image), expected.predict(image)
        assert len(wanted) > 0
        for field in ("xyxy", "confidence", "class_id"):
            np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field))
        spec = by_name.spec
        assert (spec.threshold, spec.max_detections) == (expected.spec.threshold, expected.spec.max_detections)
        assert spec.class_names == {label: str(label) for label in range(1, 12)}
        one = str(found.class_id[0])
        assert set(by_name.predict(image, classes=[one]).class_name) == {one}


def test_ninety_one_classes_are_cocos(small, tmp_path):
    detector = family.load(f"torchvision:{SMALL}", save_torch(small, tmp_path / "a.pth"))
    assert detector.spec.class_names == COCO_CLASS_NAMES


def test_names_of_2019_are_todays(shapes, tmp_path):
    old = {}
    for name, tensor in shapes.items():
        name = re.sub(r"(fpn\.\w+_blocks\.\d)\.0\.", r"\1.", name)
        name = name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")
        name = re.sub(r"mask_head\.(\d)\.0\.", lambda found: f"mask_head.mask_fcn{int(found[1]) + 1}.", name)
        if not name.endswith("num_batches_tracked"):
            old[name] = tensor
    assert len(old.keys() - shapes.keys()) == 2 * (8 + 1 + 4)
    read = read_detector(WITH_MASKS, save_torch(old, tmp_path / "a.pth"))
    assert read.state_dict().keys() == shapes.keys()
    assert read.rpn.anchor_generator.cell_anchors[0].device.type == "cpu"


def test_only_torchvisions_own_file_gets_its_builders_epsilon(shapes, tmp_path):
    own = torchvision.models.get_model_weights(WITH_MASKS).COCO_V1.url.rpartition("/")[2]
    for name, epsilon in ((own, 0.0), ("mine.pth", 1e-5)):
        read = read_detector(WITH_MASKS, save_torch(shapes, tmp_path / name))
        assert {m.eps for m in read.modules() if hasattr(m, "running_var")} == {epsilon}


CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {"a": torch.zeros(1)}, "lacks roi_heads.box_predictor.cls_score.weight"),
        (lambda _: {}, r"must hold named tensors, .* holds none"),
        (lambda _: {1: torch.zeros(1)}, "must name their tensors by texts, got 1"),
        (lambda state: {**state, "extra": torch.zeros(1)}, f"does not fit {WITH_MASKS}: extra is foreign"),
        (lambda state: {**state, CLASSIFIER: torch.zeros(1, 1024)}, r"must have 2 to 65536 classes"),
        (lambda state: {**state, CLASSIFIER: torch.zeros(5)}, r"must have 2 to 65536 classes"),
        (lambda state: {**state, CLASSIFIER: torch.zeros(5, 1024)}, r"cls_score.bias must be \[5\], got \[91\]"),
        (lambda state: {**state, CLASSIFIER: torch.zeros(91, 1024).long()}, "must be floating-point numbers"),
        (lambda state: {**state, CLASSIFIER: torch.full((), torch.nan).expand(91, 1024)}, "must be finite in float32"),
        (lambda state: {n: t for n, t in state.items() if "mask" not in n}, "roi_heads.mask_head.* is missing"),
        (lambda state: {**state, "rpn.head.conv.weight": torch.zeros(1)}, "rpn.head.conv.0.0.weight is there twice"),
    ],
)
def test_other_weights_are_refused(change, message, shapes, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        read_detector(WITH_MASKS, save_torch(change(shapes), tmp_path / "a.pth"))


def test_memory_is_limited_before_it_is_taken(shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "checkpoint_bytes", 10**8)
    with pytest.raises(CheckpointError, match=r"the network of .* has 178,030,532 bytes, the limit is 100,000,000"):
        read_detector(WITH_MASKS, save_torch(shapes, tmp_path / "a.pth"))


def test_names_are_torchvisions():
    names = torchvision.models.list_models(module=torchvision.models.detection)
    ours = [f"torchvision:{name}" for name in names if name.startswith(("fasterrcnn_", "maskrcnn_"))]
    assert tuple(ours) == TORCHVISION_NAMES
    assert all(find_family(name) is family for name in TORCHVISION_NAMES)
    wrong = "got 'torchvision:maskrcnn_resnet50'; did you mean 'torchvision:maskrcnn_resnet50_fpn'"
    with pytest.raises(InputError, match=wrong):
        maskjet.load("torchvision:maskrcnn_resnet50", weights="a.pth")
    with pytest.raises(InputError, match=r"must be a Faster or Mask R-CNN of torchvision, got 'torchvision:ssd'"):
        maskjet.load("torchvision:ssd", weights="a.pth")
    with pytest.raises(InputError, match=r"weights must be the path of a state dict for 'torchvision:.*', got None"):
        maskjet.load(f"torchvision:{SMALL}")
    with pytest.raises(CheckpointError, match="weights must be a file, got '/nowhere', which does not exist"):
        maskjet.load(f"torchvision:{SMALL}", weights="/nowhere")
    with pytest.raises(InputError, match="weights must be a name or a path, got a int"):
        maskjet.load(f"torchvision:{SMALL}", weights=5)


def test_torchvision_is_an_extra(monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingDependencyError, match=r'needs torchvision: pip install "maskjet\[torchvision\]"'):
        read_detector(SMALL, tmp_path / "a.pth")

"""Weights files: the formats that load, and what is said of the ones that don't."""

import argparse
import json

import pytest
import safetensors.torch
import torch

from maskjet.errors import CheckpointError
from maskjet.networks.rfdetr import RFDETR, read_checkpoint
from maskjet.networks.rfdetr.checkpoint import resolve_spec
from maskjet.spec import COCO_CLASS_NAMES, SPECS
from tests.networks.checkpoints import load, save_safetensors, save_torch
from tests.networks.test_network import TINY, images, tiny_network


@pytest.fixture(scope="module")
def nano_state():
    """rfdetr's layout: 13 groups of queries, and what only training needs. A file of it takes little room."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in RFDETR(SPECS["rf-detr-nano"]).state_dict().items()}
    state = {name: torch.tensor(number / 1000).expand(shape) for number, (name, shape) in enumerate(shapes.items())}
    for name in ("refpoint_embed.weight", "query_feat.weight"):
        ours = torch.randn(shapes[name], generator=torch.Generator().manual_seed(0))
        state[name] = torch.cat([ours] + [torch.full_like(ours, torch.nan)] * 12)
    for group in range(1, 13):
        state[f"transformer.enc_output.{group}.weight"] = torch.tensor(torch.nan).expand(256, 256)
    state["backbone.0.encoder.encoder.embeddings.mask_token"] = torch.zeros(1, 384)
    state["_kp_active_mask"] = torch.zeros(0, 0, dtype=torch.bool)
    return state


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state},
        lambda state: {"model": state, "args": argparse.Namespace(class_names=[], resolution=384)},
        lambda state: {"state_dict": {f"model.{name}": tensor for name, tensor in state.items()}, "epoch": 3},
        lambda state: {"state_dict": {f"model._orig_mod.{name}": tensor for name, tensor in state.items()}},
    ],
    ids=["bare", "model", "namespace", "lightning", "lightning compiled"],
)
def test_rfdetr_formats_load(wrap, nano_state, tmp_path):
    network = load(save_torch(wrap(nano_state), tmp_path / "weights.pth"))
    assert network.spec == SPECS["rf-detr-nano"]
    assert network.spec.class_names == COCO_CLASS_NAMES
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, nano_state[name][: len(tensor)]), name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["person", "car"], {0: "person", 1: "car"}),
        (["dog"], {0: "dog"}),
        (list(COCO_CLASS_NAMES.values())[::-1], dict(enumerate(list(COCO_CLASS_NAMES.values())[::-1]))),
        (list(COCO_CLASS_NAMES.values()), COCO_CLASS_NAMES),
    ],
    ids=["two of COCO's", "one of COCO's", "COCO's in another order", "COCO's"],
)
def test_names_of_91_outputs_are_the_files_unless_they_are_all_of_coco(names, expected, nano_state, tmp_path):
    path = save_torch({"model": nano_state, "args": {"class_names": names}}, tmp_path / "weights.pth")
    assert resolve_spec(read_checkpoint(path)).class_names == expected


def test_safetensors_carry_their_spec(state, tmp_path):
    again = load(save_safetensors(state, tmp_path / "tiny.safetensors"))
    assert again.spec == TINY
    for expected, actual in zip(tiny_network()(images(2)), again(images(2)), strict=True):
        torch.testing.assert_close(actual, expected, atol=0, rtol=0)


def test_rfdetr_weights_as_safetensors_are_recognised(nano_state, tmp_path):
    path = tmp_path / "weights.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in nano_state.items() if tensor.numel()}
    safetensors.torch.save_file(tensors, path, metadata={"class_names": json.dumps(["cat", "dog"])})
    assert load(path).spec.name == "rf-detr-nano"


def test_the_model_name_decides_over_shapes(nano_state, tmp_path):
    path = save_torch({"model": nano_state, "model_name": "RFDETRSeg2XLarge"}, tmp_path / "weights.pth")
    assert resolve_spec(read_checkpoint(path)).name == "rf-detr-seg-2xlarge"


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_truncated_files(suffix, state, tmp_path):
    path = (save_torch if suffix == ".pth" else save_safetensors)(state, tmp_path / f"weights{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=rf"weights must be a whole .* file, '.*weights\{suffix}' is not"):
        read_checkpoint(path)


def without(part):
    return lambda state: {name: tensor for name, tensor in state.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {"model": {"weight": torch.zeros(1)}, "hook": print}, "weights must hold tensors and plain values"),
        (lambda _: {"model": {"epoch": 3}}, "weights must hold named tensors"),
        (lambda _: {"model": {"conv1.weight": torch.zeros(64, 3, 7, 7)}}, "weights must be an RF-DETR checkpoint"),
        (without("enc_out_class_embed"), "enc_out_class_embed.0.weight is missing"),
        (lambda state: state | {"bbox_embed.layers.1.bias": torch.zeros(7)}, r"bbox_embed.layers.1.bias must be"),
        (lambda state: state | {"extra": torch.zeros(1)}, "extra is foreign"),
        (without(".decoder.layers.1."), "patches of 16 px, 24×24 positions, 1 decoder layers and no mask head"),
    ],
)
def test_what_is_wrong_is_named(change, message, nano_state, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        load(save_torch(change(nano_state), tmp_path / "weights.pth"))


def test_weights_of_another_size_than_asked_for(nano_state, tmp_path):
    path = save_torch(nano_state, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=r"must be of rf-detr-medium, .* has the shapes of rf-detr-nano"):
        load(path, SPECS["rf-detr-medium"])

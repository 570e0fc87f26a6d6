"""Weights files: the formats that load, and what is said of the ones that don't."""

import argparse
import json

import pytest
import safetensors.torch
import torch

from benchmarks.planted import randomise
from maskjet.errors import CheckpointError
from maskjet.networks.rfdetr import RFDETR, read_checkpoint
from maskjet.networks.rfdetr.checkpoint import load_network, resolve_spec
from maskjet.spec import COCO_CLASS_NAMES, SPECS
from tests.networks.test_network import TINY, images, tiny_network


@pytest.fixture(scope="module")
def nano_state():
    """rfdetr's layout: 13 groups of queries, and what only training needs."""
    state = randomise(RFDETR(SPECS["rf-detr-nano"]).state_dict())
    for name in ("refpoint_embed.weight", "query_feat.weight"):
        state[name] = torch.cat([state[name]] + [torch.full_like(state[name], torch.nan)] * 12)
    for group in range(1, 13):
        state[f"transformer.enc_output.{group}.weight"] = torch.full((256, 256), torch.nan)
    state["backbone.0.encoder.encoder.embeddings.mask_token"] = torch.zeros(1, 384)
    state["_kp_active_mask"] = torch.zeros(0, 0, dtype=torch.bool)
    return state


def load(path, size=None):
    checkpoint = read_checkpoint(path)
    return load_network(resolve_spec(checkpoint, size), checkpoint)


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
    torch.save(wrap(nano_state), tmp_path / "weights.pth")
    network = load(tmp_path / "weights.pth")
    assert network.spec == SPECS["rf-detr-nano"]
    assert network.spec.class_names == COCO_CLASS_NAMES
    assert all(parameter.isfinite().all() for parameter in network.parameters())
    assert torch.equal(network.query_feat.weight, nano_state["query_feat.weight"][:300])


def test_half_precision_weights_are_widened(nano_state, tmp_path):
    torch.save({name: tensor.half() for name, tensor in nano_state.items()}, tmp_path / "weights.pt")
    assert {parameter.dtype for parameter in load(tmp_path / "weights.pt").parameters()} == {torch.float32}


def test_safetensors_carry_their_spec(tmp_path):
    network = tiny_network()
    path = tmp_path / "tiny.safetensors"
    safetensors.torch.save_file(network.state_dict(), path, metadata={"spec": json.dumps(TINY.as_dict())})
    again = load(path)
    assert again.spec == TINY
    for expected, actual in zip(network(images(2)), again(images(2)), strict=True):
        torch.testing.assert_close(actual, expected, atol=0, rtol=0)


def test_rfdetr_weights_as_safetensors_are_recognised(nano_state, tmp_path):
    path = tmp_path / "weights.safetensors"
    tensors = {name: tensor for name, tensor in nano_state.items() if tensor.numel()}
    safetensors.torch.save_file(tensors, path, metadata={"class_names": json.dumps(["cat", "dog"])})
    assert load(path).spec.name == "rf-detr-nano"


@pytest.mark.parametrize(
    ("name", "model_name"), [("rf-detr-nano", "RFDETRNano"), ("rf-detr-seg-2xlarge", "RFDETRSeg2XLarge")]
)
def test_the_model_name_decides_over_shapes(name, model_name, nano_state, tmp_path):
    torch.save({"model": nano_state, "model_name": model_name}, tmp_path / "weights.pth")
    assert resolve_spec(read_checkpoint(tmp_path / "weights.pth")).name == name


def test_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"weights must be a file, got '.*nothing\.pth', which does not exist"):
        read_checkpoint(tmp_path / "nothing.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_truncated_files(suffix, nano_state, tmp_path):
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(nano_state, path)
    else:
        safetensors.torch.save_file(tiny_network().state_dict(), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=rf"weights must be a whole .* file, '.*weights\{suffix}' is not"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint at all", b"\x80\x02K\x01."], ids=["empty", "text", "pickle"]
)
def test_foreign_files(content, tmp_path):
    (tmp_path / "weights.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"weights must .*weights\.pth'"):
        read_checkpoint(tmp_path / "weights.pth")


def test_a_file_that_holds_code_is_refused(tmp_path):
    torch.save({"model": {"weight": torch.zeros(1)}, "hook": print}, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="weights must hold tensors and plain values"):
        read_checkpoint(tmp_path / "weights.pth")


def test_a_file_without_tensors(tmp_path):
    torch.save({"model": {"epoch": 3}}, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="weights must hold named tensors"):
        read_checkpoint(tmp_path / "weights.pth")


def test_another_networks_weights(tmp_path):
    torch.save({"model": {"conv1.weight": torch.zeros(64, 3, 7, 7)}}, tmp_path / "resnet.pth")
    with pytest.raises(CheckpointError, match=r"weights must be an RF-DETR checkpoint, '.*resnet\.pth' lacks backbone"):
        load(tmp_path / "resnet.pth")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda state: state.pop("class_embed.weight"), "class_embed.weight is missing"),
        (
            lambda state: state.update({"bbox_embed.layers.1.bias": torch.zeros(7)}),
            r"bbox_embed.layers.1.bias must be \[256\], got \[7\]",
        ),
        (lambda state: state.update(extra=torch.zeros(1)), "extra is foreign"),
    ],
)
def test_the_first_wrong_parameter_is_named(edit, message, nano_state, tmp_path):
    state = dict(nano_state)
    edit(state)
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "weights.pth")


def test_an_unknown_size_lists_the_known(nano_state, tmp_path):
    state = {name: tensor for name, tensor in nano_state.items() if ".decoder.layers.1." not in name}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(
        CheckpointError, match=r"patches of 16 px, 24×24 positions, 1 decoder layers and no mask head.*rf-detr-nano"
    ):
        load(tmp_path / "weights.pth")


def test_weights_of_another_size_than_asked_for(nano_state, tmp_path):
    torch.save(nano_state, tmp_path / "weights.pth")
    with pytest.raises(
        CheckpointError, match=r"must be of rf-detr-medium, .* has the shapes of rf-detr-nano; load it by"
    ):
        load(tmp_path / "weights.pth", SPECS["rf-detr-medium"])

"""Weights files: rfdetr's checkpoints (.pt, .pth, .ckpt) and safetensors, read without running any code in them."""

from __future__ import annotations

import argparse
import json
import math
import pickle
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from maskjet.errors import CheckpointError, first_line
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.spec import COCO_CLASS_NAMES, SPECS, ModelSpec

_POSITIONS = "backbone.0.encoder.encoder.embeddings.position_embeddings"
_PATCHES = "backbone.0.encoder.encoder.embeddings.patch_embeddings.projection.weight"
_CLASS_BIAS = "class_embed.bias"
# By rfdetr's class names in lower case, as its checkpoints carry them under "model_name".
_BY_MODEL_NAME = {name.replace("-", ""): spec for name, spec in SPECS.items()}
# In every rfdetr checkpoint, and not used to infer.
_UNUSED = ("backbone.0.encoder.encoder.embeddings.mask_token", "_kp_active_mask")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a weights file and what it says of itself."""

    path: Path
    """Where it was read from; errors name it."""
    state: Mapping[str, Tensor]
    """Parameters by rfdetr's names, any floating dtype, on the CPU."""
    spec: ModelSpec | None
    """The full architecture, if the file carries one (maskjet's own safetensors do)."""
    model_name: str | None
    """rfdetr's class name, e.g. "RFDETRSegNano", if the file carries it."""
    resolution: int | None
    """Side of the network input it was trained for in pixels, if the file carries it."""
    class_names: tuple[str, ...] | None
    """Names by class id, if the file carries them."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a weights file.

    Args:
        path: .safetensors, or what rfdetr saves: a dictionary with "model", or Lightning's with "state_dict".

    Returns:
        The tensors and what the file says of itself.

    Raises:
        CheckpointError: No such file, truncated, not a weights file, or it holds code.
    """
    if not path.is_file():
        raise CheckpointError(f"weights must be a file, got {str(path)!r}, which does not exist or is a folder.")
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)


def _read_safetensors(path: Path) -> Checkpoint:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        fields = json.loads(metadata.get("spec", "null"))
        names = json.loads(metadata.get("class_names", "null"))
    except (safetensors.SafetensorError, json.JSONDecodeError) as error:
        raise CheckpointError(f"weights must be a whole safetensors file, {str(path)!r} is not: {error}.") from error
    return Checkpoint(
        path=path,
        state=state,
        spec=None if fields is None else ModelSpec.from_dict(fields),
        model_name=metadata.get("model_name"),
        resolution=None,
        class_names=None if names is None else tuple(names),
    )


def _read_torch(path: Path) -> Checkpoint:
    try:
        with torch.serialization.safe_globals([argparse.Namespace, types.SimpleNamespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"weights must hold tensors and plain values, {str(path)!r} holds something else or is not a "
            f"PyTorch file: {first_line(error)}"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"weights must be a whole PyTorch file, {str(path)!r} is not: {first_line(error)}"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"weights must hold a dictionary, {str(path)!r} holds a {type(content).__name__}.")
    if "model" not in content and isinstance(content.get("state_dict"), dict):  # PyTorch Lightning
        state = {
            name.removeprefix("model.").removeprefix("_orig_mod."): tensor
            for name, tensor in content["state_dict"].items()
            if name.startswith("model.")
        }
        arguments = content.get("args", content.get("hyper_parameters"))
    else:
        state, arguments = content.get("model", content), content.get("args")
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"weights must hold named tensors, {str(path)!r} holds none.")
    config = _as_dict(content.get("model_config"))
    arguments = _as_dict(arguments)
    names = arguments.get("class_names") or config.get("class_names")
    return Checkpoint(
        path=path,
        state={name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)},
        spec=None,
        model_name=content.get("model_name"),
        resolution=config.get("resolution", arguments.get("resolution")),
        class_names=tuple(str(name) for name in names) if isinstance(names, list | tuple) else None,
    )


def _as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))


def resolve_spec(checkpoint: Checkpoint, size: ModelSpec | None = None) -> ModelSpec:
    """Find the architecture of a checkpoint and take over its classes and resolution.

    Args:
        checkpoint: The weights.
        size: The named size asked for; None recognises it by what the file says or by its shapes.

    Returns:
        The spec, with the class count, class names and input size of the checkpoint.

    Raises:
        CheckpointError: Not an RF-DETR checkpoint, or of a size that can't be told.
    """
    if checkpoint.spec is not None:
        return checkpoint.spec
    for name in (_PATCHES, _POSITIONS, _CLASS_BIAS):
        if name not in checkpoint.state:
            raise CheckpointError(f"weights must be an RF-DETR checkpoint, {str(checkpoint.path)!r} lacks {name}.")
    base = size or _recognise(checkpoint)
    class_logits = checkpoint.state[_CLASS_BIAS].shape[0]
    names: Mapping[int, str] = dict(enumerate(checkpoint.class_names or ()))
    if class_logits == base.class_logits and set(names.values()) <= set(COCO_CLASS_NAMES.values()):
        names = COCO_CLASS_NAMES
    return replace(
        base,
        input_size=checkpoint.resolution or base.input_size,
        class_logits=class_logits,
        class_names=names,
    )


def _recognise(checkpoint: Checkpoint) -> ModelSpec:
    """The named size that a checkpoint was trained from."""
    if checkpoint.model_name is not None and checkpoint.model_name.lower() in _BY_MODEL_NAME:
        return _BY_MODEL_NAME[checkpoint.model_name.lower()]
    state = checkpoint.state
    seen = (
        any(name.startswith("segmentation_head.") for name in state),
        state[_PATCHES].shape[-1],
        math.isqrt(state[_POSITIONS].shape[1] - 1),
        sum(name.startswith("transformer.decoder.layers.") and name.endswith(".norm1.weight") for name in state),
    )
    for spec in SPECS.values():
        if seen == (spec.has_masks, spec.patch_size, spec.grid, spec.decoder_layers):
            return spec
    has_masks, patch_size, grid, layers = seen
    raise CheckpointError(
        f"weights must be of a known size, {str(checkpoint.path)!r} has patches of {patch_size} px, {grid}×{grid} "
        f"positions, {layers} decoder layers and {'a' if has_masks else 'no'} mask head. "
        f"Name its size: maskjet.load(NAME, weights=PATH) with one of {', '.join(SPECS)}."
    )


def load_network(spec: ModelSpec, checkpoint: Checkpoint) -> RFDETR:
    """Build the network of a spec and fill it from a checkpoint.

    Of rfdetr's query groups, used only to train, the first is kept. Position embeddings made for another input size
    are resized as rfdetr resizes them (bicubic, antialiased).

    Args:
        spec: The architecture, as `resolve_spec` found it.
        checkpoint: The weights.

    Returns:
        The network in eval mode, float32, on the CPU, without gradients.

    Raises:
        CheckpointError: A parameter is missing, has another shape, or is none of this network; the first is named.
    """
    network = RFDETR(spec)
    expected = network.state_dict()
    state = {name: tensor.float() for name, tensor in _first_group(checkpoint.state, spec.queries).items()}
    if _POSITIONS in state:
        state[_POSITIONS] = _resize_positions(state[_POSITIONS], spec.grid)
    where = f"{str(checkpoint.path)!r} does not fit {spec.name}"
    for name, parameter in expected.items():
        if name not in state:
            raise CheckpointError(f"weights must hold every parameter, {where}: {name} is missing.")
        if state[name].shape != parameter.shape:
            raise CheckpointError(
                f"weights must have the network's shapes, {where}: {name} must be {list(parameter.shape)}, "
                f"got {list(state[name].shape)}."
            )
    foreign = sorted(state.keys() - expected.keys())
    if foreign:
        raise CheckpointError(f"weights must hold this network's parameters only, {where}: {foreign[0]} is foreign.")
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(requires_grad=False)


def _first_group(state: Mapping[str, Tensor], queries: int) -> dict[str, Tensor]:
    """Drop what rfdetr needs only to train: the other query groups and masked-image modelling."""
    kept = {}
    for name, tensor in state.items():
        group = name.split(".")[2] if name.startswith("transformer.enc_out") else "0"
        if group == "0" and name not in _UNUSED:
            is_query = name in ("refpoint_embed.weight", "query_feat.weight")
            kept[name] = tensor[:queries] if is_query else tensor
    return kept


def _resize_positions(positions: Tensor, grid: int) -> Tensor:
    """[1, 1 + g², C] for a g×g token grid to [1, 1 + grid², C]; the class token's stays."""
    old = math.isqrt(positions.shape[1] - 1)
    if old in (0, grid) or old**2 != positions.shape[1] - 1:
        return positions
    image = positions[:, 1:].view(1, old, old, -1).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=(grid, grid), mode="bicubic", align_corners=False, antialias=True)
    return torch.cat((positions[:, :1], image.flatten(2).transpose(1, 2)), dim=1)

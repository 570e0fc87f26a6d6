"""Checkpoints: build a network from a weights file's tensors and metadata."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maskjet.checks import shown
from maskjet.errors import CheckpointError
from maskjet.host.printing import sanitise
from maskjet.networks.rfdetr.hugging_face import WEIGHTS, find_weights, read_folder
from maskjet.networks.rfdetr.model_config import build_spec, read_config, states_everything
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.networks.state_dict import NoInitialisation, check_state, copy_finite, named_tensors, unwrap
from maskjet.networks.weights_file import (
    check_is_file,
    is_safetensors,
    open_safetensors,
    open_torch,
    read_json,
    reading,
)
from maskjet.spec import COCO_CLASS_NAMES, MAX_GRID, SPECS, ModelSpec

_POSITIONS = "backbone.0.encoder.encoder.embeddings.position_embeddings"
_PATCHES = "backbone.0.encoder.encoder.embeddings.patch_embeddings.projection.weight"
_CLASS_BIAS = "class_embed.bias"
_QUERIES = "query_feat.weight"
_LAYER = "backbone.0.encoder.encoder.encoder.layer."
# Sizes by rfdetr's class name in lower case, which its checkpoints carry under "model_name".
_BY_MODEL_NAME = {name.replace("-", ""): spec for name, spec in SPECS.items()}
# Tensors of every rfdetr checkpoint that inference does not use.
_UNUSED = ("backbone.0.encoder.encoder.embeddings.mask_token", "_kp_active_mask")
_EXPECTED = "a checkpoint that rfdetr saved"


@dataclass(frozen=True)
class Checkpoint:
    """The tensors and the metadata of a weights file."""

    path: Path
    """Path of the file; errors name it."""
    state: Mapping[str, Tensor]
    """Parameters by rfdetr's names, of any dtype and shape, on the CPU; mapped from the file and not yet read."""
    spec: ModelSpec | None
    """The full architecture, if the file carries one (maskjet's own safetensors do)."""
    model_name: str | None
    """rfdetr's class name, e.g. "RFDETRSegNano", if the file carries it."""
    class_names: Mapping[int, str]
    """Class id to printable class name; empty if the file has none."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ModelSpec read from rfdetr's ModelConfig or arguments in the file."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read .safetensors, a folder of transformers, or a file of rfdetr: a dictionary with "model" or "state_dict".

    Raises:
        CheckpointError: The file is missing, truncated, not a weights file, larger than `limits.checkpoint_bytes`, made
            for an architecture that this network does not have, or holds code.
    """
    with reading(path, _EXPECTED):
        path = find_weights(path) if path.is_dir() else path
        check_is_file(path)
        return _read_safetensors(path) if is_safetensors(path, _EXPECTED) else _read_torch(path)


def _read_safetensors(path: Path) -> Checkpoint:
    state, metadata = open_safetensors(path)
    fields = read_json(metadata, "spec", path)
    config, names = read_folder(path.parent) if fields is None and path.name == WEIGHTS else ({}, {})
    return Checkpoint(
        path=path,
        state=_unwrap(state),
        spec=None if fields is None else ModelSpec.from_dict(fields),
        model_name=metadata.get("model_name"),
        class_names=names or _read_class_names(read_json(metadata, "class_names", path)),
        config=config and config | {"has_masks": any(name.startswith("segmentation_head.") for name in state)},
    )


def _read_torch(path: Path) -> Checkpoint:
    content = open_torch(path, _EXPECTED)
    state = named_tensors(content, path)
    arguments = _as_dict(content.get("args", content.get("hyper_parameters")))
    config, model_name = content.get("model_config"), content.get("model_name")
    if config is None and arguments.get("resolution") is not None:  # an older file: the only description
        config = {"resolution": arguments["resolution"]}
    config = _as_dict(config)
    if not isinstance(model_name, str | None):
        raise CheckpointError(f"model_name must be a text, {str(path)!r} has {shown(model_name)}.")
    return Checkpoint(
        path=path,
        state=_unwrap(state),
        spec=None,
        model_name=model_name,
        class_names=_read_class_names(arguments.get("class_names") or config.get("class_names")),
        config=read_config(config),
    )


def _as_dict(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, dict) else dict(getattr(value, "__dict__", {}))


def _unwrap(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Strip prefixes of wrapper modules, so that parameters have rfdetr's names."""
    for name in state:
        if "backbone.backbone." in name:
            raise CheckpointError(
                "weights must have rfdetr's names, these have those of transformers' modules. Save the model there by "
                "save_pretrained(FOLDER), which writes rfdetr's."
            )
        if ".lora_" in name or ".base_model.model." in name:
            raise CheckpointError(
                "weights must not hold LoRA adapters (backbone_lora), these do. Merge them with rfdetr: "
                'RFDETR.from_checkpoint(PATH, backbone_lora=False), then save its state dict as "model".'
            )
    return unwrap(state, _CLASS_BIAS)


def _read_class_names(names: Any) -> dict[int, str]:
    """Convert a list of names to printable class names by position; integers are allowed."""
    if names is None:
        return {}
    if isinstance(names, str):  # rfdetr also accepts a single name
        names = [names]
    if not isinstance(names, list | tuple) or not all(type(name) in (str, int) for name in names):
        raise CheckpointError(f"class_names must be a list of texts, got {shown(names)}.")
    return dict(enumerate(sanitise(name if isinstance(name, str) else shown(name)) for name in names))


def resolve_spec(checkpoint: Checkpoint, size: ModelSpec | None = None) -> ModelSpec:
    """Find the architecture of a checkpoint, with its class count, class names and input size.

    `size` is the named size asked for; None recognises it by the file's metadata or shapes.

    Raises:
        CheckpointError: Not an RF-DETR checkpoint, of another size than asked for, or of an unknown one.
    """
    with reading(checkpoint.path, _EXPECTED):
        if checkpoint.spec is not None:
            if size is not None and checkpoint.spec.name != size.name:
                raise _other_size(checkpoint, size, f"says that it is {sanitise(checkpoint.spec.name)}")
            return checkpoint.spec
        for name, dimensions in ((_PATCHES, 4), (_POSITIONS, 3), (_CLASS_BIAS, 1), (_QUERIES, 2)):
            if name not in checkpoint.state:
                raise CheckpointError(f"weights must be an RF-DETR checkpoint, {str(checkpoint.path)!r} lacks {name}.")
            if checkpoint.state[name].ndim != dimensions or 0 in checkpoint.state[name].shape:
                raise CheckpointError(
                    f"weights must have the network's shapes, {str(checkpoint.path)!r} does not fit any size: {name} "
                    f"must have {dimensions} dimensions, got {list(checkpoint.state[name].shape)}."
                )
        return _describe(checkpoint, _find_size(checkpoint, size))


def _find_size(checkpoint: Checkpoint, size: ModelSpec | None) -> ModelSpec | None:
    """The named size that a checkpoint was trained from; None if it states an architecture of its own."""
    stated = (checkpoint.model_name or "").strip().lower()
    recognised = _BY_MODEL_NAME.get(stated) if stated else _recognise(checkpoint)
    if size is not None:
        if stated and recognised is not size:
            raise _other_size(checkpoint, size, f"says that it is {sanitise(str(checkpoint.model_name))}")
        if recognised not in (None, size) and checkpoint.config.get("input_size") in (None, recognised.input_size):
            raise _other_size(checkpoint, size, f"has the shapes of {recognised.name}")
        return size
    recognised = recognised or _recognise(checkpoint)
    if recognised is None and not states_everything(checkpoint.config):
        has_masks, patch_size, grid, layers = _seen(checkpoint)
        raise CheckpointError(
            f"weights must be of a known size, {str(checkpoint.path)!r} has patches of {patch_size} px, {grid}×{grid} "
            f"positions, {layers} decoder layers and {'a' if has_masks else 'no'} mask head. "
            f"Give it as weights, and its size as model: one of {', '.join(SPECS)}."
        )
    return recognised


def _other_size(checkpoint: Checkpoint, size: ModelSpec, finding: str) -> CheckpointError:
    return CheckpointError(
        f"weights must be of {size.name}, {str(checkpoint.path)!r} {finding}; load it by its path alone."
    )


def _seen(checkpoint: Checkpoint) -> tuple[bool, int, int, int]:
    """Architecture found in tensor names and shapes: mask head, patch size, position grid, decoder layers."""
    state = checkpoint.state
    return (
        any(name.startswith("segmentation_head.") for name in state),
        state[_PATCHES].shape[-1],
        math.isqrt(state[_POSITIONS].shape[1] - 1),
        sum(name.startswith("transformer.decoder.layers.") and name.endswith(".norm1.weight") for name in state),
    )


def _recognise(checkpoint: Checkpoint) -> ModelSpec | None:
    """Find the named size that matches a checkpoint's shapes; None if there is none."""
    seen = _seen(checkpoint)
    for spec in SPECS.values():
        if seen == (spec.has_masks, spec.patch_size, spec.grid_hw[0], spec.decoder_layers):
            return spec
    return None


def _describe(checkpoint: Checkpoint, base: ModelSpec | None) -> ModelSpec:
    """Build a checkpoint's spec: a named size, overridden by the file's fields and tensor shapes."""
    class_logits = checkpoint.state[_CLASS_BIAS].shape[0]
    names = checkpoint.class_names
    # As in rfdetr: without names, or with COCO's full list, class ids are COCO's, with gaps; others go by position.
    if class_logits == SPECS["rf-detr-nano"].class_logits and [*names.values()] in ([], [*COCO_CLASS_NAMES.values()]):
        names = COCO_CLASS_NAMES
    fields: dict[str, Any] = (
        {"name": sanitise(checkpoint.model_name or "RF-DETR")} if base is None else dict(vars(base))
    )
    fields["queries"] = checkpoint.state[_QUERIES].shape[0] // _count_groups(checkpoint.state)
    fields |= {**checkpoint.config, "class_logits": class_logits, "class_names": names}
    return build_spec(fields, repr(str(checkpoint.path)))


def _count_groups(state: Mapping[str, Tensor]) -> int:
    """Number of query groups that rfdetr trained, each with an output layer; inference uses the first."""
    return next(group for group in itertools.count(1) if f"transformer.enc_output.{group}.weight" not in state)


def load_network(spec: ModelSpec, checkpoint: Checkpoint) -> RFDETR:
    """Build the network of a spec and fill it from a checkpoint.

    Only the first of rfdetr's query groups is kept; the others serve training. Position embeddings made for another
    input size are resized as in rfdetr (bicubic, antialiased). Memory is allocated after all shapes were checked.

    Returns:
        The network in eval mode, float32, on the CPU, without gradients; independent of the file.

    Raises:
        CheckpointError: A parameter is missing, foreign, not finite or has another shape; the first is named. Or the
            network is larger than `limits.checkpoint_bytes`.
    """
    with reading(checkpoint.path, _EXPECTED):
        with torch.device("meta"), NoInitialisation():
            network = RFDETR(spec)
        expected = {name: tensor.shape for name, tensor in network.state_dict().items()}
        state = _keep_used(checkpoint, spec)
        check_state(state, expected, sanitise(spec.name), checkpoint.path, _can_be_resized)
        copied = {name: copy_finite(name, tensor) for name, tensor in state.items()}
        copied[_POSITIONS] = _resize_positions(copied[_POSITIONS], spec.grid_hw)
        network.load_state_dict(copied, assign=True)
        return network.eval().requires_grad_(requires_grad=False)


def _keep_used(checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
    """Drop tensors not used by inference: other query groups, masked-image modelling, layers after the last map."""
    state, groups = checkpoint.state, _count_groups(checkpoint.state)
    unused = (*_UNUSED, *(f"{_LAYER}{layer}." for layer in range(max(spec.feature_layers), spec.backbone_depth)))
    kept = {}
    for name, tensor in state.items():
        group = name.split(".")[2] if name.startswith("transformer.enc_out") and name.count(".") > 2 else "0"
        if group != "0" or name.startswith(unused):
            continue
        if name in ("refpoint_embed.weight", _QUERIES) and tensor.ndim == 2:
            if len(tensor) != groups * spec.queries:
                raise CheckpointError(
                    f"num_queries must be {len(tensor) / groups:g}, the rows of {name} in each of its {groups} groups, "
                    f"{str(checkpoint.path)!r} states {spec.queries}."
                )
            tensor = tensor[: spec.queries]
        kept[name] = tensor
    return kept


def _can_be_resized(name: str, positions: Tensor, expected: torch.Size) -> bool:
    """Whether a tensor is position embeddings of a square grid, [1, 1 + g², C], which can be resized."""
    if name != _POSITIONS or positions.ndim != 3 or (positions.shape[0], positions.shape[2]) != (1, expected[2]):
        return False
    side = math.isqrt(positions.shape[1] - 1) if positions.shape[1] > 1 else 0
    return 1 <= side <= MAX_GRID and side**2 == positions.shape[1] - 1


def _resize_positions(positions: Tensor, grid_hw: tuple[int, int]) -> Tensor:
    """Resize position embeddings [1, 1 + g², C] to [1, 1 + h × w, C]; the class token's stays."""
    old = math.isqrt(positions.shape[1] - 1)
    if (old, old) == grid_hw:
        return positions
    image = positions[:, 1:].view(1, old, old, -1).permute(0, 3, 1, 2)
    image = F.interpolate(image, size=grid_hw, mode="bicubic", align_corners=False, antialias=True)
    return torch.cat((positions[:, :1], image.flatten(2).transpose(1, 2)), dim=1)

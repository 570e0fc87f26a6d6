"""Build torchvision's detectors by name, with weights from a saved state dict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskjet.errors import CheckpointError, InputError, suggest
from maskjet.host.extras import require
from maskjet.networks.state_dict import NoInitialisation, check_state, copy_finite, named_tensors, rename, unwrap
from maskjet.networks.weights_file import check_is_file, is_safetensors, open_safetensors, open_torch, reading
from maskjet.spec import BOUNDS, TORCHVISION_NAMES

PREFIX = "torchvision:"
"""Prefix of the names of this family's models."""
_EXPECTED = "a state dict of the detector"
_CLASSIFIER = "roi_heads.box_predictor.cls_score.weight"
_COUNTER = ".num_batches_tracked"  # not used in inference
# Parameter names in torchvision's files of 2019, and those of today's modules.
_RENAMED = (
    (re.compile(r"(backbone\.fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)"), r"\1.0.\2"),
    (re.compile(r"(rpn\.head\.conv)\.(weight|bias)"), r"\1.0.0.\2"),
    *(
        (re.compile(rf"roi_heads\.mask_head\.mask_fcn{layer + 1}\."), f"roi_heads.mask_head.{layer}.0.")
        for layer in range(9)
    ),
)


def _models() -> Any:
    return require("torchvision.models", extra="torchvision", purpose="a model of torchvision's")


def read_detector(name: str, path: Path) -> Any:
    """Build a detector of torchvision's and fill it from a file. Nothing is downloaded.

    The detector is that of `builder(weights=None, weights_backbone=None, num_classes=...)`, with the file's number of
    classes, in eval mode, float32, on the CPU, without gradients; independent of the file. Only torchvision's own
    files, recognised by name, get the epsilon that torchvision's builder sets for them. All names and shapes are
    checked before memory is allocated.

    Args:
        name: Name of a builder, such as "maskrcnn_resnet50_fpn".
        path: A state dict, .pth of any PyTorch or safetensors; or a dictionary with one under "model" or "state_dict".

    Raises:
        InputError: The name is none of `TORCHVISION_NAMES`.
        CheckpointError: The file can't be read or is of another network.
        MissingDependencyError: torchvision is not installed.
    """
    if PREFIX + name not in TORCHVISION_NAMES:
        end = suggest(PREFIX + name, TORCHVISION_NAMES)
        raise InputError(f"model must be a Faster or Mask R-CNN of torchvision, got {PREFIX + name!r}{end}")
    _models()  # or raises
    with reading(path, _EXPECTED):
        state = _read_state(path)
        model = _build(name, _count_classes(state, path))
        expected = {key: value.shape for key, value in model.state_dict().items() if not key.endswith(_COUNTER)}
        used = {key: tensor for key, tensor in state.items() if not key.endswith(_COUNTER)}
        state = rename(used, lambda key: key if key in expected else _new_name(key))
        check_state(state, expected, name, path)
        filled = {key: copy_finite(key, tensor) for key, tensor in state.items()}
        counters = {
            key: torch.zeros((), dtype=torch.long, device="cpu") for key in model.state_dict() if key.endswith(_COUNTER)
        }
        model.load_state_dict(filled | counters, assign=True)
    _set_epsilon(model, name, path)
    return model.eval().requires_grad_(requires_grad=False)


def _read_state(path: Path) -> dict[str, Tensor]:
    """Open a file's tensors by name; they are mapped from the file and not yet read."""
    check_is_file(path)
    content: Mapping[Any, Any] = (
        open_safetensors(path)[0] if is_safetensors(path, _EXPECTED) else open_torch(path, _EXPECTED)
    )
    return unwrap(named_tensors(content, path), _CLASSIFIER)


def _count_classes(state: Mapping[str, Tensor], path: Path) -> int:
    weight = state.get(_CLASSIFIER)
    if weight is None:
        raise CheckpointError(f"weights must be of a Faster or Mask R-CNN, {str(path)!r} lacks {_CLASSIFIER}.")
    if weight.ndim != 2 or not 2 <= len(weight) <= BOUNDS["class_logits"][1]:
        raise CheckpointError(
            f"weights must have 2 to {BOUNDS['class_logits'][1]} classes, {str(path)!r} has {_CLASSIFIER} of "
            f"{list(weight.shape)}."
        )
    return len(weight)


def _build(name: str, classes: int) -> Any:
    """Build a detector on the meta device, which takes no memory, with real anchors."""
    models = _models()
    with torch.device("meta"), NoInitialisation():
        model = models.get_model_builder(name)(weights=None, weights_backbone=None, num_classes=classes)
    anchors = model.rpn.anchor_generator
    model.rpn.anchor_generator = type(anchors)(anchors.sizes, anchors.aspect_ratios)
    return model


def _new_name(name: str) -> str:
    """Translate a parameter's name in torchvision's files of 2019 to that in today's modules."""
    for pattern, now in _RENAMED:
        name = pattern.sub(now, name)
    return name


def _set_epsilon(model: nn.Module, name: str, path: Path) -> None:
    """Set the epsilon of torchvision's first COCO weights, which were trained with it, as its builder does."""
    if name not in ("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn"):
        return
    if path.name == _models().get_model_weights(name).COCO_V1.url.rpartition("/")[2]:
        for module in model.modules():
            if hasattr(module, "running_var"):
                module.eps = 0.0  # type: ignore[assignment]

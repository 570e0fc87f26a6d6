"""Read folders saved by transformers' RF-DETR: model.safetensors, with rfdetr's names, and config.json.

Fields that shapes tell, or that inference does not use, are not read. The input's size is the image processor's, which
may differ from the one that the positions were made for.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maskjet import limits
from maskjet.checks import check_whole, shown
from maskjet.errors import CheckpointError, InputError
from maskjet.networks.rfdetr.model_config import read_config
from maskjet.spec import BOUNDS, read_class_names

WEIGHTS = "model.safetensors"
"""File name of the weights."""
_CONFIG, _PROCESSOR = "config.json", "preprocessor_config.json"
# Field of RfDetrConfig (or of its backbone config): (our field, transformers' default).
_WHOLE_NUMBERS: Mapping[str, tuple[str, int]] = {
    "decoder_layers": ("decoder_layers", 3),
    "num_queries": ("queries", 300),
    "d_model": ("hidden_dim", 256),
    "decoder_self_attention_heads": ("self_attention_heads", 8),
    "decoder_cross_attention_heads": ("cross_attention_heads", 16),
    "decoder_n_points": ("sampling_points", 4),
    "decoder_ffn_dim": ("feed_forward_dim", 2048),
    "mask_downsample_ratio": ("mask_stride", 4),
    "backbone_config.image_size": ("input_size", 224),
    "backbone_config.patch_size": ("patch_size", 14),
    "backbone_config.num_windows": ("windows", 4),
    "backbone_config.hidden_size": ("backbone_width", 768),
    "backbone_config.num_hidden_layers": ("backbone_depth", 12),
    "backbone_config.num_attention_heads": ("backbone_heads", 12),
}
# Fields with a single supported value that tensor shapes do not show.
_IMPLEMENTED: Mapping[str, Any] = {
    "model_type": "rf_detr",
    "activation_function": "silu",
    "decoder_activation_function": "relu",
    "segmentation_head_activation_function": "gelu",
    "backbone_config.hidden_act": "gelu",
    "backbone_config.layer_norm_eps": 1e-6,
    "backbone_config.apply_layernorm": True,
}
_PROCESSING: Mapping[str, Any] = {"do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255}


def find_weights(folder: Path) -> Path:
    """The weights' file of a folder; raises CheckpointError if it or config.json is not there."""
    for name in (_CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"weights must be a file, or a folder to which transformers saved an RF-DETR, {str(folder)!r} is a "
                f"folder without {name}."
            )
    return folder / WEIGHTS


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[int, str]]:
    """Read the architecture from the JSON files beside a weights file.

    Returns:
        Fields of ModelSpec, and class names by id; nothing without config.json.

    Raises:
        InputError: A field has a value that this network can't honour; it is named.
    """
    config, processor = (_read_json(folder / name) for name in (_CONFIG, _PROCESSOR))
    if not config:
        return {}, {}
    backbone, size = config.get("backbone_config"), processor.get("size")
    if not isinstance(backbone, dict):
        raise InputError(f"backbone_config must be a dictionary, got {shown(backbone)}.")
    stated = config | {f"backbone_config.{name}": value for name, value in backbone.items()}
    changes: dict[str, Any] = {"num_select": None, "projector_eps": stated.get("layer_norm_eps", 1e-5)}
    for name, (ours, default) in _WHOLE_NUMBERS.items():
        changes[ours] = stated.get(name, default)
        check_whole(name, changes[ours], BOUNDS[ours])
    for given, implemented in ((stated, _IMPLEMENTED), (processor, _PROCESSING)):
        for name, expected in implemented.items():
            if (value := given.get(name, expected)) != expected:
                raise InputError(f"{name} must be {expected}, which alone is implemented, got {shown(value)}.")
    changes |= read_config({"out_feature_indexes": backbone.get("out_indices")})
    if size is not None:
        size = {"height": size, "width": size} if isinstance(size, int) else size
        if not isinstance(size, dict) or not {"height", "width"} <= size.keys():
            hint = f"; inputs of the network have one shape, write its two into {_PROCESSOR}"
            raise InputError(f"size must be a height and a width, got {reprlib.repr(size)}{hint}.")
        changes["input_size"] = (size["height"], size["width"])
    for name, ours in (("image_mean", "mean"), ("image_std", "std")):
        if (values := processor.get(name)) is not None:
            changes[ours] = tuple(values) if isinstance(values, list) else values
    names = read_class_names(config.get("id2label", {}))
    return changes, {number: name for number, name in names.items() if name not in (f"LABEL_{number}", "N/A")}


def _read_json(path: Path) -> dict[Any, Any]:
    """The dictionary in a JSON file; an empty one if there is no file."""
    stated = json.loads(limits.read_small(path)) if path.is_file() else {}
    if not isinstance(stated, dict):
        raise InputError(f"{path.name} must hold a dictionary, got {shown(stated)}.")
    return stated

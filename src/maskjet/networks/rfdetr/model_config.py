"""Translate rfdetr's ModelConfig, which its checkpoints carry, to fields of ModelSpec.

A known field becomes a field of the spec, chooses the encoder, must have the one value that this network implements, or
does not matter to inference. Any other field is of a newer rfdetr and may change the network, so it is refused unless
it is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskjet.checks import check_whole, shown
from maskjet.errors import CheckpointError, InputError
from maskjet.spec import BOUNDS, ModelSpec

_WHOLE_NUMBERS = {
    "resolution": "input_size",
    "patch_size": "patch_size",
    "num_windows": "windows",
    "dec_layers": "decoder_layers",
    "num_queries": "queries",
    "num_select": "num_select",
    "hidden_dim": "hidden_dim",
    "sa_nheads": "self_attention_heads",
    "ca_nheads": "cross_attention_heads",
    "dec_n_points": "sampling_points",
    "mask_downsample_ratio": "mask_stride",
}
_NAMES = {**_WHOLE_NUMBERS, "out_feature_indexes": "feature_layers", "segmentation_head": "has_masks"}
_ENCODERS = {
    "dinov2_windowed_small": {"backbone_width": 384, "backbone_depth": 12, "backbone_heads": 6},
    "dinov2_windowed_base": {"backbone_width": 768, "backbone_depth": 12, "backbone_heads": 12},
}
_IMPLEMENTED: Mapping[str, Any] = {
    "two_stage": True,
    "projector_scale": ["P4"],
    "bbox_reparam": True,
    "lite_refpoint_refine": True,
    "layer_norm": True,
    "num_channels": 3,
    "use_grouppose_keypoints": False,
    "dual_projector": False,
    "num_decoder_registers": 0,
    "backbone_lora": False,
}
# The last rows: more keypoint fields, fields derived from tensors instead, and fields of older versions.
_UNUSED = {
    *("amp", "compile", "cuda_graphs", "device", "freeze_encoder", "fused_optimizer", "gradient_checkpointing"),
    *("ia_bce_loss", "license", "model_name", "pretrain_weights"),
    *("dual_projector_kp_only", "grouppose_keypoint_dim_downscale", "inter_instance_kp_attn", "keypoint_cross_attn"),
    *("num_keypoints_per_class", "postprocess_trace_alpha"),
    *("class_names", "group_detr", "num_classes", "positional_encoding_size"),
    *("cls_loss_coef",),
}
_ALONE = 'alone, as torch.save({"model": state_dict}, PATH), and name their size when they are loaded'


def read_config(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Translate a checkpoint's "model_config" to fields of ModelSpec.

    Raises:
        InputError: A field has a value that this network can't honour; it is named.
    """
    changes: dict[str, Any] = {}
    for field, value in config.items():
        changes |= _read_field(field, value)
    return changes


def states_everything(changes: Mapping[str, Any]) -> bool:
    """Whether fields from a ModelConfig define the whole architecture."""
    return {*_NAMES.values(), "backbone_width"} <= changes.keys()


def build_spec(fields: Mapping[str, Any], where: str) -> ModelSpec:
    """Build a spec from fields that a file stated, each within its own bounds; `where` is the file, for errors.

    Raises:
        CheckpointError: They do not go together.
    """
    try:
        return ModelSpec(**fields)
    except InputError as error:
        theirs = [theirs for theirs, ours in _NAMES.items() if str(error).startswith(f"{ours} ")]
        stated = f"a {theirs[0]}" if theirs else "a network"
        raise CheckpointError(f"{where} has {stated} that can't be used: {error}") from error


def _read_field(field: Any, value: Any) -> dict[str, Any]:
    if field in _WHOLE_NUMBERS:
        check_whole(field, value, BOUNDS[_WHOLE_NUMBERS[field]])
        return {_WHOLE_NUMBERS[field]: value}
    if field == "encoder":
        if not isinstance(value, str) or value not in _ENCODERS:
            raise InputError(f"encoder must be one of {', '.join(_ENCODERS)}, got {shown(value)}.")
        return dict(_ENCODERS[value])
    if field == "segmentation_head":
        if not isinstance(value, bool):
            raise InputError(f"segmentation_head must be True or False, got {shown(value)}.")
        return {"has_masks": value}
    if field == "out_feature_indexes":
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= BOUNDS["backbone_depth"][1]:
            raise InputError(f"out_feature_indexes must be a list of layers, got {shown(value)}.")
        for layer in value:
            check_whole("each of out_feature_indexes", layer, BOUNDS["backbone_depth"])
        if sorted(set(value)) != list(value):
            raise InputError(f"out_feature_indexes must ascend, got {list(value)}.")
        return {"feature_layers": tuple(value)}
    if field in _IMPLEMENTED:
        expected = _IMPLEMENTED[field]
        if type(value) is not type(expected) or value != expected:
            raise InputError(f"{field} must be {expected}, which alone is implemented, got {shown(value)}.")
    elif field not in _UNUSED and value not in (None, False, 0, "", [], {}, ()):
        raise InputError(
            f"{shown(field)} is unknown and may change the network. If it does not, save the weights {_ALONE}."
        )
    return {}

"""Make torchvision's two-stage detectors faster, with the same detections; see `maskjet.rewrites`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from maskjet.engine.isolation import isolated
from maskjet.networks.torchvision.detector import StaticDetector, check
from maskjet.networks.torchvision.layers import rewrite_layers
from maskjet.networks.torchvision.layers.proposing import join_predictors
from maskjet.networks.torchvision.ownership import check_layers, is_torchvisions
from maskjet.spec import COCO_CLASS_NAMES

COCO_LABELS = 91
"""Number of labels of torchvision's detectors for COCO, the background included."""
_EXAMPLE_HW = (64, 96)


@isolated(inference=False)
def optimize(model: Any, *, class_names: Mapping[int, str] | None = None) -> StaticDetector:
    """Convert torchvision's Faster or Mask R-CNN to a detector that `maskjet.load` runs, on a GPU as a graph per batch.

    It makes the model's detections, with the model's own thresholds and limits. Shapes no longer depend on values, one
    kernel pools all levels, another suppresses all classes, masks are pasted as run lengths, and layers are joined
    (`networks.torchvision.layers`). The model is left as it is.

    Args:
        model: A model in eval mode, float32, without keypoints, as torchvision's builders make it. The backbone and the
            heads may be modules of your own. The parts between them are rewritten, so subclasses are refused there.
            Hooks and methods set on an instance are refused anywhere.
        class_names: Label to name; None is COCO's for 91 labels, else none.

    Returns:
        The detector, with weights of its own.

    Raises:
        UnsupportedError: The model is built in an unsupported way, which the message names.

    Examples:
        >>> import maskjet, torchvision
        >>> options = {"weights": None, "weights_backbone": None, "min_size": 64, "max_size": 96}
        >>> model = torchvision.models.detection.maskrcnn_resnet50_fpn(**options).eval()
        >>> with maskjet.load(maskjet.rewrites.optimize(model), device="cpu") as fast:
        ...     found = fast.predict(maskjet.traffic.sample(seed=3).image)
    """
    check(model)  # before anything is copied
    check_layers(model)
    ours = copy.deepcopy(model).requires_grad_(requires_grad=False)
    heads, channels = ours.roi_heads, ours.backbone.out_channels
    parts = [(ours, "backbone", (3, *_EXAMPLE_HW)), (heads, "box_head", (channels, *heads.box_roi_pool.output_size))]
    if is_torchvisions(ours.rpn.head, "rpn.RPNHead"):  # other heads may use these layers differently
        parts.append((ours.rpn.head, "conv", (channels, *_EXAMPLE_HW)))
    if heads.has_mask():
        parts.append((heads, "mask_head", (channels, *heads.mask_roi_pool.output_size)))
    for owner, name, shape in parts:
        if isinstance(part := getattr(owner, name, None), nn.Module):
            example = torch.randn(
                2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu"
            )
            setattr(owner, name, rewrite_layers(part, example.to(next(ours.parameters()).device))[0])
    ours.rpn.head = join_predictors(ours.rpn.head)
    if class_names is None and heads.box_predictor.cls_score.out_features == COCO_LABELS:
        class_names = COCO_CLASS_NAMES
    return StaticDetector(ours, class_names)

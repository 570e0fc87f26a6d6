"""torchvision's detectors without training that still find something: random weights, calibrated on images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from maskjet.extras import require

_CERTAIN = 3.0  # spread of the class logits: the best of a box stands out, as after training
_CLASSES = 6  # that are found at all: each leaves at least one detection
_GROWTH = 4.0  # most that boxes are grown, as the logarithm of the factor
_STEPS = 12  # of a bisection


def build(
    name: str, images: Sequence[torch.Tensor], *, candidates: int, survivors: int, seed: int = 0, **options: Any
) -> Any:
    """A detector that finds about so many things at its own thresholds.

    Args:
        name: Of torchvision's builder, e.g. "maskrcnn_resnet50_fpn".
        images: float32 [3, H, W], 0..1, of the kind it will see.
        candidates: Pairs of a box and a class with a score above the threshold, per image.
        survivors: Those of them that suppression leaves, per image; fewer than the model's most detections.
        seed: Same seed, same weights.
        **options: Of the builder.

    Returns:
        The model in eval mode, float32, on the images' device.

    Raises:
        MissingDependencyError: torchvision is not installed.
    """
    detection = require("torchvision.models.detection", extra="bench", purpose="A torchvision detector")
    torch.manual_seed(seed)
    model = getattr(detection, name)(weights=None, weights_backbone=None, **options).eval().to(images[0].device)
    model.requires_grad_(requires_grad=False)
    with torch.inference_mode():
        normalise_features(model, images)
        _plant_masks(model, images)
        classifier, regressor = model.roi_heads.box_predictor.cls_score, model.roi_heads.box_predictor.bbox_pred
        _rescale(classifier, _watched(classifier, lambda: model(list(images))), _CERTAIN)
        classifier.bias[1 + _CLASSES :] -= 10 * _CERTAIN
        background = _watched(classifier, lambda: model(list(images)))
        # More background, fewer candidates; larger boxes, which overlap more, fewer survivors.
        bias = classifier.bias[0].item()
        classifier.bias[0] = bias + _bisect(
            lambda more: _count_candidates(background, more, model.roi_heads.score_thresh) / len(images) > candidates,
            (-20.0, 40.0),
        )
        growth = regressor.bias.view(-1, 4)[:, 2:]
        weights = torch.tensor(model.roi_heads.box_coder.weights[2:], device=growth.device)

        def finds_more(factor: float) -> bool:
            growth.copy_((factor * weights).expand_as(growth))
            return sum(len(found["boxes"]) for found in model(list(images))) / len(images) > survivors

        growth.copy_((_bisect(finds_more, (0.0, _GROWTH)) * weights).expand_as(growth))
    return model


def normalise_features(model: Any, images: Sequence[torch.Tensor]) -> None:
    """Give frozen norms the statistics of what they see, and the proposals' scores a spread."""

    def adapt(norm: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        norm.running_mean.copy_(inputs[0].mean(dim=(0, 2, 3)))
        norm.running_var.copy_(inputs[0].var(dim=(0, 2, 3)).clamp(min=1e-6))

    norms = [module for module in model.modules() if "BatchNorm" in type(module).__name__]
    hooks = [norm.register_forward_pre_hook(adapt) for norm in norms]
    model(list(images))
    for hook in hooks:
        hook.remove()
    head = model.rpn.head
    _rescale(head.cls_logits, _watched(head.cls_logits, lambda: model(list(images))), _CERTAIN)
    _rescale(head.bbox_pred, _watched(head.bbox_pred, lambda: model(list(images))), 0.3)


def _plant_masks(model: Any, images: Sequence[torch.Tensor]) -> None:
    """Masks that are blobs, half of their box: neighbours alike, logits around zero."""
    if not model.roi_heads.has_mask():
        return
    predictor = model.roi_heads.mask_predictor
    enlarge, logits = predictor.conv5_mask, predictor.mask_fcn_logits
    enlarge.weight.copy_(enlarge.weight.mean(dim=(2, 3), keepdim=True).expand_as(enlarge.weight))
    _rescale(logits, _watched(logits, lambda: model(list(images))), 2.0)


def _watched(layer: nn.Module, run: Callable[[], object]) -> torch.Tensor:
    """What a layer returns while something runs, flat but for the last dimension."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda *call: seen.append(call[2]))
    run()
    hook.remove()
    if seen[0].ndim == 4:
        return torch.cat([each.flatten()[:, None] for each in seen])
    return torch.cat(seen)


def _rescale(layer: Any, outputs: torch.Tensor, spread: float) -> None:
    """Give a layer's outputs a mean of zero and a spread."""
    factor = spread / outputs.std()
    layer.weight.mul_(factor)
    layer.bias.sub_(outputs.mean(dim=0)).mul_(factor)


def _count_candidates(logits: torch.Tensor, more: float, threshold: float) -> int:
    shifted = logits.clone()
    shifted[:, 0] += more
    return int((shifted.softmax(dim=1)[:, 1:] > threshold).sum())


def _bisect(is_too_low: Callable[[float], bool], limits: tuple[float, float]) -> float:
    low, high = limits
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_too_low(middle) else (low, middle)
    return high

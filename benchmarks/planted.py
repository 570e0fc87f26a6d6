"""Untrained networks with a realistic number of detections: random weights, calibrated on sample images."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from maskjet import ops
from maskjet.host.extras import require
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import ModelSpec

TINY = ModelSpec(
    name="tiny",
    input_size=64,
    patch_size=8,
    windows=2,
    decoder_layers=2,
    queries=10,
    has_masks=True,
    class_logits=4,
    backbone_width=48,
    backbone_depth=4,
    backbone_heads=3,
    feature_layers=(2, 4),
    hidden_dim=32,
    self_attention_heads=4,
    cross_attention_heads=4,
    feed_forward_dim=64,
    class_names={0: "a", 2: "c"},
)
"""A network that takes milliseconds on a CPU."""
_INSIDE = 0.03
"""Share of pixels inside a mask. It gives islands with 1,000 to 5,000 bytes of RLE at 1080p, where a ragged blob 560
pixels wide has 2,300."""
_CERTAIN = 3.0  # standard deviation of the class logits: the best class of a box stands out, as after training
_CLASSES = 6  # classes that are detected at all; suppression leaves at least one detection of each
_GROWTH = 4.0  # logarithm of the largest factor by which boxes are grown
_STEPS = 12  # steps of a bisection


def plant_network(spec: ModelSpec, frames: Sequence[NDArray[np.uint8]], *, survivors: int, seed: int = 0) -> RFDETR:
    """Build a network with random weights and about `survivors` detections per frame at a threshold of 0.5.

    Args:
        spec: The architecture, with masks.
        frames: uint8 [H, W, 3] RGB, of the kind that the network will see.
        survivors: Median number of detections on these frames.
        seed: Same seed, same weights.

    Returns:
        The network in eval mode, float32, on the CPU.
    """
    network = RFDETR(spec).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict(), seed=seed)
    for learned in (network.query_feat.weight, network.refpoint_embed.weight):
        # All queries equal: otherwise detections depend on the order of tokens with almost equal scores, which in an
        # untrained network changes with the last bit.
        learned.copy_(learned[:1].clone().expand_as(learned))
    inputs = [
        ops.preprocess(torch.from_numpy(frame), size=spec.input_hw, mean=spec.mean, std=spec.std) for frame in frames
    ]
    with torch.inference_mode():
        output = network(torch.cat(inputs))
    best, where = output.logits.flatten(1).topk(survivors + 1)
    network.class_embed.bias.sub_(best[:, -2:].mean(dim=1).median())
    if network.segmentation_head is not None and output.mask_logits is not None:
        queries = where // spec.class_logits
        masks = torch.stack([image[rows] for image, rows in zip(output.mask_logits, queries, strict=True)])
        network.segmentation_head.bias.sub_(masks.flatten().sort().values[int((1 - _INSIDE) * masks.numel())])
    return network


def randomise(
    state: Mapping[str, torch.Tensor], *, seed: int = 0, class_bias: float = -5.0
) -> Mapping[str, torch.Tensor]:
    """Fill a state dict in place; a tensor's values depend on its name, shape and the seed alone.

    The weights spread widely enough that neither ranks nor signs depend on the last bit. About one query-class pair in
    a hundred has a confidence above 0.5.

    Args:
        state: A state dict in rfdetr's layout.
        seed: Same seed, same weights.
        class_bias: Mean bias of the class heads.
    """
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(("class_embed.bias", "enc_out_class_embed.0.bias")):
            values = class_bias + 0.5 * noise
        elif name.endswith("class_embed.weight"):
            values = noise * 2.2 * tensor.shape[-1] ** -0.5
        elif "bbox_embed" in name and ".layers.2." in name:
            values = 0.3 * noise * tensor.shape[-1] ** -0.5
        elif name.endswith("lambda1"):
            values = 0.5 + 0.1 * noise
        elif name == "segmentation_head.query_features_proj.weight":
            values = 0.15 * noise * tensor.shape[-1] ** -0.5  # mask logits of a few units
        elif name.startswith(("transformer.decoder.layers", "segmentation_head")) and tensor.ndim > 1:
            values = 0.5 * noise * tensor[0].numel() ** -0.5  # layer upon layer must not amplify rounding
        elif tensor.ndim == 1:  # norms and biases
            values = 0.1 * noise + (1 if name.endswith("weight") else 0)
        else:
            values = noise * tensor[0].numel() ** -0.5
        tensor.copy_(values)
    return state


def plant_detector(
    name: str, images: Sequence[torch.Tensor], *, candidates: int, survivors: int, seed: int = 0, **options: Any
) -> Any:
    """Build a torchvision detector with random weights and about `survivors` detections at its own thresholds.

    Args:
        name: Name of torchvision's builder, e.g. "maskrcnn_resnet50_fpn".
        images: float32 [3, H, W], 0..1, of the kind that the detector will see.
        candidates: Box-class pairs above the score threshold, per image.
        survivors: Candidates left by suppression, per image; fewer than the model's `detections_per_img`.
        seed: Same seed, same weights.
        **options: Arguments of the builder.

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
        classifier, regressor = model.roi_heads.box_predictor.cls_score, model.roi_heads.box_predictor.bbox_pred
        _rescale(classifier, _watched(classifier, lambda: model(list(images))), _CERTAIN)
        classifier.bias[1 + _CLASSES :] -= 10 * _CERTAIN
        background = _watched(classifier, lambda: model(list(images)))
        # A higher background score leaves fewer candidates; larger boxes overlap more and leave fewer survivors.
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
        _plant_masks(model, images)  # last: before, a small image has no detection whose masks could be seen
    return model


def normalise_features(model: Any, images: Sequence[torch.Tensor]) -> None:
    """Set the statistics of frozen norms from their inputs, and spread the scores and boxes of proposals."""

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
    """Make masks blobs that fill half of their boxes: neighbouring pixels are similar, logits have mean zero."""
    if not model.roi_heads.has_mask():
        return
    predictor = model.roi_heads.mask_predictor
    enlarge, logits = predictor.conv5_mask, predictor.mask_fcn_logits
    enlarge.weight.copy_(enlarge.weight.mean(dim=(2, 3), keepdim=True).expand_as(enlarge.weight))
    _rescale(logits, _watched(logits, lambda: model(list(images))), 2.0)


def _watched(layer: nn.Module, run: Callable[[], object]) -> torch.Tensor:
    """Collect a layer's outputs while `run` runs: [N, outputs]; those of a convolution are flattened to [N, 1]."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda *call: seen.append(call[2]))
    run()
    hook.remove()
    if seen[0].ndim == 4:
        return torch.cat([each.flatten()[:, None] for each in seen])
    return torch.cat(seen)


def _rescale(layer: Any, outputs: torch.Tensor, spread: float) -> None:
    """Scale and shift a layer so that its outputs have mean zero and standard deviation `spread`."""
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

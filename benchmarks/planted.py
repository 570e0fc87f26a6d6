"""Networks without training that still find something: random weights, calibrated on frames to be detected on."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.networks.rfdetr import RFDETR
from maskjet.spec import ModelSpec

_INSIDE = 0.03
"""Share of a mask's pixels: islands with 1,000 to 5,000 bytes of RLE at 1080p, where a ragged blob 560 pixels wide has
2,300."""


def plant_network(spec: ModelSpec, frames: Sequence[NDArray[np.uint8]], *, survivors: int, seed: int = 0) -> RFDETR:
    """A network with random weights that finds about so many instances at a threshold of 0.5.

    Args:
        spec: The architecture, with masks.
        frames: uint8 [H, W, 3] RGB, of the kind it will see.
        survivors: Detections on the median of these frames.
        seed: Same seed, same weights.

    Returns:
        The network in eval mode, float32, on the CPU.
    """
    network = RFDETR(spec).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict(), seed=seed)
    for learned in (network.query_feat.weight, network.refpoint_embed.weight):
        # All alike: otherwise what is found hangs on the order of tokens that score almost the same, which in a network
        # without training changes with the last bit.
        learned.copy_(learned[:1].clone().expand_as(learned))
    side = spec.input_size
    inputs = [
        ops.preprocess(torch.from_numpy(frame), size=(side, side), mean=spec.mean, std=spec.std) for frame in frames
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

    The weights spread widely enough that neither ranks nor signs hang on the last bit. About one query-class pair in a
    hundred ends above a confidence of 0.5.

    Args:
        state: In rfdetr's layout.
        seed: Same seed, same weights.
        class_bias: Of the class heads, on average.
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

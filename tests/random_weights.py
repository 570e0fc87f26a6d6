"""Random weights in rfdetr's layout, spread widely enough that neither ranks nor signs hang on the last bit."""

import zlib

import torch


def randomise(state, *, seed=0, class_bias=-5.0):
    """Fill a state dict in place; a tensor's values depend on its name, shape and the seed alone.

    About one query-class pair in a hundred ends above a confidence of 0.5.
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

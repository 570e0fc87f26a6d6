"""The mask head: one mask logit per query and pixel of the stride-4 grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet.spec import ModelSpec


class _ImageBlock(nn.Module):
    """A depthwise convolution and a pointwise one around a norm, with a shortcut (ConvNeXt's, without the MLP)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, channels)

    def forward(self, image: Tensor) -> Tensor:
        pixels = self.dwconv(image).permute(0, 2, 3, 1)
        pixels = F.gelu(self.pwconv1(self.norm(pixels)))
        return image + pixels.permute(0, 3, 1, 2)


class _QueryBlock(nn.Module):
    """A feed-forward block with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_in = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, queries: Tensor) -> Tensor:
        output: Tensor = queries + self.layers(self.norm_in(queries))
        return output


class MaskHead(nn.Module):
    """Upsample the feature map, refine it, and take its inner product with every query."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_dim
        self.mask_hw = spec.mask_hw
        self.blocks = nn.ModuleList(_ImageBlock(width) for _ in range(spec.decoder_layers))
        self.spatial_features_proj = nn.Conv2d(width, width, kernel_size=1)
        self.query_features_block = _QueryBlock(width)
        self.query_features_proj = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor, queries: Tensor) -> Tensor:
        """Mask logits [B, Q, *mask_hw], positive inside, of the projector's map and the last decoder layer's queries.

        Args:
            features: [B, hidden_dim, *grid_hw].
            queries: [B, Q, hidden_dim].
        """
        # Channels-last, the layout of the blocks' norms and pointwise convolutions, so that nothing is transposed.
        features = features.contiguous(memory_format=torch.channels_last)
        image = F.interpolate(features, size=self.mask_hw, mode="bilinear", align_corners=False)
        for block in self.blocks:
            image = block(image)
        project = self.spatial_features_proj  # pointwise, so a matrix product, which is faster than a convolution
        pixels = F.linear(image.permute(0, 2, 3, 1).flatten(1, 2), project.weight.flatten(1), project.bias)
        queries = self.query_features_proj(self.query_features_block(queries))
        masks: Tensor = queries @ pixels.transpose(1, 2) + self.bias
        return masks.view(*queries.shape[:2], *self.mask_hw)

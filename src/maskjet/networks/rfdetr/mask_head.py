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

    def forward(self, image: Tensor, *, is_nchw: bool = False) -> Tensor:
        """Refine an image; in NCHW nothing is transposed, and the norm is arithmetic over channels."""
        if is_nchw:
            return image + self._in_nchw(image)
        pixels = self.dwconv(image).permute(0, 2, 3, 1)
        pixels = F.gelu(self.pwconv1(self.norm(pixels)))
        return image + pixels.permute(0, 3, 1, 2)

    def _in_nchw(self, image: Tensor) -> Tensor:
        pixels = self.dwconv(image)
        centred = pixels - pixels.mean(1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(1, keepdim=True) + self.norm.eps)
        weight = self.pwconv1.weight  # with those of the norm folded in
        bias = self.pwconv1.bias + weight @ self.norm.bias
        pixels = F.conv2d(centred, (weight * self.norm.weight)[:, :, None, None]) * scale + bias[:, None, None]
        return F.gelu(pixels)


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
        # Other runtimes keep images in NCHW: transposes would take a fifth of the network's time on a CPU. In float16
        # the norm as arithmetic would be rounded too much. PyTorch has channels last, as its norms and products.
        is_nchw = _is_exported() and features.dtype == torch.float32
        project = self.spatial_features_proj
        if not is_nchw:
            features = features.contiguous(memory_format=torch.channels_last)
        image = F.interpolate(features, size=self.mask_hw, mode="bilinear", align_corners=False)
        for block in self.blocks:
            image = block(image, is_nchw=is_nchw)
        if is_nchw:
            pixels = project(image).flatten(2)
        else:  # a matrix product, which is faster in PyTorch than a pointwise convolution
            rows = image.permute(0, 2, 3, 1).flatten(1, 2)
            pixels = F.linear(rows, project.weight.flatten(1), project.bias).transpose(1, 2)
        queries = self.query_features_proj(self.query_features_block(queries))
        masks: Tensor = queries @ pixels + self.bias
        return masks.view(*queries.shape[:2], *self.mask_hw)


def _is_exported() -> bool:
    """Whether this call is traced for another runtime."""
    return bool(torch.jit.is_tracing() or torch.compiler.is_exporting())  # type: ignore[attr-defined, no-untyped-call]

"""The vision transformer: DINOv2 blocks with windowed attention, one feature map after each of some layers.

Parameter names follow rfdetr's checkpoints, hence the nesting.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet.spec import ModelSpec

_EPS = 1e-6  # of DINOv2's layer norms


class _Embeddings(nn.Module):
    """Pixels to tokens: patches with their positions, split into windows, a class token at the head of each."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.backbone_width
        self.windows, self.grid = spec.windows, spec.grid
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position_embeddings = nn.Parameter(torch.zeros(1, spec.grid**2 + 1, width))
        self.patch_embeddings = nn.ModuleDict(
            {"projection": nn.Conv2d(3, width, kernel_size=spec.patch_size, stride=spec.patch_size)}
        )

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch_embeddings["projection"](images).flatten(2).transpose(1, 2)
        patches = patches + self.position_embeddings[:, 1:]
        patches = split_windows(patches, self.grid, self.windows)
        cls_token = self.cls_token + self.position_embeddings[:, :1]
        return torch.cat((cls_token.expand(patches.shape[0], -1, -1), patches), dim=1)


def split_windows(tokens: Tensor, grid: int, windows: int) -> Tensor:
    """[B, grid², C] to [B × windows², (grid/windows)², C], windows of one image row by row."""
    batch, _, width = tokens.shape
    side = grid // windows
    tokens = tokens.view(batch, windows, side, windows, side, width).transpose(2, 3)
    return tokens.reshape(batch * windows**2, side**2, width)


def join_windows(tokens: Tensor, grid: int, windows: int) -> Tensor:
    """The inverse of `split_windows`, as an image: [B × windows², (grid/windows)², C] to [B, C, grid, grid]."""
    batch, _, width = tokens.shape
    side = grid // windows
    tokens = tokens.view(batch // windows**2, windows, windows, side, side, width)
    return tokens.permute(0, 5, 1, 3, 2, 4).reshape(-1, width, grid, grid)


class _Attention(nn.Module):
    """Multi-head self-attention; `attention.query` and `output.dense` are the checkpoints' names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.output = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        query, key, value = (
            self.attention[name](tokens).view(batch, length, self.heads, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        context = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.output["dense"](context.transpose(1, 2).reshape(batch, length, width))
        return output


class _LayerScale(nn.Module):
    """A learned factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lambda1 = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens * self.lambda1


class _MLP(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.fc2(F.gelu(self.fc1(tokens)))
        return output


class _Layer(nn.Module):
    """One block; the attention sees one window or, if `is_global`, all windows of an image together."""

    def __init__(self, spec: ModelSpec, *, is_global: bool) -> None:
        super().__init__()
        width = spec.backbone_width
        self.joined_windows = spec.windows**2 if is_global else 1
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attention = _Attention(width, spec.backbone_heads)
        self.layer_scale1 = _LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = _MLP(width)
        self.layer_scale2 = _LayerScale(width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        joined = tokens.view(batch // self.joined_windows, self.joined_windows * length, width)
        attended = self.attention(self.norm1(joined)).view(batch, length, width)
        tokens = tokens + self.layer_scale1(attended)
        output: Tensor = tokens + self.layer_scale2(self.mlp(self.norm2(tokens)))
        return output


class _Transformer(nn.Module):
    """Embeddings, layers and the norm that all feature maps share."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.feature_layers = spec.feature_layers
        self.grid, self.windows = spec.grid, spec.windows
        self.embeddings = _Embeddings(spec)
        # rfdetr counts feature layers from 1 and its global layers from 0, with the same numbers: global attention
        # comes one layer after each feature map.
        layers = (_Layer(spec, is_global=index in spec.feature_layers) for index in range(max(spec.feature_layers)))
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.layernorm = nn.LayerNorm(spec.backbone_width, eps=_EPS)

    def forward(self, images: Tensor) -> list[Tensor]:
        tokens = self.embeddings(images)
        features = []
        layers = cast(nn.ModuleList, self.encoder["layer"])
        for done, layer in enumerate(layers, start=1):
            tokens = layer(tokens)
            if done in self.feature_layers:
                patches = self.layernorm(tokens)[:, 1:]
                features.append(join_windows(patches, self.grid, self.windows))
        return features


class Backbone(nn.Module):
    """Images to feature maps, one per entry of `spec.feature_layers`."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.encoder = _Transformer(spec)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Run the transformer.

        Args:
            images: [B, 3, S, S], S = spec.input_size, normalised.

        Returns:
            Feature maps [B, backbone_width, grid, grid], in the order of `spec.feature_layers`.
        """
        features: list[Tensor] = self.encoder(images)
        return features

"""The vision transformer: DINOv2 blocks with windowed attention, one feature map after each of some layers.

Parameter names follow rfdetr's checkpoints, hence the nesting.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet.spec import ModelSpec

_EPS = 1e-6  # epsilon of DINOv2's layer norms
_PROJECTIONS = ("query", "key", "value")


class _Embeddings(nn.Module):
    """Pixels to tokens: patches with their positions, split into windows with a class token each."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.backbone_width
        self.windows, self.grid_hw = spec.windows, spec.grid_hw
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position_embeddings = nn.Parameter(torch.zeros(1, spec.tokens + 1, width))
        self.patch_embeddings = nn.ModuleDict(
            {"projection": nn.Conv2d(3, width, kernel_size=spec.patch_size, stride=spec.patch_size)}
        )

    def forward(self, images: Tensor) -> Tensor:
        project = cast(nn.Conv2d, self.patch_embeddings["projection"])
        side = project.kernel_size[0]
        # A convolution whose stride is its size is a matrix product; as a convolution it took 39 µs (H200, fp16).
        rows, columns = self.grid_hw
        pixels = images.view(images.shape[0], 3, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
        patches = F.linear(pixels.reshape(-1, rows * columns, 3 * side**2), project.weight.flatten(1), project.bias)
        # A row of zeros per window, to which the class token is added as the positions are to patches: TensorRT 8.6
        # can't concatenate a token expanded to a free batch.
        patches = F.pad(split_windows(patches, self.grid_hw, self.windows), (0, 0, 1, 0))
        positions = split_windows(self.position_embeddings[:, 1:], self.grid_hw, self.windows)
        cls_token = self.cls_token + self.position_embeddings[:, :1]
        added = torch.cat((cls_token.expand(positions.shape[0], -1, -1), positions), dim=1)
        return (patches.view(-1, *added.shape) + added).view(patches.shape)


def split_windows(tokens: Tensor, grid_hw: tuple[int, int], windows: int) -> Tensor:
    """Split tokens [B, h × w, C] of a grid into windows [B × windows², h × w / windows², C], an image's row by row."""
    batch, _, width = tokens.shape
    rows, columns = (side // windows for side in grid_hw)
    tokens = tokens.view(batch, windows, rows, windows, columns, width).transpose(2, 3)
    return tokens.reshape(batch * windows**2, rows * columns, width)


def join_windows(tokens: Tensor, grid_hw: tuple[int, int], windows: int) -> Tensor:
    """The inverse of `split_windows`, as an image: [B × windows², h × w / windows², C] to [B, C, h, w]."""
    batch, _, width = tokens.shape
    rows, columns = (side // windows for side in grid_hw)
    tokens = tokens.view(batch // windows**2, windows, windows, rows, columns, width)
    return tokens.permute(0, 5, 1, 3, 2, 4).reshape(-1, width, *grid_hw)


class _Attention(nn.Module):
    """Multi-head self-attention, its three projections as one product.

    State dicts hold three projections, with the checkpoints' names: `attention.query.weight` and so on.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.ModuleDict({"dense": nn.Linear(width, width)})
        self.register_state_dict_post_hook(_split_projections)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_join_projections)  # type: ignore[no-untyped-call]

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        projected = self.projections(tokens).view(batch, length, 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind()
        context = F.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.output["dense"](context.transpose(1, 2).reshape(batch, length, width))
        return output


def _split_projections(_module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for kind in ("weight", "bias"):
        parts = state.pop(f"{prefix}projections.{kind}").chunk(3)
        for name, part in zip(_PROJECTIONS, parts, strict=True):
            state[f"{prefix}attention.{name}.{kind}"] = part


def _join_projections(_module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for kind in ("weight", "bias"):
        names = [f"{prefix}attention.{name}.{kind}" for name in _PROJECTIONS]
        if all(name in state for name in names):
            state[f"{prefix}projections.{kind}"] = torch.cat([state.pop(name) for name in names])


class _Layer(nn.Module):
    """One block; the attention sees one window or, if `is_global`, all windows of an image together."""

    def __init__(self, spec: ModelSpec, *, is_global: bool) -> None:
        super().__init__()
        width = spec.backbone_width
        self.joined_windows = spec.windows**2 if is_global else 1
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.attention = _Attention(width, spec.backbone_heads)
        self.layer_scale1 = nn.ParameterDict({"lambda1": torch.ones(width)})
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=nn.Linear(width, 4 * width), gelu=nn.GELU(), fc2=nn.Linear(4 * width, width))
        )
        self.layer_scale2 = nn.ParameterDict({"lambda1": torch.ones(width)})

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        joined = tokens.view(batch // self.joined_windows, self.joined_windows * length, width)
        attended = self.attention(self.norm1(joined)).view(batch, length, width)
        tokens = tokens + attended * self.layer_scale1["lambda1"]
        output: Tensor = tokens + self.mlp(self.norm2(tokens)) * self.layer_scale2["lambda1"]
        return output


class _Transformer(nn.Module):
    """Embeddings, layers and the norm that all feature maps share."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.feature_layers = spec.feature_layers
        self.grid_hw, self.windows = spec.grid_hw, spec.windows
        self.embeddings = _Embeddings(spec)
        # rfdetr counts feature layers from 1 and its global layers from 0, with the same numbers: global attention
        # comes one layer after each feature map.
        layers = (_Layer(spec, is_global=index in spec.feature_layers) for index in range(max(spec.feature_layers)))
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.layernorm = nn.LayerNorm(spec.backbone_width, eps=_EPS)

    def forward(self, images: Tensor) -> list[Tensor]:
        tokens = self.embeddings(images)
        features = []
        for done, layer in enumerate(cast(nn.ModuleList, self.encoder["layer"]), start=1):
            tokens = layer(tokens)
            if done in self.feature_layers:
                features.append(join_windows(self.layernorm(tokens)[:, 1:], self.grid_hw, self.windows))
        return features


class Backbone(nn.Sequential):
    """Normalised images [B, 3, *spec.input_hw] to a list of feature maps [B, backbone_width, *grid_hw].

    There is one per entry of `spec.feature_layers`, in that order.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(OrderedDict(encoder=_Transformer(spec)))

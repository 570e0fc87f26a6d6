"""The projector: the backbone's feature maps to one map of hidden_dim channels, through a C2f block (YOLOv8's)."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet.spec import ModelSpec


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image [B, C, H, W]."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, image: Tensor) -> Tensor:
        """Normalise every pixel over its channels."""
        return super().forward(image.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Conv(nn.Module):
    """Convolution, channel norm (named `bn` in the checkpoints), SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, eps: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        self.bn = ChannelNorm(outputs, eps)

    def forward(self, image: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(image.contiguous())))


class _C2f(nn.Module):
    """Split the channels, send one half through a chain of bottlenecks, fuse every intermediate.

    A bottleneck is two 3×3 convolutions in a row.
    """

    def __init__(self, inputs: int, outputs: int, eps: float, blocks: int = 3) -> None:
        super().__init__()
        half = outputs // 2
        self.cv1 = _Conv(inputs, 2 * half, 1, eps)
        self.cv2 = _Conv((2 + blocks) * half, outputs, 1, eps)
        self.m = nn.ModuleList(
            nn.Sequential(OrderedDict(cv1=_Conv(half, half, 3, eps), cv2=_Conv(half, half, 3, eps)))
            for _ in range(blocks)
        )

    def forward(self, image: Tensor) -> Tensor:
        parts = list(self.cv1(image).chunk(2, dim=1))
        for block in self.m:
            parts.append(block(parts[-1]))
        output: Tensor = self.cv2(torch.cat(parts, dim=1))
        return output


class Projector(nn.Module):
    """Fuse feature maps [B, backbone_width, h, w] into one [B, hidden_dim, h, w]."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        fuse = _C2f(spec.backbone_width * len(spec.feature_layers), spec.hidden_dim, spec.projector_eps)
        self.stages = nn.ModuleList([nn.Sequential(fuse, ChannelNorm(spec.hidden_dim))])

    def forward(self, features: list[Tensor]) -> Tensor:
        """Fuse the feature maps into one."""
        output: Tensor = self.stages[0](torch.cat(features, dim=1))
        return output

"""One convolution instead of the last two of torchvision's RPNHead, which read the same features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from maskjet.networks.torchvision.layers.matching import is_pixelwise
from maskjet.networks.torchvision.ownership import is_torchvisions

_CHANNELS = 8  # channels that a float16 convolution writes at once; full multiples are faster


class JoinedRPNHead(nn.Module):
    """Scores and codes of the anchors, as torchvision's RPNHead, whose weights are taken, returns them."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        scores, codes = head.cls_logits, head.bbox_pred
        self.conv, self._fields = head.conv, (scores.out_channels, codes.out_channels)
        filled, channels = sum(self._fields), -(-sum(self._fields) // _CHANNELS) * _CHANNELS
        weight = scores.weight.new_zeros(channels, *scores.weight.shape[1:])
        weight[:filled] = torch.cat((scores.weight, codes.weight))
        bias = scores.bias.new_zeros(channels)
        bias[:filled] = torch.cat((scores.bias, codes.bias))
        self.weight, self.bias = (nn.Parameter(each, requires_grad=False) for each in (weight, bias))

    def forward(self, features: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Scores [B, A, H, W] and codes [B, 4 A, H, W] of each level [B, C, H, W]."""
        scores, codes = self._fields
        found = [nn.functional.conv2d(self.conv(level), self.weight, self.bias) for level in features]
        return [each[:, :scores] for each in found], [each[:, scores : scores + codes] for each in found]


def join_predictors(head: nn.Module) -> nn.Module:
    """The head with its last two convolutions joined, or the head itself if it is not torchvision's."""
    parts = [getattr(head, name, None) for name in ("conv", "cls_logits", "bbox_pred")]
    is_known = is_torchvisions(head, "rpn.RPNHead") and all(map(is_pixelwise, parts[1:]))
    return JoinedRPNHead(head) if is_known else head

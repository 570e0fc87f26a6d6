"""Convolution, bias, residual and ReLU as one call of cuDNN: one pass over the features instead of up to four.

Pattern:     conv(x) → relu, or conv(x) + y → relu
Replacement: ConvolutionReLU(x), or ConvolutionReLU(x, y)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from maskjet.networks.torchvision.layers.matching import replace_by_module, sole_convolution, terms_of
from maskjet.networks.torchvision.layers.rewriting import Rewrite, called_module

_SERVED = (torch.float32, torch.float16)  # dtypes that cuDNN supports in one call
_RELUS = (F.relu, torch.relu, torch.relu_)


@torch.library.custom_op("maskjet::convolution_relu", mutates_args=())
def _convolution_relu(
    features: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    features, weight = _channels_last(features), _channels_last(weight)
    if torch.backends.cudnn.is_acceptable(features):  # type: ignore[no-untyped-call]
        if added is None:
            return torch.cudnn_convolution_relu(features, weight, bias, stride, padding, dilation, 1)
        # cuDNN reads the added tensor without checking its shape.
        if added.shape == _shape(features, weight, stride, padding, dilation):
            options = (bias, stride, padding, dilation, 1)
            return torch.cudnn_convolution_add_relu(features, weight, _channels_last(added), 1.0, *options)
    return _channels_last(_unfused(features, weight, bias, added, stride, padding, dilation))


@_convolution_relu.register_fake
def _(*given: Any) -> torch.Tensor:
    return _channels_last(_unfused(*given))


def _channels_last(features: torch.Tensor) -> torch.Tensor:
    """Convert to channels-last, with which cuDNN is fastest."""
    return features.contiguous(memory_format=torch.channels_last)


def _unfused(
    features: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    added: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """`_convolution_relu` as separate operations, which a compiler can fuse."""
    found = F.conv2d(features, weight, bias, stride, padding, dilation)
    return (found if added is None else found + added).relu()


def _shape(
    features: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    sides = zip(features.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    return len(features), len(weight), *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)


class ConvolutionReLU(nn.Module):
    """relu(convolution(features) + added), with the weights of a layer without groups, padded with zeros."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert not isinstance(convolution.padding, str)
        self.weight, self.bias = convolution.weight, convolution.bias
        self._options = ([*convolution.stride], [*convolution.padding], [*convolution.dilation])

    def forward(self, features: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Map features [B, C, H, W] to [B, D, h, w], with which `added` must broadcast."""
        is_served = features.is_cuda and features.dtype in _SERVED
        call = torch.ops.maskjet.convolution_relu if is_served else _unfused
        found: torch.Tensor = call(features, self.weight, self.bias, added, *self._options)
        return found


def _anchors(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        is_called = (node.op == "call_function" and node.target in _RELUS) or (
            node.op == "call_method" and node.target in ("relu", "relu_")
        )
        if is_called or isinstance(called_module(node), nn.ReLU):
            yield node


def _match(relu: Node) -> Callable[[], None] | None:
    before = relu.args[0]
    assert isinstance(before, Node)
    if _is_convolution(before):
        return partial(_replace, [relu, before])
    terms = terms_of(before)
    if terms is None or len(before.users) != 1:
        return None
    term = next(filter(_is_convolution, terms), None)
    return None if term is None else partial(_replace, [relu, before, term])


def _is_convolution(node: Node) -> bool:
    module = sole_convolution(node)
    if module is None or isinstance(module.padding, str):
        return False
    return module.groups == 1 and module.padding_mode == "zeros"


def _replace(nodes: Sequence[Node]) -> None:
    """Replace a ReLU, the sum before it if there is one, and a convolution."""
    *sums, last = nodes[1:]
    convolution = called_module(last)
    assert isinstance(convolution, nn.Conv2d)
    name = f"{last.target}".replace(".", "_") + "_relu"
    added = [term for each in sums for term in each.all_input_nodes if term is not last]
    replace_by_module(nodes, ConvolutionReLU(convolution), name, [*last.all_input_nodes, *added])


FUSE = Rewrite("fuse_relus", _anchors, _match)
"""Fuses a convolution, its bias, an added tensor and a ReLU."""

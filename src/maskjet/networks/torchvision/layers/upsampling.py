"""Add a coarser pyramid level to a finer one without storing the enlarged tensor.

Pattern:     fine + interpolate(coarse, size=fine.shape[-2:], mode="nearest")
Replacement: AddUpsampled(fine, coarse)

If the finer level comes from a convolution that nothing else reads, the bias of the convolution is added to the coarser
level instead, which has a quarter of the pixels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from maskjet.networks.torchvision.layers.matching import replace_by_module, sole_convolution, terms_of
from maskjet.networks.torchvision.layers.rewriting import Rewrite, calls


class AddUpsampled(nn.Module):
    """fine + interpolate(coarse + bias, size=fine.shape[-2:], mode="nearest"), where the bias, [C], may be None."""

    def __init__(self, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, fine: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        """Add [B, C, h, w] to [B, C, H, W]; if H, W are twice h, w, no enlarged tensor is stored."""
        if self.bias is not None:
            coarse = coarse + self.bias[:, None, None]
        height, width = coarse.shape[2:]
        if fine.shape[2:] != (2 * height, 2 * width):
            return fine + F.interpolate(coarse, size=fine.shape[2:], mode="nearest")
        pairs = fine.view(*fine.shape[:2], height, 2, width, 2)
        return (pairs + coarse[:, :, :, None, :, None]).flatten(4, 5).flatten(2, 3)


def _anchors(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if calls(node, F.interpolate))


def _match(interpolate: Node) -> Callable[[], None] | None:
    options = {name: given for name, given in interpolate.kwargs.items() if given not in (None, False)}
    if len(interpolate.args) != 1 or options.keys() != {"size", "mode"} or options["mode"] != "nearest":
        return None
    if len(interpolate.users) != 1:
        return None
    (added,) = interpolate.users
    terms = terms_of(added)
    if terms is None:
        return None
    fine = terms[0] if terms[1] is interpolate else terms[1]
    shape = _shape_of(options["size"])
    if shape is None or shape.args[0] is not fine:
        return None
    is_read_here = fine.users.keys() == {added, shape} and len(shape.users) == 1
    bias_of = sole_convolution(fine, users=2) if is_read_here else None

    def replace() -> None:
        bias = None
        if bias_of is not None:
            bias, bias_of.bias = bias_of.bias, None
        made, given = AddUpsampled(bias), [fine, *interpolate.all_input_nodes[:1]]
        replace_by_module([added, interpolate], made, f"add_{interpolate.name}", given)

    return replace


def _shape_of(size: object) -> Node | None:
    """The node x.shape of a size node x.shape[-2:] that has one user; else None."""
    if not isinstance(size, Node) or not calls(size, operator.getitem) or len(size.users) != 1:
        return None
    shape, part = size.args
    if not isinstance(shape, Node) or not calls(shape, getattr) or shape.args[1] != "shape":
        return None
    return shape if part == slice(-2, None) else None


ADD = Rewrite("add_upsampled", _anchors, _match)
"""Adds coarser levels without enlarging them; results change by rounding."""

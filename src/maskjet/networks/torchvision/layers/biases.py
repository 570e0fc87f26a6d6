"""One bias instead of two for convolutions that are added, which saves a pass over the features.

Pattern:     conv(x) + conv(y), both with a bias and read by nothing else
Replacement: the same, with the sum of both biases in the first convolution
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.fx import Graph, Node

from maskjet.networks.torchvision.layers.matching import sole_convolution, terms_of
from maskjet.networks.torchvision.layers.rewriting import Rewrite


def _anchors(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if terms_of(node) is not None)


def _match(added: Node) -> Callable[[], None] | None:
    first, second = (sole_convolution(term) for term in terms_of(added) or ())
    if first is None or second is None or first.out_channels != second.out_channels:
        return None
    if first.bias is None or second.bias is None:
        return None
    kept, joined = first.bias, second.bias

    def replace() -> None:
        kept.data = kept.data + joined.data
        second.bias = None

    return replace


JOIN = Rewrite("join_biases", _anchors, _match)
"""Joins the biases of two added convolutions; results change by rounding."""

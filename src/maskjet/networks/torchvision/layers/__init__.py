"""Rewrites that fuse a network's layers, for fewer passes over the features.

Each is a pattern with its replacement and its guard, on the graph that `torch.fx` traces of a module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from maskjet.host.process import convolutions_in_tf32
from maskjet.networks.torchvision.layers.biases import JOIN
from maskjet.networks.torchvision.layers.folding import FOLD, is_norm
from maskjet.networks.torchvision.layers.fusing import FUSE
from maskjet.networks.torchvision.layers.rewriting import Rewrite
from maskjet.networks.torchvision.layers.upsampling import ADD

REWRITES: tuple[Rewrite, ...] = (FOLD, JOIN, FUSE, ADD)
"""All rewrites, in order of application: folding first, since it exposes convolutions to the others."""
_MOST_DIFFERENCE = 1e-3  # relative to the largest value; rounding alone causes 1e-5


class _Tracer(torch.fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return is_norm(module) or super().is_leaf_module(module, name)


@torch.no_grad()
def rewrite_layers(module: nn.Module, example: torch.Tensor) -> tuple[nn.Module, dict[str, int]]:
    """Apply `REWRITES` to a copy of a module.

    Args:
        module: A module in eval mode, float32, that returns features or a dict of them.
        example: Features on which module and trace are compared, as a trace misses side effects of Python, such as
            in-place changes of a tensor that is read again.

    Returns:
        The replacement, and how often each rewrite matched; the module itself and nothing if it can't be traced, or
        if its trace computes something else.
    """
    with convolutions_in_tf32(is_allowed=False):
        try:
            expected = module(example.clone())
            traced = torch.fx.GraphModule(copy.deepcopy(module), _Tracer().trace(module))
            traced.graph.eliminate_dead_code()  # remove the tracer's unused parameter reads
            traced.recompile()
        except Exception:  # user code may raise anything on a proxy or an example
            return module, {}
        matches = {rewrite.name: rewrite.apply(traced) for rewrite in REWRITES}
        traced.graph.eliminate_dead_code()
        traced.recompile()
        traced.delete_all_unused_submodules()
        return (traced, matches) if _is_close(traced(example.clone()), expected) else (module, {})


def _is_close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        return actual.keys() == expected.keys() and all(_is_close(actual[name], expected[name]) for name in expected)
    if not isinstance(expected, torch.Tensor):
        return False
    limit = _MOST_DIFFERENCE * float(expected.abs().max())
    return torch.allclose(actual, expected, rtol=0, atol=limit, equal_nan=True)

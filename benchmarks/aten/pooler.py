"""Multi-level RoIAlign without scattering each level's boxes into a tensor of zeros.

Pattern:     levels = the level of each box; zeros(boxes, channels, h, w); then per level
             eq(levels, level) → where → getitem → index(boxes) → roi_align → to → index_put_(into the zeros)
Replacement: `GATHER`: the same up to roi_align, then concat + argsort + one gather.
             `PICK`: one operator in which each box picks its level, `maskjet::roi_align_levels`.

A box without a level (from NaN coordinates) gets zeros in both, as in the pattern.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torchvision  # noqa: F401  # defines torchvision::roi_align
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from benchmarks.aten.nodes import arguments, checks_of, erase
from maskjet.networks.torchvision.layers.rewriting import Rewrite, calls

_aten = torch.ops.aten
_ROI_ALIGN = torch.ops.torchvision.roi_align.default


@torch.library.custom_op("maskjet::roi_align_levels", mutates_args=())
def roi_align_levels(
    features: Sequence[torch.Tensor],
    rois: torch.Tensor,
    levels: torch.Tensor,
    scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> torch.Tensor:
    """Pool each box from the feature map of its level, as torchvision's `roi_align` does from one.

    Args:
        features: Feature map of each level, [B, C, H, W], all of one dtype.
        rois: [N, 5]: index of the image in the batch, then xyxy in pixels of the input.
        levels: int64 [N]: index into features of each box's level; boxes with an invalid index pool zeros.
        scales: Scale of each level, from pixels of the input to those of the feature map.
        pooled_height: Rows of the result.
        pooled_width: Columns of the result.
        sampling_ratio: Samples per bin along each side; adapts to the size of the box if not positive.
        aligned: Whether to shift boxes by half a pixel.

    Returns:
        [N, C, pooled_height, pooled_width].
    """
    pooled = features[0].new_zeros((len(rois), features[0].shape[1], pooled_height, pooled_width))
    for level, (feature, scale) in enumerate(zip(features, scales, strict=True)):
        chosen = (levels == level).nonzero()[:, 0]
        if len(chosen):
            boxes = rois[chosen]
            part = _ROI_ALIGN(feature, boxes, scale, pooled_height, pooled_width, sampling_ratio, aligned)
            pooled.index_copy_(0, chosen, part)
    return pooled


@roi_align_levels.register_fake
def _roi_align_levels_fake(
    features: Sequence[torch.Tensor],
    rois: torch.Tensor,
    levels: torch.Tensor,  # noqa: ARG001
    scales: Sequence[float],  # noqa: ARG001
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,  # noqa: ARG001
    aligned: bool,  # noqa: ARG001
) -> torch.Tensor:
    return features[0].new_empty((rois.shape[0], features[0].shape[1], pooled_height, pooled_width))


@dataclass(frozen=True)
class _Level:
    """One level: one iteration of the loop."""

    number: int
    """Number of the level, with which the boxes' levels are compared."""
    levels: Node
    rois: Node
    feature: Node
    scale: float
    options: tuple[Any, ...]
    """Height, width, sampling ratio and alignment of roi_align."""
    chosen: Node
    """Indices of the level's boxes."""
    pooled: Node
    """Pooled features of the level's boxes, in the zeros' dtype."""
    nodes: tuple[Node, ...]
    """All nodes of the iteration except index_put_, in the graph's order."""


@dataclass(frozen=True)
class _Loop:
    """A matched loop over the levels."""

    levels: tuple[_Level, ...]
    writes: tuple[Node, ...]
    """The chain: zeros, then the index_put_ of each level."""

    @property
    def first(self) -> _Level:
        return self.levels[0]


def _anchors(graph: Graph) -> Iterator[Node]:
    zeros = (node for node in graph.nodes if calls(node, _aten.zeros.default))
    return (node for node in zeros if any(calls(user, _aten.index_put_.default) for user in node.users))


def _next_write(written: Node) -> Node | None:
    """The index_put_ that writes into a node and is its only user; None if there is none."""
    users = _users(written)
    is_write = len(users) == 1 and calls(users[0], _aten.index_put_.default) and users[0].args[0] is written
    return users[0] if is_write else None


def _users(node: Node, *known: Node) -> list[Node]:
    """Users of a node, except known ones and those that only assert its size or dtype."""
    ignored = {*checks_of(node), *known}
    return [user for user in node.users if user not in ignored]


def _match(zeros: Node, replace: Callable[[Graph, _Loop], None]) -> Callable[[], None] | None:
    writes, levels = [zeros], list[_Level]()
    while (write := _next_write(writes[-1])) is not None:
        level = _match_level(write)
        if level is None:
            return None
        writes.append(write)
        levels.append(level)
    if not levels or [level.number for level in levels] != list(range(len(levels))):
        return None
    if len({(level.levels, level.rois, level.options) for level in levels}) > 1 or not _is_whole(zeros, levels):
        return None
    return partial(replace, zeros.graph, _Loop(tuple(levels), tuple(writes)))


def _is_whole(zeros: Node, levels: Sequence[_Level]) -> bool:
    """Whether the zeros have the size and dtype of `roi_align` of all boxes."""
    first, written = levels[0], zeros.meta["val"]
    features = [level.feature.meta["val"] for level in levels]
    # Sizes may be symbolic, and comparing them would demand their values; equal expressions are equal sizes.
    shape = [str(size) for size in written.shape]
    pooled = [str(size) for size in (first.rois.meta["val"].shape[0], features[0].shape[1], *first.options[:2])]
    return shape == pooled and all(feature.dtype == written.dtype for feature in features)


def _match_level(write: Node) -> _Level | None:
    """Match one level, backwards from its index_put_; None if it does not match."""
    given = arguments(write)
    pooled, indices = given["values"], given["indices"]
    is_cast = calls(pooled, _aten.to.dtype)
    aligned = pooled.args[0] if is_cast else pooled
    if given["accumulate"] or len(indices) != 1 or not calls(aligned, _ROI_ALIGN):
        return None
    align = arguments(aligned)
    chosen, index = indices[0], align["rois"]
    if not calls(index, _aten.index.Tensor) or index.args[1] != [chosen]:
        return None
    if not calls(chosen, operator.getitem) or not calls(where := chosen.args[0], _aten.where.default):
        return None
    equal = where.args[0]
    if not calls(equal, _aten.eq.Scalar):
        return None
    nodes = (equal, where, chosen, index, aligned, *([pooled] if is_cast else []))
    if any(_users(node, *nodes, write) for node in nodes):
        return None
    return _Level(
        number=equal.args[1],
        levels=equal.args[0],
        rois=index.args[0],
        feature=align["input"],
        scale=align["spatial_scale"],
        options=(align["pooled_height"], align["pooled_width"], align["sampling_ratio"], align["aligned"]),
        chosen=chosen,
        pooled=pooled,
        nodes=nodes,
    )


def _replace_by_gather(graph: Graph, loop: _Loop) -> None:
    last = loop.writes[-1]
    tracer = GraphAppendingTracer(graph)
    with graph.inserting_before(last):
        gathered = _gather(
            Proxy(loop.first.levels, tracer),
            [Proxy(level.chosen, tracer) for level in loop.levels],
            [Proxy(level.pooled, tracer) for level in loop.levels],
        )
    _take_over(graph, last, gathered.node)
    erase(graph, reversed(loop.writes))


def _gather(levels: Any, chosen: list[Any], pooled: list[Any]) -> Any:
    """Reorder the levels' pooled rows to the order of the boxes; traced into the graph."""
    outside = _aten.bitwise_or.Tensor(_aten.lt.Scalar(levels, 0), _aten.ge.Scalar(levels, len(chosen)))
    nowhere = _aten.where.default(outside)[0]
    rows = _aten.cat.default([*chosen, nowhere])  # a permutation of all boxes
    size = [_aten.sym_size.int(pooled[0], dim) for dim in (1, 2, 3)]
    zeros = _aten.new_zeros.default(pooled[0], [_aten.sym_size.int(nowhere, 0), *size])
    return _aten.index_select.default(_aten.cat.default([*pooled, zeros]), 0, _aten.argsort.default(rows))


def _replace_by_pick(graph: Graph, loop: _Loop) -> None:
    first, last = loop.first, loop.writes[-1]
    with graph.inserting_before(last):
        picked = graph.call_function(
            torch.ops.maskjet.roi_align_levels.default,
            (
                [level.feature for level in loop.levels],
                first.rois,
                first.levels,
                [level.scale for level in loop.levels],
                *first.options,
            ),
        )
    _take_over(graph, last, picked)
    erase(graph, reversed(loop.writes))
    for level in loop.levels:
        erase(graph, reversed(level.nodes))


def _take_over(graph: Graph, old: Node, new: Node) -> None:
    """Replace a node by another, and erase the nodes that only assert its size or dtype."""
    new.meta.update(old.meta)
    for check in checks_of(old):
        graph.erase_node(check)
    old.replace_all_uses_with(new)


GATHER = Rewrite("pooler_gather", _anchors, partial(_match, replace=_replace_by_gather))
"""Rewrite that gathers the levels' pooled rows."""
PICK = Rewrite("pooler_pick", _anchors, partial(_match, replace=_replace_by_pick))
"""Rewrite that picks each box's level within one operator."""

"""Fold NMS and a slice of its first k results into an NMS that stops after k boxes.

Pattern:     batched_nms(boxes, scores, classes, iou) → slice(0, 0, k)
Replacement: nms_topk(boxes, scores, classes, iou, k)

Nodes that index with the result stay unchanged and are no part of the pattern.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.fx import Graph, Node

from benchmarks.aten.capture import BATCHED_NMS
from benchmarks.aten.nodes import arguments, checks_of
from maskjet.networks.torchvision.layers.rewriting import Rewrite, calls
from maskjet.ops.nms import nms


@torch.library.custom_op("maskjet::nms_topk", mutates_args=())
def nms_topk(
    boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, iou_threshold: float, max_output: int
) -> torch.Tensor:
    """The first `max_output` boxes that torchvision's `batched_nms` would keep, without work for later ones.

    Boxes with equal scores keep their order. Boxes of different classes are never compared; torchvision adds an offset
    per class to the coordinates instead. Results differ where only the rounding of these sums makes boxes overlap.

    Args:
        boxes: float32 [N, 4] xyxy.
        scores: [N].
        classes: int64 [N]; boxes of different classes don't suppress each other.
        iou_threshold: 0..1; a box is suppressed if its IoU with a kept one is larger.
        max_output: Maximum number of kept boxes, at least 1.

    Returns:
        int64 [n]: indices of the kept boxes, by descending score.
    """
    if not len(boxes):
        return boxes.new_empty(0, dtype=torch.int64)
    order = scores.argsort(descending=True, stable=True)
    kept = nms(
        boxes[order][None],
        groups=classes[order].int()[None],
        iou_threshold=iou_threshold,
        max_output=min(max_output, len(boxes)),
    )
    return order[kept.index[0, : int(kept.count)].long()]


@nms_topk.register_fake
def _nms_topk_fake(
    boxes: torch.Tensor,
    scores: torch.Tensor,  # noqa: ARG001
    classes: torch.Tensor,  # noqa: ARG001
    iou_threshold: float,  # noqa: ARG001
    max_output: int,
) -> torch.Tensor:
    count = torch.library.get_ctx().new_dynamic_size(min=0, max=max_output)
    return boxes.new_empty(count, dtype=torch.int64)


def _anchors(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if calls(node, BATCHED_NMS))


def _match(nms: Node) -> Callable[[], None] | None:
    given = arguments(nms)
    slices = [user for user in nms.users if calls(user, torch.ops.aten.slice.Tensor)]
    if len(slices) != 1:
        return None
    cut = arguments(slices[0])
    if cut["dim"] != 0 or cut["start"] not in (None, 0) or cut["step"] != 1:
        return None
    count = cut["end"]
    if not isinstance(count, int) or not 1 <= count < sys.maxsize:
        return None
    if not all(user is slices[0] or _is_size_below(user, count) for user in nms.users):
        return None
    if given["boxes"].meta["val"].dtype != torch.float32 or not 0 <= given["iou_threshold"] <= 1:
        return None
    return partial(_replace, nms, slices[0], count)


def _is_size_below(user: Node, count: int) -> bool:
    """Whether a user only asserts the number of kept boxes or takes its minimum with k; both hold after the fold."""
    if not calls(user, torch.ops.aten.sym_size.int):
        return False
    checks = checks_of(user)
    return all(use in checks or (calls(use, torch.sym_min) and set(use.args) == {count, user}) for use in user.users)


def _replace(nms: Node, cut: Node, count: int) -> None:
    graph = nms.graph
    with graph.inserting_before(nms):
        folded = graph.call_function(torch.ops.maskjet.nms_topk.default, (*nms.args, count))
    folded.meta.update(cut.meta)
    for node in (cut, nms):
        node.replace_all_uses_with(folded)
        graph.erase_node(node)


FOLD = Rewrite("nms_topk", _anchors, _match)
"""Rewrite that folds the slice into the NMS."""

"""Stop NonMaxSuppression after k boxes where only the first k are used.

    If(empty) { [] } else { NonMaxSuppression(boxes, scores, maximum) -> Gather -> Squeeze } -> Slice[:k]

becomes the same with `min(maximum, k)` as the maximum. Boxes are kept in descending order of score, and whether one is
kept depends only on those kept before it, so the first k stay the same. The Slice stays, too: it costs microseconds,
and still applies to the other branch of the If.
"""

from __future__ import annotations

import onnx_ir as ir

from maskjet.onnx.building import Builder
from maskjet.onnx.matching import (
    MismatchError,
    Owners,
    find_producer,
    given,
    integers,
    is_op,
    nodes_of_type,
    require,
    slice_parts,
    whole,
)

_MAXIMUM = 2
"""Position of max_output_boxes_per_class among the inputs."""


def candidates(model: ir.Model) -> list[ir.Node]:
    """Every NonMaxSuppression."""
    return nodes_of_type(model, "NonMaxSuppression")


def rewrite(node: ir.Node, owners: Owners) -> None:
    """Lower a node's maximum to the number of rows used.

    Raises:
        MismatchError: Not only the first k rows are used; there may be several images or classes, whose results are
            concatenated; or the maximum is not above k.
    """
    used = _rows_used(node.outputs[0], owners)
    require(_leading_ones(node.inputs[1]) >= 2, "its scores may be of several images or classes")
    maximum = integers(given(node, _MAXIMUM))
    if maximum is None or len(maximum) != 1:
        raise MismatchError("its maximum is no constant")
    require(used < maximum[0], f"it already keeps at most {maximum[0]}, and {used} are used")
    node.replace_input_with(_MAXIMUM, Builder(node, "nms_top_k").constant([used]))


def _rows_used(value: ir.Value, owners: Owners) -> int:
    """Number of leading rows of a value that are used."""
    used = [_rows_used_by(user, index, owners) for user, index in value.uses()]
    if value.is_graph_output():
        graph = value.graph
        assert graph is not None, "an output is of a graph"
        owner = owners.get(graph)
        if owner is None or not is_op(owner, "If"):
            raise MismatchError("all it keeps is returned")
        used.append(_rows_used(owner.outputs[list(graph.outputs).index(value)], owners))
    return max(used, default=0)


def _rows_used_by(user: ir.Node, index: int, owners: Owners) -> int:
    if index == 0 and _keeps_rows(user):
        return _rows_used(user.outputs[0], owners)
    require(index == 0 and is_op(user, "Slice"), f"{user.op_type} uses all it keeps")
    start, end, axis = slice_parts(user)
    last = integers(end)
    require(axis == 0 and integers(start) == (0,), "a slice takes other than the first ones")
    if last is None or last[0] < 0:
        raise MismatchError("a slice takes a number that is not known")
    return last[0]


def _keeps_rows(node: ir.Node) -> bool:
    """Whether row i of the output depends only on row i of the input."""
    return (
        is_op(node, "Cast", "Identity")
        or (is_op(node, "Gather") and whole(node, "axis", 0) == 1)
        or (is_op(node, "Squeeze") and integers(given(node, 1)) == (1,))
    )


def _leading_ones(value: ir.Value | None) -> int:
    """Number of a value's first dimensions that are known to be 1."""
    if (node := find_producer(value, "Cast", "Identity")) is not None:
        return _leading_ones(node.inputs[0])
    node = find_producer(value, "Unsqueeze")
    axes = None if node is None else integers(given(node, 1))
    if node is None or axes is None or sorted(axes) != list(range(len(axes))):
        return 0
    return len(axes) + _leading_ones(node.inputs[0])

"""Turn a Loop that appends one row per iteration by Concat into one whose rows the runtime stacks.

    Loop(trips, condition, [0, ...]) { carried -> Concat(carried, Unsqueeze(row)) }

becomes `Loop(trips, condition) { row }` with a scan output. The Concat copies all earlier rows in every iteration, n²/2
copies for n rows; a scan output copies each row once.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from maskjet.export.onnx_rewrites.building import Builder, replace
from maskjet.export.onnx_rewrites.matching import (
    MismatchError,
    constant,
    find_producer,
    given,
    integers,
    is_op,
    nodes_of_type,
    producer,
    require,
    whole,
)

_CARRIED = 2
"""Position of the first carried value among the inputs of a Loop and of its body."""
_ALL = 2**63 - 1


def candidates(model: ir.Model) -> list[ir.Node]:
    """Every Loop whose body extends a carried value by Concat."""
    return [node for node in nodes_of_type(model, "Loop") if any(_is_extended(node))]


def rewrite(node: ir.Node) -> None:
    """Replace a Loop that carries only the rows by one that stacks them.

    Raises:
        MismatchError: The Loop carries or stacks something else, too, it does not start with zero rows, an iteration
            does not append exactly one row, or it uses the earlier rows.
    """
    body = node.attributes["body"].as_graph()
    require(len(body.inputs) == _CARRIED + 1 and len(body.outputs) == _CARRIED, "it carries something else, too")
    first = given(node, _CARRIED)
    if first is None or not _is_empty(first):
        raise MismatchError("it does not begin with nothing")
    carried, result = body.inputs[_CARRIED], body.outputs[1]
    require(len(carried.uses()) == 1 and not carried.is_graph_output(), "an iteration uses the rows so far")
    concat = producer(result, "Concat", reason="it does not append")
    require(whole(concat, "axis", 0) == 0 and len(concat.inputs) == 2, "it does not append one row")
    require(concat.inputs[0] is carried, "it does not append at the end")
    unsqueeze = producer(concat.inputs[1], "Unsqueeze", reason="an iteration may append other than one row")
    row = unsqueeze.inputs[0]
    require(integers(given(unsqueeze, 1)) == (0,), "an iteration may append other than one row")
    assert row is not None, "Unsqueeze has an input"
    require(row.graph is body and not row.is_graph_input(), "the appended row is the same in every iteration")
    row.type = row.type or result.type
    body.outputs[1] = row
    body.remove(concat, safe=True)
    body.inputs.pop()
    _stack(node, first)


def _stack(node: ir.Node, first: ir.Value) -> None:
    """Replace a Loop by one without carried values; with zero iterations the output takes the initial value's shape."""
    graph, result = node.graph, node.outputs[0]
    assert graph is not None, "a candidate is in a graph"
    build = Builder(node, "loop_concat")
    shape = build.add("Shape", first)
    tail = build.add("Slice", shape, build.constant([1]), build.constant([_ALL]))
    wanted = build.add("Concat", build.constant([0]), tail, axis=0)  # for Reshape: 0 keeps the number of rows
    condition = given(node, 1)
    if condition is None:  # the last input can't be None
        condition = build.add("Constant", value=ir.tensor(np.array(True)))
    stacked = build.add("Loop", node.inputs[0], condition, **node.attributes)
    replace(result, build.add("Reshape", stacked, wanted))
    graph.remove(node, safe=True)


def _is_extended(node: ir.Node) -> list[bool]:
    body = node.attributes["body"].as_graph()
    carried = set(body.inputs[_CARRIED:])
    made = (output.producer() for output in body.outputs)
    return [is_op(concat, "Concat") and bool(carried & set(concat.inputs)) for concat in made if concat is not None]


def _is_empty(value: ir.Value) -> bool:
    """Whether a value is known to have zero rows."""
    known = constant(value)
    if known is not None:
        return known.ndim > 0 and known.shape[0] == 0
    node = find_producer(value, "ConstantOfShape")
    if node is None:
        return False
    shape = integers(node.inputs[0])
    if shape is None:
        concat = find_producer(node.inputs[0], "Concat")
        shape = None if concat is None else integers(concat.inputs[0])
    return shape is not None and shape[:1] == (0,)

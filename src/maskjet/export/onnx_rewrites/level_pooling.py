"""Replace a chain of ScatterElements, one per pyramid level, by one Gather of the levels' concatenated RoiAligns.

    zeros -> ScatterElements(Expand(rows of level 0), RoiAlign) -> ... -> ScatterElements(rows of level 3, RoiAlign)

becomes `Gather(Concat(RoiAligns, a row of zeros), source)`: row i of the result is row `source[i]` of the Concat. The
levels' row indices, concatenated, are a permutation of the boxes; `source` is its inverse. A box on no level, such as
one that is NaN, gets the row of zeros, as in the original. ScatterElements takes an index for every number and handles
each by itself; Gather copies whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from maskjet.export.onnx_rewrites.matching import (
    MismatchError,
    find_producer,
    given,
    integers,
    is_op,
    is_zeros,
    nodes_of_type,
    producer,
    require,
    whole,
)

_DIMENSIONS = 4


class _Level(NamedTuple):
    """One pyramid level: one ScatterElements of the chain."""

    rows: ir.Value
    """Indices of this level's boxes among all boxes, int64 [boxes of this level]."""
    levels: ir.Value
    """Level of every box; the same value for all levels."""
    number: int
    """This level's number in `levels`."""
    pooled: ir.Value
    """Pooled features of this level's boxes, [boxes of this level, channels, height, width]."""
    align: ir.Node
    """The RoiAlign that made `pooled`."""


def candidates(model: ir.Model) -> list[ir.Node]:
    """The last ScatterElements of each chain with at least one RoiAlign."""
    found = []
    for node in nodes_of_type(model, "ScatterElements"):
        is_last = not any(index == 0 and is_op(user, "ScatterElements") for user, index in node.outputs[0].uses())
        if is_last and any(_find_align(link.inputs[2]) for link in _chain(node)):
            found.append(node)
    return found


def rewrite(node: ir.Node) -> None:
    """Replace the chain that ends in a node.

    Raises:
        MismatchError: The chain does not start from zeros of the pooled rows' size, it adds instead of overwriting, its
            rows are not those of distinct levels, or something else uses an intermediate result.
    """
    chain = _chain(node)
    levels = [_read_level(link) for link in reversed(chain)]
    require(len({level.levels for level in levels}) == 1, "its levels are of different boxes")
    require(len({level.number for level in levels}) == len(levels), "two of its levels are the same")
    require(all(len(link.outputs[0].uses()) == 1 for link in chain[1:]), "an unfinished result is used elsewhere")
    zeros = producer(chain[-1].inputs[0], "ConstantOfShape", reason="it does not start from zeros")
    require(is_zeros(zeros), "it does not start from zeros")
    _check_sizes(zeros.inputs[0], levels)
    assert zeros.inputs[0] is not None, "ConstantOfShape has an input"
    build = _Builder(node)
    source = _build_source(build, [level.rows for level in levels], zeros.inputs[0])
    tail = build.add("Slice", zeros.inputs[0], build.constant([1]), build.constant([_DIMENSIONS]))
    shape = build.add("Concat", build.constant([1]), tail, axis=0)
    nothing = build.add("ConstantOfShape", shape, **zeros.attributes)
    pooled = build.add("Concat", *(level.pooled for level in levels), nothing, axis=0)
    _replace(node.outputs[0], build.add("Gather", pooled, source, axis=0))


class _Builder:
    """Adds nodes before a given node, `place`; `application` gives values of equal names different ones."""

    def __init__(self, place: ir.Node) -> None:
        self._place = place

    def add(self, op_type: str, *inputs: ir.Value, **attributes: int | ir.TensorProtocol | ir.Attr) -> ir.Value:
        """Add a node of a standard op and return its one output."""
        name = f"maskjet/level_pooling/{op_type}"
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=name)], name=name)
        graph = self._place.graph
        assert graph is not None, "a candidate is in a graph"
        graph.insert_before(self._place, node)
        return node.outputs[0]

    def constant(self, numbers: int | Sequence[int]) -> ir.Value:
        """Add an int64 constant: a scalar, or a vector."""
        return self.add("Constant", value=ir.tensor(np.asarray(numbers, dtype=np.int64)))


def _replace(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of an old value by a new one; a graph output keeps its name, type and shape."""
    if old.is_graph_output():
        new.name, old.name = old.name, new.name
        new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def _build_source(build: _Builder, rows: list[ir.Value], shape: ir.Value) -> ir.Value:
    """Build each box's row index in the concatenation; boxes on no level get the index of the row of zeros."""
    order = build.add("Concat", *rows, axis=0)
    count = build.add("Size", order)
    boxes = build.add("Slice", shape, build.constant([0]), build.constant([1]))
    position = build.add("Range", build.constant(0), count, build.constant(1))
    return build.add("ScatterElements", build.add("Expand", count, boxes), order, position, axis=0)


def _chain(node: ir.Node) -> list[ir.Node]:
    """The chain of ScatterElements that ends in a node, last one first."""
    chain = [node]
    while (link := find_producer(chain[-1].inputs[0], "ScatterElements")) is not None:
        chain.append(link)
    return chain


def _find_align(value: ir.Value | None) -> ir.Node | None:
    cast = find_producer(value, "Cast")
    return find_producer(value, "RoiAlign") if cast is None else _find_align(cast.inputs[0])


def _read_level(link: ir.Node) -> _Level:
    reduction = link.attributes.get("reduction")
    require(reduction is None or reduction.as_string() == "none", "it adds up instead of overwriting")
    require(whole(link, "axis", 0) == 0, "it does not scatter rows")
    _, indices, pooled = link.inputs
    align = _find_align(pooled)
    if pooled is None or align is None:
        raise MismatchError("it scatters something besides RoiAlign")
    reason = "its rows are not those of one level"
    reshape = producer(producer(indices, "Expand", reason=reason).inputs[0], "Reshape", reason=reason)
    require(integers(given(reshape, 1)) == (-1, 1, 1, 1), reason)
    rows = reshape.inputs[0]
    node = producer(rows, "Squeeze", reason=reason)
    while not is_op(node, "NonZero"):
        require(len(node.outputs) == 1, "its levels have more than one dimension")
        node = producer(node.inputs[0], "Split", "Transpose", "NonZero", reason=reason)
    equal = producer(node.inputs[0], "Equal", reason=reason)
    levels, number = equal.inputs[0], integers(equal.inputs[1])
    if rows is None or levels is None or number is None or len(number) != 1:
        raise MismatchError(reason)
    return _Level(rows, levels, number[0], pooled, align)


def _check_sizes(shape: ir.Value | None, levels: list[_Level]) -> None:
    """Check that the zeros have the same channels, height and width as every level's rows."""
    sizes = {_size(level.align) for level in levels}
    require(len(sizes) == 1 and None not in sizes, "its levels may differ in channels or size")
    concat = producer(shape, "Concat", reason="the size of its zeros is not known")
    require(len(concat.inputs) == _DIMENSIONS, "its zeros do not have four dimensions")
    size = sizes.pop()
    assert size is not None, "checked above"
    for axis, value in list(enumerate(concat.inputs))[1:]:
        is_same = integers(value) == (size[axis - 1],) or _is_dimension(value, axis, {lv.pooled for lv in levels})
        require(is_same, "its zeros may differ from its levels in size")


def _size(align: ir.Node) -> tuple[int, int, int] | None:
    """Channels, height and width of a RoiAlign's output; None if the channels are not known."""
    channels = _channels(align.inputs[0])
    return None if channels is None else (channels, whole(align, "output_height", 1), whole(align, "output_width", 1))


def _channels(value: ir.Value | None) -> int | None:
    if value is not None and value.shape is not None and len(value.shape) > 1 and isinstance(value.shape[1], int):
        return value.shape[1]
    if (node := find_producer(value, "BatchNormalization", "Relu")) is not None:
        return _channels(node.inputs[0])
    conv = find_producer(value, "Conv")
    weight = None if conv is None else given(conv, 1)
    known = weight.shape[0] if weight is not None and weight.shape is not None else None
    return known if isinstance(known, int) else None


def _is_dimension(value: ir.Value | None, axis: int, of: set[ir.Value]) -> bool:
    """Whether a value is `Unsqueeze(Gather(Shape(x), axis))` with x in `of`."""
    path = []
    for op_type in ("Unsqueeze", "Gather", "Shape"):
        node = find_producer(value, op_type)
        if node is None:
            return False
        path.append(node)
        value = node.inputs[0]
    return integers(path[1].inputs[1]) == (axis,) and value in of

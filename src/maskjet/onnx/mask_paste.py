"""The Loop that resizes one mask per iteration and pastes it into a frame, as torchvision exports it.

The size of each mask, the part of it inside of the frame and the zeros around that move out of the Loop, for all masks
at once. Of an iteration's 176 nodes 14 remain: the same Resize, a Slice, a Pad, and what looks up their arguments.

The original adds too many zeros to a box outside of the frame and crops what is too large. Here these zeros are cut
before they are added, so that such a box, too, comes out the same.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from maskjet.onnx import scalars
from maskjet.onnx.building import Builder, Workspace
from maskjet.onnx.matching import (
    MismatchError,
    constant,
    given,
    integers,
    is_op,
    is_zeros,
    nodes_of_type,
    producer,
    require,
    slice_parts,
    whole,
)
from maskjet.onnx.scalars import Sum, largest, smallest

_FOREVER = 2**63 - 1
_UNKNOWN = "an iteration does something else than to paste a mask"


class _Paste(NamedTuple):
    """What an iteration is made of."""

    masks: ir.Value
    """[N, channels, height, width]; the first channel is pasted."""
    boxes: ir.Value
    """int64 [N, 4]: x0, y0, x1, y1, all inclusive."""
    frame_hw: tuple[Sum, Sum]
    """Each a constant or one value from outside of the Loop."""
    resize: ir.Node
    """The Resize."""
    casts: list[ir.Node]
    """What changes the type of the resized mask."""


def candidates(model: ir.Model) -> list[ir.Node]:
    """Every Loop that resizes something."""
    return [node for node in nodes_of_type(model, "Loop") if any(is_op(inner, "Resize") for inner in _body(node))]


def rewrite(node: ir.Node, workspace: Workspace) -> None:
    """Replace what an iteration does.

    Raises:
        MismatchError: An iteration does not do exactly what torchvision's `_onnx_paste_mask_in_image` does.
    """
    body = _body(node)
    require(len(body.inputs) == 2 and len(body.outputs) == 2, "its rows are not stacked by the Loop itself")
    going_on = body.outputs[0].producer()
    goes_on = going_on is not None and is_op(going_on, "Identity") and going_on.inputs[0]
    require(bool(goes_on) and _is_true(goes_on or None), "it may stop early")
    paste = _Reading(body).read()
    tables = _build_tables(Builder(node, workspace, "mask_paste"), paste)
    _build_iteration(Builder(body, workspace, "mask_paste"), body, paste, tables)


def _body(node: ir.Node) -> ir.Graph:
    return node.attributes["body"].as_graph()


def _is_whole(value: ir.Value) -> bool:
    """Whether a value certainly is int64."""
    node = value.producer()
    if value.dtype == ir.DataType.INT64 or (node is not None and is_op(node, "Shape")):
        return True
    if node is not None and is_op(node, "Gather") and node.inputs[0] is not None:
        return _is_whole(node.inputs[0])
    return node is not None and is_op(node, "Cast") and whole(node, "to", 0) == ir.DataType.INT64


def _is_true(value: ir.Value | None) -> bool:
    known = constant(value)
    return known is not None and bool(known.all())


class _Reading:
    """Reads an iteration from its result back to the mask and the box."""

    def __init__(self, body: ir.Graph) -> None:
        self._body = body
        self._boxes: set[ir.Value] = set()

    def read(self) -> _Paste:
        """What it is made of, once every part has been compared with what it should be."""
        wide, width = self._take_crop(self._body.outputs[1], 1)
        tall, left, right = self._take_padding(wide, 1)
        tall, height = self._take_crop(tall, 0)
        part, top, bottom = self._take_padding(tall, 0)
        part, casts = self._take_casts(part)
        x0, y0, x1, y1 = (scalars.unknown(index) for index in range(4))
        starts = largest(y0, 0), largest(x0, 0)
        ends = smallest(y1 + 1, height), smallest(x1 + 1, width)
        around = top, left, height - bottom, width - right
        require(around == (*starts, *ends), "the zeros around a mask are other than expected")
        part = self._take_part(part, 1, (starts[1] - x0, ends[1] - x0))
        part = self._take_part(part, 0, (starts[0] - y0, ends[0] - y0))
        resize = self._take_resize(part, [largest(y1 - y0 + 1, 1), largest(x1 - x0 + 1, 1)])
        masks = self._take_mask(resize.inputs[0])
        for length in (height, width):
            _outside_value(length)
        require(len(self._boxes) == 1, "it takes coordinates of several boxes")
        return _Paste(masks, self._boxes.pop(), (height, width), resize, casts)

    def _take_crop(self, value: ir.Value | None, axis: int) -> tuple[ir.Value | None, Sum]:
        """What is cropped to how much along an axis, and, before that, not at all along the other."""
        outer, inner = (producer(value, "Slice", reason=_UNKNOWN), None)
        start, end, outer_axis = slice_parts(outer)
        if outer_axis != axis:  # the crop that takes all comes last along rows, first along columns
            require(integers(start) == (0,) and integers(end) == (_FOREVER,), _UNKNOWN)
            outer = producer(outer.inputs[0], "Slice", reason=_UNKNOWN)
            start, end, outer_axis = slice_parts(outer)
            require(outer_axis == axis, _UNKNOWN)
        else:
            inner = producer(outer.inputs[0], "Slice", reason=_UNKNOWN)
            *bounds, inner_axis = slice_parts(inner)
            is_all = [integers(bound) for bound in bounds] == [(0,), (_FOREVER,)]
            require(inner_axis != axis and is_all, _UNKNOWN)
        require(integers(start) == (0,), _UNKNOWN)
        return (inner or outer).inputs[0], self._read_integer(end)

    def _take_padding(self, value: ir.Value | None, axis: int) -> tuple[ir.Value | None, Sum, Sum]:
        """What stands between zeros along an axis, and how many these are."""
        concat = producer(value, "Concat", reason=_UNKNOWN)
        require(whole(concat, "axis", 0) == axis and len(concat.inputs) == 3, _UNKNOWN)
        counts = []
        for zeros in (concat.inputs[0], concat.inputs[2]):
            node = producer(zeros, "ConstantOfShape", reason=_UNKNOWN)
            shape = producer(node.inputs[0], "Concat", reason=_UNKNOWN)
            require(is_zeros(node) and len(shape.inputs) == 2, _UNKNOWN)
            counts.append(self._read_integer(shape.inputs[axis]))
        return concat.inputs[1], counts[0], counts[1]

    def _take_casts(self, value: ir.Value | None) -> tuple[ir.Value | None, list[ir.Node]]:
        node = None if value is None else value.producer()
        if node is None or not is_op(node, "Cast"):
            return value, []
        below, casts = self._take_casts(node.inputs[0])
        return below, [*casts, node]

    def _take_part(self, value: ir.Value | None, axis: int, expected: tuple[Sum, Sum]) -> ir.Value | None:
        node = producer(value, "Slice", reason=_UNKNOWN)
        start, end, actual_axis = slice_parts(node)
        bounds = self._read_integer(start), self._read_integer(end)
        require(actual_axis == axis and bounds == expected, "another part of a mask is pasted than expected")
        return node.inputs[0]

    def _take_resize(self, value: ir.Value | None, expected: list[Sum]) -> ir.Node:
        """The Resize of [1, 1, height, width] whose first image and channel a value is."""
        for _ in range(2):
            value = self._take_first(value).inputs[0]
        resize = producer(value, "Resize", reason=_UNKNOWN)
        sizes = producer(given(resize, 3), "Concat", reason=_UNKNOWN)
        require(given(resize, 1) is None and given(resize, 2) is None, _UNKNOWN)
        require(len(sizes.inputs) == 2 and self._is_start_of_shape(sizes.inputs[0], resize.inputs[0]), _UNKNOWN)
        (inner,) = (part.producer() if part is not None else None for part in sizes.inputs[1:])
        while inner is not None and is_op(inner, "Cast"):
            inner = inner.inputs[0].producer() if inner.inputs[0] is not None else None
        require(inner is not None and is_op(inner, "Concat"), _UNKNOWN)
        assert inner is not None, "checked above"
        actual = [self._read_integer(part) for part in inner.inputs]
        require(actual == expected, "a mask is resized to another size than its box")
        return resize

    def _take_first(self, value: ir.Value | None) -> ir.Node:
        """The Gather that takes the first along the first axis, which falls away."""
        node = producer(value, "Gather", reason=_UNKNOWN)
        index = constant(node.inputs[1])
        require(whole(node, "axis", 0) == 0 and index is not None and index.shape == () and index == 0, _UNKNOWN)
        return node

    def _is_start_of_shape(self, value: ir.Value | None, of: ir.Value | None) -> bool:
        """Whether a value is the first two numbers of another's shape."""
        node = producer(value, "Slice", reason=_UNKNOWN)
        start, end, axis = slice_parts(node)
        shape = producer(node.inputs[0], "Shape", reason=_UNKNOWN)
        return axis == 0 and integers(start) == (0,) and integers(end) == (2,) and shape.inputs[0] is of

    def _take_mask(self, value: ir.Value | None) -> ir.Value:
        """The masks of which an iteration takes its own, the first channel, as [1, 1, height, width]."""
        expand = producer(value, "Expand", reason=_UNKNOWN)
        channel = self._take_first(expand.inputs[0])
        mask = producer(channel.inputs[0], "Gather", reason=_UNKNOWN)
        require(self._is_own(mask), _UNKNOWN)
        require(self._is_own_size(expand.inputs[1], channel.outputs[0]), "a mask is repeated")
        assert mask.inputs[0] is not None, "Gather has an input"
        return mask.inputs[0]

    def _is_own_size(self, shape: ir.Value | None, mask: ir.Value) -> bool:
        """Whether a shape is [1, 1, height, width] of a mask [height, width], as `expand(1, 1, -1, -1)` makes it."""
        node = producer(shape, "Where", "Concat", reason=_UNKNOWN)
        if is_op(node, "Where"):
            # One of -1 would become 1; none is, where the numbers are a mask's height and width.
            equal = producer(node.inputs[0], "Equal", reason=_UNKNOWN)
            negated = producer(equal.inputs[1], "Mul", reason=_UNKNOWN)
            ones = producer(negated.inputs[0], "ConstantOfShape", reason=_UNKNOWN)
            require(equal.inputs[0] is node.inputs[2] and integers(negated.inputs[1]) == (-1,), _UNKNOWN)
            require("value" in ones.attributes and (ones.attributes["value"].as_tensor().numpy() == 1).all(), _UNKNOWN)
            reshape = producer(node.inputs[2], "Reshape", reason=_UNKNOWN)
            node = producer(reshape.inputs[0], "Concat", reason=_UNKNOWN)
        if [integers(part) for part in node.inputs[:2]] != [(1,), (1,)] or len(node.inputs) != 4:
            return False
        for axis, part in enumerate(node.inputs[2:]):
            unsqueeze = producer(part, "Unsqueeze", reason=_UNKNOWN)
            gather = producer(unsqueeze.inputs[0], "Gather", reason=_UNKNOWN)
            dimensions = producer(gather.inputs[0], "Shape", reason=_UNKNOWN)
            if integers(gather.inputs[1]) != (axis,) or dimensions.inputs[0] is not mask:
                return False
        return True

    def _is_own(self, gather: ir.Node) -> bool:
        """Whether a Gather takes the iteration's row of something from outside."""
        is_outside = gather.inputs[0] is not None and gather.inputs[0].graph is not self._body
        return is_outside and whole(gather, "axis", 0) == 0 and gather.inputs[1] is self._body.inputs[0]

    def _read_integer(self, value: ir.Value | None) -> Sum:
        return scalars.read(value, self._read_unknown)

    def _read_unknown(self, value: ir.Value) -> Sum | None:
        """A coordinate of the iteration's box, by its index; anything from outside of the Loop, by its value."""
        if value.graph is not self._body:
            require(_is_whole(value), "a size or coordinate may be no integer")
            return scalars.unknown(value)
        node = value.producer()
        if node is None or not is_op(node, "Gather") or whole(node, "axis", 0) != 0:
            return None
        row, index = node.inputs[0] and node.inputs[0].producer(), integers(node.inputs[1])
        if not row or not is_op(row, "Gather") or not self._is_own(row) or index is None or row.inputs[0] is None:
            return None
        require(_is_whole(row.inputs[0]), "a size or coordinate may be no integer")
        self._boxes.add(row.inputs[0])
        return scalars.unknown(index[0])


class _Tables(NamedTuple):
    """What was computed in every iteration, one row per mask."""

    masks: ir.Value
    """[N, 1, height, width]: the first channel."""
    sizes: ir.Value
    """int64 [N, 4]: 1, 1, height and width to resize to."""
    starts: ir.Value
    """int64 [N, 2]: where the part inside of the frame begins, y and x."""
    ends: ir.Value
    """int64 [N, 2]: where it ends."""
    pads: ir.Value
    """int64 [N, 8]: the zeros before and behind it along each of four axes."""


def _build_tables(build: Builder, paste: _Paste) -> _Tables:
    zero, one = build.constant([0]), build.constant([1])
    frame = build.add("Concat", *(_build_length(build, length) for length in paste.frame_hw), axis=0)
    first = build.add("Gather", paste.boxes, build.constant([1, 0]), axis=1)
    behind = build.add("Add", build.add("Gather", paste.boxes, build.constant([3, 2]), axis=1), one)
    sizes = build.add("Max", build.add("Sub", behind, first), one)
    inside, end = build.add("Max", first, zero), build.add("Min", behind, frame)
    starts = build.add("Sub", inside, first)
    ends = build.add("Max", build.add("Sub", end, first), starts)  # not before the start: it would count from the end
    before = build.add("Min", inside, frame)
    after = build.add("Sub", frame, build.add("Max", end, before))
    two_columns = build.constant([0, 2, 0, 0])  # before the others, for [1, 1, ...]
    pads = [build.add("Pad", zeros, two_columns) for zeros in (before, after)]
    return _Tables(
        build.add("Gather", paste.masks, zero, axis=1),
        build.add("Pad", sizes, two_columns, build.constant(1)),
        starts,
        ends,
        build.add("Concat", *pads, axis=1),
    )


def _build_length(build: Builder, length: Sum) -> ir.Value:
    """A vector of one number."""
    value = _outside_value(length)
    return build.constant([length.constant]) if value is None else build.add("Reshape", value, build.constant([-1]))


def _outside_value(length: Sum) -> ir.Value | None:
    """What a length is; None for a constant.

    Raises:
        MismatchError: It is neither a constant nor one value.
    """
    if not length.terms:
        return None
    ((what, count),) = length.terms if len(length.terms) == 1 else ((None, 0),)
    if not isinstance(what, ir.Value) or count != 1 or length.constant:
        raise MismatchError("the frame's size is not known outside of the Loop")
    return what


def _build_iteration(build: Builder, body: ir.Graph, paste: _Paste, tables: _Tables) -> None:
    number, result = body.inputs[0], body.outputs[1]
    mask = build.add("Gather", tables.masks, build.add("Reshape", number, build.constant([1])), axis=0)
    size, start, end, pads = (build.add("Gather", table, number, axis=0) for table in tables[1:])
    mask = build.add("Resize", mask, None, None, size, **paste.resize.attributes)
    mask = build.add("Slice", mask, start, end, build.constant([2, 3]))
    for cast in paste.casts:
        mask = build.add("Cast", mask, **cast.attributes)
    frame = build.add("Squeeze", build.add("Pad", mask, pads), build.constant([0, 1]))
    frame.type = result.type
    body.outputs[1] = frame

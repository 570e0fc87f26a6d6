"""How ATen operators are written in ONNX: a function each, called with the operator's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from maskjet.errors import UnsupportedError
from maskjet.runtimes.translation import Constant, Expanded, Operand, Translation, Translator, dtype_of, size_of


def _unary(op_type: str) -> Translator:
    return lambda t, x: t.add(op_type, x)


def _binary(op_type: str) -> Translator:
    """Arithmetic: operands are converted to the result's dtype, and repeated by the op itself."""
    return lambda t, *operands: t.add(op_type, *(t.value(_unexpanded(each), t.dtype) for each in operands))


def _comparison(op_type: str) -> Translator:
    return lambda t, left, right: t.add(op_type, left, t.value(_unexpanded(right), dtype_of(left)))


def _unexpanded(operand: Operand) -> Operand:
    return operand.source if isinstance(operand, Expanded) else operand


def _same(_: Translation, x: Operand, *__: Any, **___: Any) -> Operand:
    return x


def _item(_: Translation, values: Sequence[Any], index: int) -> Any:
    return values[index]


def _to(t: Translation, x: Operand, dtype: torch.dtype, *_: Any) -> Operand:
    return t.value(x, dtype)


def _reshape(t: Translation, x: Operand, *_: Any) -> ir.Value:
    return t.reshape(x, t.shape)


def _permute(t: Translation, x: Operand, axes: Sequence[int]) -> ir.Value:
    return t.add("Transpose", x, perm=[axis % len(axes) for axis in axes])


def _transpose(t: Translation, x: Operand, first: int, second: int) -> ir.Value:
    axes = list(range(len(t.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return t.add("Transpose", x, perm=axes)


def _unsqueeze(t: Translation, x: Operand, axis: int) -> ir.Value:
    return t.add("Unsqueeze", x, t.integers(axis % len(t.shape)))


def _slice(
    t: Translation, x: ir.Value, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Operand:
    if type(t.shape[axis]) is not int:  # the batch, of which all is taken
        return x
    size = size_of(x, axis)
    start, end = start or 0, size if end is None else min(end, size)
    return x if (start, end, step) == (0, size, 1) else t.add("Slice", x, *map(t.integers, (start, end, axis, step)))


def _unbind(t: Translation, x: ir.Value, axis: int = 0) -> list[ir.Value]:
    return [t.add("Gather", x, index, axis=axis) for index in range(size_of(x, axis))]


def _chunk(t: Translation, x: ir.Value, _: int, axis: int = 0) -> Sequence[ir.Value]:
    axis %= len(t.shape)
    size, whole = int(t.shape[axis]), size_of(x, axis)
    sizes = [min(size, whole - start) for start in range(0, whole, size)]
    forms = [((*t.shape[:axis], each, *t.shape[axis + 1 :]), t.dtype) for each in sizes]
    return t.add_several("Split", x, t.integers(*sizes), forms=forms, axis=axis)


def _cat(t: Translation, parts: Sequence[Operand], axis: int = 0) -> ir.Value:
    return t.add("Concat", *parts, axis=axis % len(t.shape))


def _stack(t: Translation, parts: Sequence[Operand], axis: int = 0) -> ir.Value:
    axis %= len(t.shape)
    shape = (*t.shape[:axis], 1, *t.shape[axis + 1 :])
    return t.add("Concat", *(t.add("Unsqueeze", each, t.integers(axis), shape=shape) for each in parts), axis=axis)


def _expand(t: Translation, x: ir.Value | Constant, *_: Any) -> Expanded:
    return Expanded(x, t.shape)


def _gather(t: Translation, x: Operand, axis: int, index: Operand) -> ir.Value:
    """Elements [B, K] by an index per element; or rows [B, K, C] by an index [B, K, 1] repeated along C."""
    if axis != 1 or (len(t.shape) > 2) != isinstance(index, Expanded):
        raise UnsupportedError(f"model must gather elements [B, K] or rows [B, K, C], got {len(t.shape)} dimensions.")
    if not isinstance(index, Expanded):
        return t.add("GatherElements", x, index, axis=1)
    if isinstance(x, Expanded) and isinstance(x.source, Constant):  # a table that all images share
        rows = t.reshape(index.source, index.shape[:2])
        return t.add("Gather", Constant(f"{x.source.name}.squeeze", x.source.tensor.squeeze(0)), rows, axis=0)
    return t.add("GatherND", x, index.source, batch_dims=1)


def _index(t: Translation, x: Operand, indices: Sequence[Operand]) -> ir.Value:
    (index,) = indices
    return t.add("Gather", x, index, axis=0)


def _linear(t: Translation, x: Operand, weight: Constant, bias: Operand | None = None) -> ir.Value:
    product = t.add("MatMul", x, Constant(f"{weight.name}.transpose", weight.tensor.T))
    return product if bias is None else t.add("Add", product, bias)


def _conv2d(
    t: Translation,
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> ir.Value:
    inputs = (x, weight) if bias is None else (x, weight, bias)
    pads = [*padding, *padding]
    return t.add("Conv", *inputs, strides=[*stride], pads=pads, dilations=[*dilation], group=groups)


def _layer_norm(
    t: Translation, x: Operand, sizes: Sequence[int], weight: Operand, bias: Operand, epsilon: float, *_: Any
) -> ir.Value:
    return t.add("LayerNormalization", x, weight, bias, axis=-len(sizes), epsilon=epsilon)


def _attention(t: Translation, query: Operand, key: Operand, value: Operand) -> ir.Value:
    """Self-attention; queries are scaled before the product, whose values then stay within float16."""
    *lead, length, width = t.shape
    scaled = t.add("Mul", query, t.value(float(width) ** -0.5, t.dtype))
    axes = [*range(len(lead)), len(lead) + 1, len(lead)]
    scores = t.add(
        "MatMul",
        scaled,
        t.add("Transpose", key, shape=(*lead, width, length), perm=axes),
        shape=(*lead, length, length),
    )
    return t.add("MatMul", t.add("Softmax", scores, shape=(*lead, length, length), axis=-1), value)


def _gelu(t: Translation, x: Operand) -> ir.Value:
    """Half of x × (1 + erf(x / √2)), in the order in which runtimes recognise it."""
    erf = t.add("Erf", t.add("Div", x, t.value(math.sqrt(2), t.dtype)))
    return t.add("Mul", t.add("Mul", x, t.add("Add", erf, t.value(1.0, t.dtype))), t.value(0.5, t.dtype))


def _silu(t: Translation, x: Operand) -> ir.Value:
    return t.add("Mul", x, t.add("Sigmoid", x))


def _softmax(t: Translation, x: Operand, axis: int) -> ir.Value:
    return t.add("Softmax", x, axis=axis)


def _sum(t: Translation, x: Operand, axes: Sequence[int], **_: Any) -> ir.Value:
    return t.add("ReduceSum", t.value(x, t.dtype), t.integers(*axes), keepdims=0)


def _max(t: Translation, x: Operand, axis: int) -> tuple[ir.Value, None]:
    return t.add("ReduceMax", x, axes=[axis], keepdims=0), None  # nobody reads the indices


def _topk(t: Translation, x: Operand, k: int, axis: int = -1) -> Sequence[ir.Value]:
    """Equal values rank by ascending index, as ONNX defines it."""
    return t.add_several("TopK", x, t.integers(k), forms=[(t.shape, t.dtype), (t.shape, torch.int64)], axis=axis)


def _grid_sample(t: Translation, x: Operand, grid: Operand, mode: int, padding: int, is_aligned: bool) -> ir.Value:
    if (mode, padding) != (0, 0):
        raise UnsupportedError("model must sample bilinearly with zeros outside, got another way.")
    return t.add("GridSample", x, grid, mode="bilinear", padding_mode="zeros", align_corners=int(is_aligned))


def _resize(t: Translation, x: ir.Value, size: Sequence[int], is_aligned: bool, _: Any) -> ir.Value:
    """Resize by whole factors if it can be, as sizes have to name the batch; others would be rounded."""
    if is_aligned:
        raise UnsupportedError("model must resize with half-pixel centres, got aligned corners.")
    factors = [divmod(after, size_of(x, axis)) for axis, after in zip((2, 3), size, strict=True)]
    scales = to = None
    if any(rest for _, rest in factors):
        to = t.sizes(t.shape)
    else:
        wholes = [1, 1, *(whole for whole, _ in factors)]
        scales = Constant(f"scales.{'_'.join(map(str, wholes))}", torch.tensor(wholes, dtype=torch.float32))
    return t.add("Resize", x, None, scales, to, mode="linear", coordinate_transformation_mode="half_pixel")


def _where(t: Translation, condition: Operand, *choices: Operand) -> ir.Value:
    return t.add("Where", condition, *(t.value(each, t.dtype) for each in choices))


def _clamp(t: Translation, x: Operand, least: float | None, most: float) -> ir.Value:
    if least is not None:
        raise UnsupportedError("model must clamp from above only, got a lower bound.")
    return t.add("Min", x, t.value(most, t.dtype))


TRANSLATORS: Mapping[str, Translator] = {
    "<built-in function getitem>": _item,
    "aten.add.Tensor": _binary("Add"),
    "aten.__and__.Tensor": _binary("And"),
    "aten.cat.default": _cat,
    "aten.chunk.default": _chunk,
    "aten.clamp.default": _clamp,
    "aten.contiguous.default": _same,
    "aten.conv2d.default": _conv2d,
    "aten.cos.default": _unary("Cos"),
    "aten.div.Tensor": _binary("Div"),
    "aten.exp.default": _unary("Exp"),
    "aten.expand.default": _expand,
    "aten.flatten.using_ints": _reshape,
    "aten.floor_divide.default": _binary("Div"),  # of integers that are not negative
    "aten.gather.default": _gather,
    "aten.gelu.default": _gelu,
    "aten.grid_sampler.default": _grid_sample,
    "aten.gt.Scalar": _comparison("Greater"),
    "aten.gt.Tensor": _comparison("Greater"),
    "aten.index.Tensor": _index,
    "aten.isnan.default": _unary("IsNaN"),
    "aten.layer_norm.default": _layer_norm,
    "aten.le.Scalar": _comparison("LessOrEqual"),
    "aten.linear.default": _linear,
    "aten.lt.Scalar": _comparison("Less"),
    "aten.matmul.default": _binary("MatMul"),
    "aten.max.dim": _max,
    "aten.minimum.default": _binary("Min"),
    "aten.mul.Tensor": _binary("Mul"),
    "aten.permute.default": _permute,
    "aten.relu.default": _unary("Relu"),
    "aten.reshape.default": _reshape,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.sigmoid.default": _unary("Sigmoid"),
    "aten.silu.default": _silu,
    "aten.sin.default": _unary("Sin"),
    "aten.slice.Tensor": _slice,
    "aten.softmax.int": _softmax,
    "aten.stack.default": _stack,
    "aten.sub.Tensor": _binary("Sub"),
    "aten.sum.dim_IntList": _sum,
    "aten.to.dtype": _to,
    "aten.topk.default": _topk,
    "aten.transpose.int": _transpose,
    "aten.unbind.int": _unbind,
    "aten.unsqueeze.default": _unsqueeze,
    "aten.upsample_bilinear2d.vec": _resize,
    "aten.view.default": _reshape,
    "aten.where.ScalarOther": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.self": _where,
}
"""Translators by the names of the operators that RF-DETR and select consist of."""

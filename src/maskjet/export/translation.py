"""Translate modules to ONNX graphs by `torch.onnx`, with own translations of operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass
from onnxscript import opset17
from onnxscript.optimizer import optimize_ir
from torch import Tensor, nn

from maskjet.errors import UnsupportedError, first_line

OPSET = 17
"""Opset of exported files: the first with LayerNormalization as one node, so most runtimes read it."""
op: Any = opset17  # untyped: its stubs reject numbers
_IR_VERSION = 8  # IR version of ONNX 1.12, which introduced opset 17
_NEWER = 18  # oldest opset of torch.onnx; `_TRANSLATORS` covers differences from 17
_BATCH = "batch"  # name of the dynamic first dimension of inputs and outputs
_ALL = 1 << 40  # largest folded constant, in elements


def translate(
    module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str], *, is_fixed: bool = False
) -> ir.Model:
    """Translate a module in eval mode to an ONNX model; the batch is free, or that of the inputs if `is_fixed`.

    Inputs are an example each by name; where the batch is free, 0 and 1 images would be taken for constants.

    Raises:
        UnsupportedError: It has an operator that can't be exported.
    """
    dims = None if is_fixed else tuple({0: torch.export.Dim(_BATCH)} for _ in inputs)
    program = torch.export.export(module, (*inputs.values(),), dynamic_shapes=dims, strict=False)
    _drop_views(program.graph)
    try:
        exported = torch.onnx.export(
            program,
            opset_version=_NEWER,
            dynamic_shapes=None if is_fixed else ({0: _BATCH}, *[None] * (len(inputs) - 1)),  # one name for all inputs
            input_names=[*inputs],
            output_names=outputs,
            custom_translation_table=_TRANSLATORS,
            optimize=False,
            verbose=False,
        )
    except Exception as error:  # the cause names the operator
        cause = first_line(error.__cause__ or error)
        raise UnsupportedError(f"model must consist of operators that can be exported: {cause}") from error
    assert exported is not None
    model = exported.model
    model.opset_imports[""], model.ir_version = OPSET, _IR_VERSION
    optimize_ir(model, input_size_limit=_ALL, output_size_limit=_ALL)
    ClearMetadataAndDocStringPass()(model)  # remove paths of this machine, which values have, too
    made = (value for node in model.graph for value in node.outputs)
    for value in (*model.graph.inputs, *model.graph.initializers.values(), *made):
        value.metadata_props.clear()
    return model


def _drop_views(graph: torch.fx.Graph) -> None:
    """Drop views that keep the shape; torch.onnx keeps those with a multiple of the batch as first size."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default and node.meta["val"].shape == node.args[0].meta["val"].shape:
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")


def _number(value: float, like: Any) -> Any:
    return op.CastLike(op.Constant(value_float=value), like)


def _attention(query: Any, key: Any, value: Any) -> Any:
    """Self-attention; queries are scaled before the product, whose values then stay within float16."""
    scaled = op.Mul(query, _number(query.shape[-1] ** -0.5, query))
    return op.MatMul(op.Softmax(op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2])), axis=-1), value)


def _gather(x: Any, axis: int, index: Any) -> Any:
    """Rows [B, K, C] by an index [B, K, 1] repeated along C."""
    expand = index.producer()
    if axis != 1 or expand.op_type != "Expand":
        raise UnsupportedError(f"model must gather rows [B, K, C], got {expand.op_type}, {axis}.")
    return op.GatherND(x, expand.inputs[0], batch_dims=1)


def _gelu(x: Any) -> Any:
    """GELU, x × (1 + erf(x / √2)) / 2, in the order that runtimes recognise and fuse."""
    erf = op.Erf(op.Div(x, _number(math.sqrt(2), x)))
    return op.Mul(op.Mul(x, op.Add(erf, _number(1.0, x))), _number(0.5, x))


def _max(x: Any, axis: int) -> tuple[Any, Any]:
    return op.ReduceMax(x, axes=[axis], keepdims=0), op.ArgMax(x, axis=axis, keepdims=0)


def _mean(x: Any, axes: Sequence[int], keepdim: bool = False) -> Any:
    return op.ReduceMean(x, axes=[*axes], keepdims=int(keepdim))


def _resize(x: Any, size: Sequence[int], is_aligned: bool, _: Any) -> Any:
    ratios = [1.0, 1.0, size[0] / x.shape[2], size[1] / x.shape[3]]
    scales = sizes = None
    if all((2**16 * ratio).is_integer() for ratio in ratios):  # exact in float32: sides, rounded down, are `size`
        scales = op.Constant(value_floats=ratios)
    else:
        sizes = op.Concat(op.Shape(x, start=0, end=2), op.Constant(value_ints=[*size]), axis=0)
    centres = "align_corners" if is_aligned else "half_pixel"
    return op.Resize(x, None, scales, sizes, mode="linear", coordinate_transformation_mode=centres)


def _split(x: Any, width: int, axis: int) -> list[Any]:
    return [op.Slice(x, [start], [start + width], [axis]) for start in range(0, x.shape[axis], width)]


def _unbind(x: Any) -> list[Any]:
    return [op.Gather(x, index, axis=0) for index in range(x.shape[0])]


_TRANSLATORS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.gather.default: _gather,
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.max.dim: _max,
    torch.ops.aten.mean.dim: _mean,
    torch.ops.aten.scaled_dot_product_attention.default: _attention,
    torch.ops.aten.split.Tensor: _split,
    torch.ops.aten.unbind.int: _unbind,
    torch.ops.aten.upsample_bilinear2d.vec: _resize,
}
"""Translations of operators for which torch.onnx writes more nodes, unfusable ones, or none of opset 17."""

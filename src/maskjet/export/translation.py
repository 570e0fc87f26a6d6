"""Translate modules to ONNX graphs by `torch.onnx`, with own translations of operators and module names."""

from __future__ import annotations

import ast
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
_ROOT = "network"  # path of the outermost module
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"  # module path of operators on input sizes
_ALL = 1 << 40  # largest folded constant, in elements
_FEW = 8  # largest constant named after its values, in elements


def translate(module: nn.Module, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> ir.Model:
    """Translate a module in eval mode to an ONNX model; the batch is free.

    Inputs are an example each by name; 0 and 1 images would be taken for constants.

    Raises:
        UnsupportedError: It has an operator that can't be exported.
    """
    dims = tuple({0: torch.export.Dim(_BATCH)} for _ in inputs)
    program = torch.export.export(module, (*inputs.values(),), dynamic_shapes=dims, strict=False)
    _drop_views(program.graph)
    try:
        exported = torch.onnx.export(
            program,
            opset_version=_NEWER,
            dynamic_shapes=({0: _BATCH}, *[None] * (len(inputs) - 1)),  # one name for all inputs
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
    named = _name_weights(model.graph)
    optimize_ir(model, input_size_limit=_ALL, output_size_limit=_ALL)
    _name_others(model.graph, named)
    ClearMetadataAndDocStringPass()(model)  # remove paths of this machine
    return model


def _drop_views(graph: torch.fx.Graph) -> None:
    """Drop views that keep the shape; torch.onnx keeps those with a multiple of the batch as first size."""
    for node in graph.nodes:
        if node.target is torch.ops.aten.view.default and node.meta["val"].shape == node.args[0].meta["val"].shape:
            node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")


def _name_weights(graph: ir.Graph) -> set[str]:
    """Name constants folded from weights after these, such as "class_embed.weight.transpose".

    Returns:
        These names.
    """
    named: set[str] = set()
    constants = set(graph.initializers.values())
    for value in graph.initializers.copy().values():
        value.name = _unique(str(value.name), named)
    for node in graph:
        if all(each is None or each in constants for each in node.inputs):
            constants.update(node.outputs)
            for source in node.inputs[:1]:
                if source is not None and source.name in named:
                    node.outputs[0].name = _unique(f"{source.name}.{node.op_type.lower()}", named)
    return named


def _name_others(graph: ir.Graph, taken: set[str]) -> None:
    """Name nodes after the modules that called them, and constants after their values or readers."""
    taken.update(str(each.name) for each in (*graph.inputs, *graph.outputs))
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
        if value.name not in taken:
            tensor, (reader, *_) = value.const_value, value.consumers()
            assert tensor is not None
            name = f"{_module_path(reader)}/constant"
            if tensor.size <= _FEW:
                name = f"number.{'_'.join(map(str, tensor.numpy().flatten()))}"
            value.name = _unique(name, taken)
    for node in graph:
        node.name = _unique(f"{_module_path(node)}/{node.op_type}", taken)
        for index, value in enumerate(node.outputs):
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.name = node.name if len(node.outputs) == 1 else f"{node.name}.{index}"


def _module_path(node: ir.Node) -> str:
    """Path of the module that called an operator; the root's name for the network itself."""
    scopes = ast.literal_eval(node.metadata_props["pkg.torch.onnx.name_scopes"])
    path: str = scopes[-2]
    return _ROOT if path in ("", _NO_MODULE) else path


def _unique(name: str, taken: set[str]) -> str:
    """Make a name unique by a number, and mark it as taken."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


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
    sizes = op.Concat(op.Shape(x, start=0, end=2), op.Constant(value_ints=[*size]), axis=0)
    centres = "align_corners" if is_aligned else "half_pixel"
    return op.Resize(x, None, None, sizes, mode="linear", coordinate_transformation_mode=centres)


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

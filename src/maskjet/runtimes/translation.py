"""PyTorch programs to ONNX graphs: each ATen operator becomes a few nodes, named after the module that called it.

`torch.onnx.export(dynamo=True)` would serve, too. It takes three times as long, and a package that has to fit PyTorch's
version; for the demo model it makes 725 nodes in place of 596, with numbers for names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass
from torch import fx

from maskjet.errors import UnsupportedError, border

OPSET = 17
"""The first with LayerNormalization as one node, and so the one that most versions of runtimes read."""
_IR_VERSION = 8  # of ONNX 1.12, which brought opset 17
BATCH = "batch"
"""Name of the free dimension, the first one of each input and output."""

_TYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.int32: ir.DataType.INT32,
    torch.int64: ir.DataType.INT64,
    torch.bool: ir.DataType.BOOL,
}
_DTYPES = {kind: dtype for dtype, kind in _TYPES.items()}

Size = int | torch.SymInt
"""Size of a dimension; one that is not an int is a multiple of the batch."""
Shape = Sequence[Size] | Sequence[int | ir.SymbolicDim]
"""A shape, of a result of PyTorch's or of a value of the graph."""


@dataclass(frozen=True)
class Constant:
    """A tensor that is known before the file runs; it becomes an initialiser if a node reads it."""

    name: str
    """Name of its parameter or buffer, and the operators applied to it: "class_embed.weight.transpose"."""
    tensor: torch.Tensor
    """Its values, on the CPU."""


@dataclass(frozen=True)
class Expanded:
    """A value or constant to be repeated along dimensions of size 1, which most operators do by themselves."""

    source: ir.Value | Constant
    """What is repeated."""
    shape: Sequence[Size]
    """Sizes after it."""


Operand = ir.Value | Constant | Expanded | bool | int | float
"""A tensor or number that an operator takes or gives."""
Translator = Callable[..., Any]
"""Translates one ATen operator: takes the translation and the operator's arguments, and returns its result."""


class Translation:
    """An ONNX graph in the making.

    Args:
        name: Name of the graph.
        translators: Translators by the names of ATen operators, as "aten.relu.default".
    """

    def __init__(self, name: str, translators: Mapping[str, Translator]) -> None:
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
        self._translators = translators
        self._taken: set[str] = set()
        self._constants: set[str] = set()
        self._initialisers: dict[tuple[str, torch.dtype], ir.Value] = {}
        self._batch: ir.Value | None = None
        self._scope = ""
        self.shape: Sequence[Size] = ()
        """Shape of the result of the operator that is being translated; of the first result if it has several."""
        self.dtype = torch.float32
        """Its dtype."""

    def add_input(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> ir.Value:
        """Add an input [batch, *shape] to the graph."""
        name = _unique(name, self._taken)
        value = ir.Value(name=name, shape=ir.Shape([BATCH, *shape]), type=ir.TensorType(_TYPES[dtype]))
        self._graph.inputs.append(value)
        return value

    def translate(
        self, program: torch.export.ExportedProgram, inputs: Sequence[ir.Value], *, root: str
    ) -> list[ir.Value]:
        """Add a program to the graph.

        Args:
            program: A program whose only free dimension is the batch, the first of each input.
            inputs: Its inputs, values of this graph.
            root: Name of the outermost module; the others' are their paths.

        Returns:
            Its outputs.

        Raises:
            UnsupportedError: The program has an operator without a translator.
        """
        signature = program.graph_signature
        stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        stored |= signature.inputs_to_lifted_tensor_constants
        tensors = {**program.constants, **program.state_dict}
        given = dict(zip(signature.user_inputs, inputs, strict=True))
        results: dict[fx.Node, Any] = {}
        for node in program.graph.nodes:
            self._scope = _module_path(node) or root
            if node.op == "placeholder":
                source = stored.get(node.name)
                constant = None if source is None else Constant(source, tensors[source].detach())
                results[node] = given.get(node.name, constant)
            elif node.op == "call_function":
                results[node] = self._call(node, results)
        (outputs,) = program.graph.output_node().args
        return [self.value(results[node]) for node in outputs if node is not None]

    def finish(self, outputs: Mapping[str, ir.Value]) -> ir.Model:
        """Make a model of the graph, with these outputs by name."""
        for name, value in outputs.items():
            value.name = name
            self._graph.outputs.append(value)
        model = ir.Model(self._graph, ir_version=_IR_VERSION)
        CommonSubexpressionEliminationPass()(model)  # decoder layers sample around the same boxes
        RemoveUnusedNodesPass()(model)
        return model

    def _call(self, node: fx.Node, results: Mapping[fx.Node, Any]) -> Any:
        """Translate one operator, or compute its result now if everything it reads is constant."""
        result = node.meta.get("val")
        if result is None or isinstance(result, torch.SymInt):  # an assertion; or a size, which `self.result` has
            return result
        args, options = fx.map_arg((node.args, node.kwargs), results.__getitem__)
        read = [each for each in _leaves([*args, *options.values()]) if isinstance(each, ir.Value | Expanded)]
        if not read and isinstance(result, torch.Tensor) and all(type(size) is int for size in result.shape):
            return self._fold(node.target, args, options)
        translator = self._translators.get(str(node.target))
        if translator is None:
            raise UnsupportedError(
                f"model must consist of operators that can be exported, got {node.target} in {self._scope}."
            )
        first = result[0] if isinstance(result, tuple | list) else result
        self.shape, self.dtype = first.shape, first.dtype
        with border(
            UnsupportedError, f"model must call {node.target} as it can be exported in {self._scope}, it does not"
        ):
            return translator(self, *args, **options)

    def _fold(self, function: Any, args: Any, options: Any) -> Constant:
        """Compute an operator's result, named after the first constant that it reads."""
        sources = [each for each in _leaves(args) if isinstance(each, Constant)]
        args, options = (
            fx.node.map_aggregate(each, lambda leaf: leaf.tensor if isinstance(leaf, Constant) else leaf)
            for each in (args, options)
        )
        result = function(*args, **options)
        if sources and result is sources[0].tensor:  # converted to the dtype that it had
            return sources[0]
        operator = str(function).split(".")[1]
        name = f"{sources[0].name}.{operator}" if sources else f"{self._scope}/{operator}"
        return Constant(_unique(name, self._constants), result)

    def add(
        self,
        op_type: str,
        *inputs: Operand | None,
        shape: Shape | None = None,
        dtype: torch.dtype | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """Add a node with one output.

        Args:
            op_type: A standard op.
            inputs: Its inputs; None leaves one out.
            shape: Shape of the output; None is that of the operator's result.
            dtype: Its dtype; None is that of the operator's result.
            attributes: The node's attributes.
        """
        form = (self.shape if shape is None else shape, dtype or self.dtype)
        return self.add_several(op_type, *inputs, forms=[form], **attributes)[0]

    def add_several(
        self,
        op_type: str,
        *inputs: Operand | None,
        forms: Sequence[tuple[Shape, torch.dtype]],
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """Add a node with an output for each of the shapes and dtypes; else as `add`."""
        read = [None if each is None else self.value(each) for each in inputs]
        name = _unique(f"{self._scope}/{op_type}", self._taken)
        names = [name] if len(forms) == 1 else [f"{name}.{index}" for index in range(len(forms))]
        outputs = [
            ir.Value(name=each, shape=ir.Shape(map(_describe, shape)), type=ir.TensorType(_TYPES[dtype]))
            for each, (shape, dtype) in zip(names, forms, strict=True)
        ]
        self._graph.append(ir.node(op_type, read, attributes, outputs=outputs, name=name))
        return outputs

    def value(self, operand: Operand, dtype: torch.dtype | None = None) -> ir.Value:
        """The value of an operand, which an initialiser or an Expand makes of it where that is needed.

        Args:
            operand: A value, constant or number.
            dtype: What to convert it to; None leaves it, and makes numbers int64.
        """
        if isinstance(operand, Expanded):
            source = self.value(operand.source, dtype)
            return self.add("Expand", source, self.sizes(operand.shape), shape=operand.shape, dtype=dtype_of(source))
        if isinstance(operand, ir.Value):
            if dtype is None or dtype_of(operand) == dtype:
                return operand
            return self.add("Cast", operand, shape=_shape(operand), dtype=dtype, to=_TYPES[dtype])
        if not isinstance(operand, Constant):
            operand = Constant(f"number.{operand}", torch.tensor(operand, dtype=dtype or torch.int64))
        return self._initialiser(operand.name, operand.tensor.to(dtype or operand.tensor.dtype))

    def reshape(self, operand: Operand, shape: Sequence[Size]) -> ir.Value:
        """Reshape a value, unless it has the shape already."""
        value = self.value(operand)
        if value.shape == ir.Shape(map(_describe, shape)):
            return value
        sizes = [size if type(size) is int else -1 for size in shape]
        return self.add("Reshape", value, self.integers(*sizes), shape=shape, dtype=dtype_of(value))

    def integers(self, *numbers: int) -> ir.Value:
        """A constant int64 vector."""
        return self._initialiser(f"integers.{'_'.join(map(str, numbers))}", torch.tensor(numbers, dtype=torch.int64))

    def sizes(self, shape: Sequence[Size]) -> ir.Value:
        """A shape with the batch in it as an int64 vector, computed as the file runs."""
        if self._batch is None:
            first = self._graph.inputs[0]
            whole = self.add("Shape", first, shape=(len(_shape(first)),), dtype=torch.int64)
            self._batch = self.add("Gather", whole, self.integers(0), shape=(1,), dtype=torch.int64, axis=0)
        parts = []
        for size in shape:
            factor = _factor(size)
            if factor is None:
                parts.append(self.integers(int(size)))
            elif factor == 1:
                parts.append(self._batch)
            else:
                parts.append(self.add("Mul", self._batch, self.integers(factor), shape=(1,), dtype=torch.int64))
        return self.add("Concat", *parts, shape=(len(shape),), dtype=torch.int64, axis=0)

    def _initialiser(self, name: str, tensor: torch.Tensor) -> ir.Value:
        key = (name, tensor.dtype)
        if key not in self._initialisers:
            unique = _unique(name, self._taken)
            value = ir.Value(
                name=unique,
                shape=ir.Shape(tensor.shape),
                type=ir.TensorType(_TYPES[tensor.dtype]),
                const_value=ir.tensor(tensor.contiguous().numpy(), name=unique),
            )
            self._graph.register_initializer(value)
            self._initialisers[key] = value
        return self._initialisers[key]


def _unique(name: str, taken: set[str]) -> str:
    """A name that is not taken, this one or with a number, which then is."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


def _module_path(node: fx.Node) -> str:
    """The path of the module whose code called an operator, "" for the outermost one."""
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    path: str = list(stack.values())[-1][0]
    return path


def _leaves(values: Any) -> list[Any]:
    """What nested lists and tuples hold."""
    return [leaf for each in values for leaf in (_leaves(each) if isinstance(each, list | tuple) else [each])]


def _shape(value: ir.Value) -> Sequence[int | ir.SymbolicDim]:
    """The shape of a value of a graph, all of which have one."""
    assert value.shape is not None
    return value.shape.dims


def _factor(size: Size) -> int | None:
    """The factor by which a size is a multiple of the batch; None if it does not depend on it."""
    if type(size) is int:
        return None
    factor, _ = size.node.expr.as_coeff_Mul()  # type: ignore[union-attr]
    return int(factor)


def _describe(size: Size | ir.SymbolicDim) -> str | int | ir.SymbolicDim:
    """A size as ONNX states it."""
    if isinstance(size, ir.SymbolicDim):  # of another value
        return size
    factor = _factor(size)
    if factor is None:
        return int(size)
    return BATCH if factor == 1 else f"{factor}*{BATCH}"


def dtype_of(value: ir.Value) -> torch.dtype:
    """The dtype of a value of a graph, all of which have one."""
    assert value.dtype is not None
    return _DTYPES[value.dtype]


def size_of(value: ir.Value, axis: int) -> int:
    """The size of a dimension that does not depend on the batch."""
    size = _shape(value)[axis]
    assert isinstance(size, int)
    return size

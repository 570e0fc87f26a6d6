"""Applying the rewrite to a file: read, rewrite, drop unused nodes, write."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from maskjet.errors import InputError, SourceError, first_line, translate_errors
from maskjet.export.onnx_rewrites import level_pooling
from maskjet.export.onnx_rewrites.matching import MismatchError, nodes_of_type
from maskjet.export.onnx_rewrites.report import OptimizedFile
from maskjet.host.files import naming

_OLDEST_OPSET = 13  # first with axes of Squeeze and Unsqueeze as inputs
_LARGEST = 2**31 - 2**24  # bytes of weights in one file: protobuf's limit, less 16 MiB for everything else


def apply_to_file(path: Path, out: Path) -> OptimizedFile:
    """Rewrite a file; errors are as in `optimize_onnx`."""
    model = _read(path)
    before = _count(model)
    with translate_errors(SourceError, f"path must be a valid ONNX file, {str(path)!r} is not"):
        matched, left_alone = _rewrite(model)
        if matched:
            RemoveUnusedNodesPass()(model)
            NameFixPass()(model)
        _write(model, out)
    return OptimizedFile(str(out), matched, left_alone, before, _count(model))


def _rewrite(model: ir.Model) -> tuple[int, list[str]]:
    matched, left_alone = 0, []
    for node in level_pooling.candidates(model):
        label = f"{node.op_type} {node.name or node.outputs[0].name}"  # taken before the node is replaced
        try:
            level_pooling.rewrite(node)
        except MismatchError as reason:
            left_alone.append(f"{label}: {reason}")
        else:
            matched += 1
    return matched, left_alone


def _count(model: ir.Model) -> dict[str, int]:
    return dict(Counter(node.op_type for node in model.graph.all_nodes()))


def _read(path: Path) -> ir.Model:
    try:
        model = ir.load(path)
        model.graph.sort()  # no-op for files in ONNX's order; raises for a cycle
    except OSError as error:
        raise SourceError(f"path must be an ONNX file, got {str(path)!r}: {first_line(error)}.") from error
    except Exception as error:  # an invalid file may raise any exception
        raise SourceError(f"path must be an ONNX file, got {str(path)!r}, which is none.") from error
    if not model.graph.outputs:  # protobuf reads an empty file as an empty model
        raise SourceError(f"path must be an ONNX file, got {str(path)!r}, which holds no graph.")
    opset = model.opset_imports.get("", 0)
    if opset < _OLDEST_OPSET:
        raise InputError(f"path must be of opset {_OLDEST_OPSET} or later, got {opset}: export it again.")
    for tensor in _weights(model):
        if isinstance(tensor, ir.ExternalTensor) and not Path(tensor.path).is_file():
            raise SourceError(f"weights of {str(path)!r} must be in {str(tensor.path)!r}, which is missing.")
    return model


def _write(model: ir.Model, out: Path) -> None:
    weights = _weights(model)
    is_external = any(isinstance(tensor, ir.ExternalTensor) for tensor in weights)
    is_large = sum(tensor.nbytes for tensor in weights) > _LARGEST
    data = f"{out.name}.data" if is_external or is_large else None
    with naming(str(out)):
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f"{out.stem[:32]}.partial.") as folder:
            ir.save(model, Path(folder, out.name), external_data=data)
            for name in filter(None, (data, out.name)):
                Path(folder, name).replace(out.with_name(name))


def _weights(model: ir.Model) -> list[ir.TensorProtocol]:
    graphs = (model.graph, *model.graph.subgraphs())
    values = [value.const_value for graph in graphs for value in graph.initializers.values()]
    stated = (node.attributes.get("value") for node in nodes_of_type(model, "Constant"))
    values += [each.as_tensor() for each in stated if each is not None]
    return [value for value in values if value is not None]

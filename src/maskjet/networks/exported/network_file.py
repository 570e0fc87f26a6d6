"""A network in a file, ONNX or OpenVINO's: its inputs and outputs, checked before a runtime sees the file."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from maskjet import limits
from maskjet.checks import shown
from maskjet.errors import CheckpointError, InputError, translate_errors
from maskjet.host.extras import require
from maskjet.networks.exported.metadata import (
    IR,
    LARGEST_BATCH,
    OUTPUTS,
    FilePrecision,
    Metadata,
    properties_of,
    read_onnx,
)
from maskjet.spec import COCO_CLASS_NAMES, SPECS, ModelSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

_PRECISIONS: Mapping[torch.dtype, FilePrecision] = {torch.float32: "fp32", torch.float16: "fp16"}
# Names of the outputs in the files that rfdetr writes, in the order of `NetworkOutput`'s fields.
_RFDETRS = ("labels", "dets", "masks")
_COCO_LOGITS = 91
_OPSETS = range(13, 27)
"""Supported opsets, those of ONNX 1.8 to 1.21; in older ones operators of these names differ."""


class Port(NamedTuple):
    """An input or output of an exported network."""

    name: str
    dtype: torch.dtype
    """Element type: float32 or float16."""
    shape: tuple[int, ...]
    """Shape without the batch dimension."""


@dataclass
class NetworkFile:
    """A network in an exported file: the `Network` of this family."""

    path: Path
    """The ONNX file, or OpenVINO's .xml."""
    files: tuple[Path, ...]
    """`path` and files of weights outside of it."""
    spec: ModelSpec
    """The network's input size, architecture and classes."""
    precision: FilePrecision
    """Type of weights and activations; the input's type unless it is "bf16" or "int8"."""
    images: Port
    """The input: images [B, 3, H, W]."""
    outputs: tuple[Port, ...]
    """The outputs, in the order of `NetworkOutput`'s fields; two without masks."""
    batch: int | None
    """Fixed batch size; None for any."""
    certificate: Mapping[str, Any] = field(default_factory=dict)
    """What a quantised file was measured to lose; empty for others."""

    def digest(self) -> str:
        """SHA-256 over `files`, shortened to 16 hexadecimal digits."""
        found = hashlib.sha256()
        for path in self.files:
            with (
                translate_errors(CheckpointError, f"model must be a file that can be read, {str(path)!r} can't"),
                path.open("rb") as file,
            ):
                found.update(hashlib.file_digest(file, "sha256").digest())
        return found.hexdigest()[:16]


def read_network_file(path: Path) -> NetworkFile:
    """Read inputs and outputs of an ONNX file, by `export` or rfdetr 1.11, or of a file of OpenVINO's, by `quantize`.

    Raises:
        CheckpointError: It is missing, too large, no such file, or has another opset or other inputs, outputs or shapes
            than such a network; or weights of it lie outside of its folder.
        MissingDependencyError: onnx or openvino is not installed.
    """
    if path.suffix == IR:
        return _read_ir(path)
    proto = read_onnx(path, f"loading {str(path)!r}")
    if not proto.graph.output:  # protobuf parses nearly any bytes
        raise CheckpointError(f"model must be an ONNX file, got {str(path)!r}, which has no outputs.")
    try:
        _check_opset(proto)
        return _describe(path, proto, _weights_files(proto, path))
    except InputError as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded: {error}") from error


def load_openvino(purpose: str) -> Any:
    """Import OpenVINO, without the package by which its converter would tell Intel about each use.

    Raises:
        MissingDependencyError: It is not installed.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return require("openvino", extra="openvino", purpose=purpose)


def _read_ir(path: Path) -> NetworkFile:
    package = load_openvino(f"loading {str(path)!r}")
    files = (path, path.with_suffix(".bin"))
    with translate_errors(CheckpointError, f"model must be a file of OpenVINO's with its .bin, got {str(path)!r}"):
        limits.check("checkpoint_bytes", sum(each.stat().st_size for each in files), "it has", CheckpointError)
        model = package.Core().read_model(str(path))
        stated = model.get_rt_info()
        properties = {key: value.astype(str) for key, value in stated.items() if key.startswith("maskjet.")}
    try:
        metadata = Metadata.from_properties(properties)
        types = {package.Type.f32: torch.float32, package.Type.f16: torch.float16}
        ports = [
            _Value(port.any_name, types[port.element_type], tuple(_size(each) for each in port.partial_shape))
            for port in (*model.inputs, *model.outputs)
        ]
        images, *outputs = _match(metadata.spec, ports)
    except (InputError, KeyError) as error:
        raise CheckpointError(f"{str(path)!r} can't be loaded: {error}") from error
    fixed = ports[0].sizes[0]
    spec, precision, certificate = metadata.spec, metadata.precision, metadata.certificate
    return NetworkFile(path, files, spec, precision, images, tuple(outputs), fixed, certificate)


def _size(dimension: Any) -> int | None:
    return dimension.get_length() if dimension.is_static else None


def _check_opset(proto: ModelProto) -> None:
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version not in _OPSETS:
            raise InputError(f"opset must be {_OPSETS[0]} to {_OPSETS[-1]}, got {opset.version}: export it again.")


def _weights_files(proto: ModelProto, path: Path) -> list[Path]:
    """Files of external weights, all in the ONNX file's folder.

    Raises:
        InputError: They don't, or a file is missing or not a plain one; or they are too large together.
    """
    folder = path.parent.resolve()
    others = set()
    constants = (_constants(function.node) for function in proto.functions)
    for tensor in chain(_tensors(proto.graph), *constants):
        stated = {each.key: each.value for each in tensor.external_data}
        if not stated and tensor.data_location == 0:
            continue
        location = stated.get("location", "")
        other = Path(os.path.realpath(folder / location))
        if not location or Path(location).is_absolute() or not other.is_relative_to(folder) or not other.is_file():
            raise InputError(f"weights must lie in files in its folder, {shown(tensor.name)} is in {shown(location)}.")
        others.add(other)
    total = sum(each.stat().st_size for each in others)
    limits.check("checkpoint_bytes", total, "the files of its weights have", InputError)
    return sorted(others)


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """The weights and constants of a graph and its subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _constants(graph.node)


def _constants(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                if inner.ByteSize():
                    yield from _tensors(inner)


def _describe(path: Path, proto: ModelProto, weights_files: Sequence[Path]) -> NetworkFile:
    weights = {each.name for each in proto.graph.initializer}
    inputs = [each for each in proto.graph.input if each.name not in weights]  # old files also list weights as inputs
    properties = properties_of(proto)
    is_ours = any(key.startswith("maskjet.") for key in properties)
    metadata = Metadata.from_properties(properties) if is_ours else None
    if len(inputs) != 1:
        raise InputError(f"inputs must be one, the images, got {shown([each.name for each in inputs])}.")
    images = _read_value(inputs[0])
    batch, *sides = images.sizes
    if len(sides) != 3 or sides[0] != 3 or None in sides:
        raise InputError(f"its input must be images [batch, 3, H, W] of one size, got {_listed(images.sizes)}.")
    if batch is not None and not 1 <= batch <= LARGEST_BATCH:
        raise InputError(f"its batch must be free or 1 to {LARGEST_BATCH}, got {batch}: export it again.")
    outputs = _read_outputs(proto, OUTPUTS if is_ours else _RFDETRS)
    if metadata is None:
        spec = rfdetr_spec((sides[1] or 0, sides[2] or 0), [each.sizes[1:] for each in outputs])
    else:
        spec = metadata.spec
    first, *others = _match(spec, [images, *outputs])
    files = (path, *weights_files)
    return NetworkFile(path, files, spec, _PRECISIONS[images.dtype], first, tuple(others), batch)


def rfdetr_spec(input_hw: tuple[int, int], outputs: Sequence[tuple[int | None, ...]]) -> ModelSpec:
    """Derive the spec of a network exported by rfdetr 1.11 from its shapes.

    It is that of the named size with these queries and this input; or else that of one whose patches fill the input.
    91 logits are COCO's classes; other classes have no names. Mean and std are ImageNet's, and frames are stretched, as
    rfdetr's are. `outputs` are the shapes after the batch of logits, boxes and, if it has them, mask logits; None for a
    size that is free.

    Raises:
        InputError: No RF-DETR has such shapes.
    """
    queries, classes = outputs[0] if len(outputs[0]) == 2 else (None, None)
    if queries is None or classes is None:
        raise InputError(f"labels must be [batch, queries, classes], got {shown(list(outputs[0]))} after the batch.")
    fitting = [
        spec
        for spec in SPECS.values()
        if spec.has_masks == (len(outputs) > 2)
        and not any(side % (spec.patch_size * spec.windows) for side in input_hw)
    ]
    if not fitting:
        raise InputError(f"its input must have sides that patches of RF-DETR fill, got {shown(list(input_hw))}.")
    closest = min(fitting, key=lambda spec: (spec.queries != queries, spec.input_hw != input_hw))
    return replace(
        closest,
        input_size=input_hw,
        queries=queries,
        class_logits=classes,
        class_names=COCO_CLASS_NAMES if classes == _COCO_LOGITS else {},
    )


class _Value(NamedTuple):
    """An input or output as declared in the ONNX file."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int | None, ...]
    """Shape with the batch dimension; None for a dynamic size."""


def _read_outputs(proto: ModelProto, names: Sequence[str]) -> list[_Value]:
    """Read the outputs in the order of `names`; the last, the masks, may be absent."""
    import onnx

    given = {each.name: each for each in proto.graph.output}
    wanted = [name for name in names if name in given or name != names[-1]]
    if missing := [name for name in wanted if name not in given]:
        raise InputError(f"outputs must be {', '.join(names)}, {missing[0]} is missing.")
    outputs = [_read_value(given[name]) for name in wanted]
    if any(None in each.sizes[1:] for each in outputs):  # as in rfdetr's files with a dynamic batch
        with translate_errors(InputError, "shapes of its outputs must follow from those of its input"):
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        given = {each.name: each for each in inferred.graph.output}
        outputs = [_read_value(given[name]) for name in wanted]
    return outputs


def _read_value(value: ValueInfoProto) -> _Value:
    import onnx

    tensor = value.type.tensor_type
    dtypes: Mapping[int, torch.dtype] = {onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.FLOAT16: torch.float16}
    if tensor.elem_type not in dtypes or not tensor.shape.dim:
        raise InputError(f"{shown(value.name)} must be float32 or float16 tensors, got type {tensor.elem_type}.")
    sizes = tuple(each.dim_value or None for each in tensor.shape.dim)
    return _Value(value.name, dtypes[tensor.elem_type], sizes)


def _match(spec: ModelSpec, values: Sequence[_Value]) -> list[Port]:
    """Check declared shapes against the spec's; dynamic sizes are checked at the first run.

    Raises:
        InputError: They have other shapes, or scores or boxes are of float16.
    """
    shapes: list[tuple[int, ...]] = [(3, *spec.input_hw), (spec.queries, spec.class_logits), (spec.queries, 4)]
    if spec.has_masks:
        shapes.append((spec.queries, *spec.mask_hw))
    if len(values) != len(shapes):
        raise InputError(f"outputs must be {len(shapes) - 1} for {spec.name}, got {len(values) - 1}.")
    for value, shape in zip(values, shapes, strict=True):
        stated = value.sizes[1:]
        if len(stated) != len(shape) or any(a not in (None, b) for a, b in zip(stated, shape, strict=True)):
            raise InputError(f"{value.name} must be {_listed((None, *shape))}, got {_listed(value.sizes)}.")
    for value in values[1:3]:
        if value.dtype != torch.float32:
            raise InputError(f"{value.name} must be float32, got float16: scores and boxes would be rounded.")
    return [Port(value.name, value.dtype, shape) for value, shape in zip(values, shapes, strict=True)]


def _listed(sizes: Sequence[int | None]) -> str:
    """Format a shape, batch included, as text; "any" for a dynamic size."""
    return f"[{', '.join('any' if size is None else str(size) for size in sizes)}]"

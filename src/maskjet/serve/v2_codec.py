"""Parsing and writing bodies of the Open Inference Protocol (KServe v2, REST); pure functions.

A request is JSON, or JSON with the tensors' bytes after it. Then the header Inference-Header-Content-Length states the
JSON's length, and `parameters.binary_data_size` of a tensor states its own; they follow in the order of the inputs:

    {"id": "7",
     "parameters": {"threshold": 0.4, "classes": "car,bus", "max_detections": 10, "timeout": 500000,
                    "binary_data_output": true},
     "inputs": [{"name": "image", "datatype": "UINT8", "shape": [720, 1280, 3],
                 "parameters": {"binary_data_size": 2764800}}],
     "outputs": [{"name": "boxes", "parameters": {"binary_data": false}}, {"name": "masks"}]}

The input `image` is one of

    UINT8 [H, W, 3]      RGB
    UINT8 [N, H, W, 3]   N images of one size, as many as `maskjet serve` takes in one request
    BYTES [N]            N encoded images (JPEG, PNG, WebP, AVIF, BMP, TIFF or GIF), of any sizes

and its values are, row by row,

    UINT8 in binary      the bytes
    UINT8 as JSON        `data`, a list of numbers 0..255, flat or nested as the shape
    BYTES in binary      before each element its length, 4 bytes, little endian
    BYTES as JSON        `data`, a list of base64 texts, as an image is no text of JSON

Parameters are all optional: `threshold`, `classes` (or a list) and `max_detections` are as in `Model.predict`;
`timeout` is in microseconds; an image that waits for longer is not worked on.

The outputs are in `OUTPUTS`. Rows of several images follow each other; `count` says how many belong to each. `masks`
has the counts of COCO RLEs, whose size is the image's row of `image_size`: texts in JSON, BYTES in binary. Without
`outputs` all are returned, as JSON unless `binary_data_output` is true.

Requests are untrusted. Sizes, shapes and offsets are checked as Python's unbounded integers before memory is taken for
them, and JSON of more than `v2_json.MOST_VALUES` values is not parsed, as the parser holds the interpreter lock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.detections import Detections
from maskjet.errors import InputError, suggest
from maskjet.printing import sanitise
from maskjet.serve import v2_images
from maskjet.serve.tickets import Options
from maskjet.serve.v2_json import expect, parse, show, tensor_parameters

__all__ = ["INPUT", "OUTPUTS", "InferRequest", "TensorSpec", "read_json_size", "read_request", "write_response"]

_MOST_CLASSES = 2**12  # names in the parameter `classes`
_MOST_LETTERS = 2**10  # of each of them, and of a request's id


@dataclass(frozen=True)
class TensorSpec:
    """An input or output as the model's metadata shows it."""

    name: str
    """Name in requests and responses."""
    datatype: str
    """The protocol's name of the dtype."""
    shape: tuple[int, ...]
    """Sizes; -1 for any."""


INPUT = TensorSpec(v2_images.NAME, "UINT8", (-1, -1, 3))
"""The input in its simplest form; the module's docstring has the others."""
OUTPUTS = (
    TensorSpec("count", "INT32", (-1,)),
    TensorSpec("image_size", "INT32", (-1, 2)),
    TensorSpec("boxes", "FP32", (-1, 4)),
    TensorSpec("scores", "FP32", (-1,)),
    TensorSpec("class_ids", "INT32", (-1,)),
    TensorSpec("masks", "BYTES", (-1,)),
)
"""Detections per image [N]; (height, width) [N, 2]; and by detection, most confident first within an image: x1, y1, x2,
y2 in pixels [n, 4], confidences [n], ids [n] of the metadata's class_names, and the counts of COCO RLEs [n], which a
model without masks lacks."""

_DTYPES = {"INT32": np.dtype("<i4"), "FP32": np.dtype("<f4")}


@dataclass(frozen=True)
class RequestedOutput:
    """One output of a response."""

    spec: TensorSpec
    """Its name, datatype and shape."""
    is_binary: bool
    """Whether its values follow the JSON as bytes."""


@dataclass(frozen=True)
class InferRequest:
    """A request, checked."""

    images: list[NDArray[np.uint8] | bytes]
    """At least one, in order: uint8 [H, W, 3] RGB, which shares the body's memory; or an encoded image."""
    outputs: tuple[RequestedOutput, ...]
    """Outputs to return, in order."""
    options: Options
    """Threshold, classes and most detections; whether the model has the classes is not checked."""
    id: str | None = None
    """Sent back with the response."""
    timeout_s: float | None = None
    """Seconds that its images may wait in the queue; None for the service's own limit."""


def read_request(
    body: bytes,
    header_length: str | None = None,
    *,
    outputs: Sequence[TensorSpec] = OUTPUTS,
    most_images: int,
    most_pixels: int,
) -> InferRequest:
    """Read the body of an inference request.

    Args:
        body: All of it. Arrays of the result share its memory.
        header_length: Value of Inference-Header-Content-Length; None if there is no such header, and all is JSON.
        outputs: The model's outputs, of `OUTPUTS`.
        most_images: Most images of the request.
        most_pixels: Most pixels of an image that is not encoded.

    Raises:
        ProblemError: 413, there are more images, one has more pixels, or the JSON has too many values.
        InputError: The request is malformed.
    """
    size = read_json_size(header_length, len(body))
    fields = expect(parse(body, size), dict, "The request", "a JSON object")
    for name in ("inputs", "outputs"):
        expect(fields.get(name, []), list, name, "a list of tensors")
    inputs = fields.get("inputs", [])
    if len(inputs) != 1:
        raise InputError(f"inputs must have one tensor, {INPUT.name!r}, got {len(inputs)}.")
    parameters = _read_parameters(fields.get("parameters"))
    return InferRequest(
        images=v2_images.read_images(inputs[0], memoryview(body)[size:], most_images, most_pixels),
        outputs=_read_outputs(fields.get("outputs") or [], outputs, parameters.get("binary_data_output", False)),
        id=_read_id(fields.get("id")),
        options=Options(*(parameters.get(name) for name in ("threshold", "classes", "max_detections"))),
        timeout_s=parameters.get("timeout"),
    )


def write_response(
    found: Sequence[Detections], request: InferRequest, *, model: str, version: str
) -> tuple[bytes, int | None]:
    """Write the body of the response to a request.

    Args:
        found: The detections of each of the request's images.
        request: The request.
        model: The model's name.
        version: Its version.

    Returns:
        The body, and the value of its header Inference-Header-Content-Length; None if it is JSON alone.

    Raises:
        InputError: A box or confidence that is asked for as JSON is not finite.
    """
    described, blobs = [], []
    for output in request.outputs:
        values, shape = _collect(found, output.spec.name)
        tensor: dict[str, Any] = {"name": output.spec.name, "datatype": output.spec.datatype, "shape": shape}
        if output.is_binary:
            blobs.append(_to_bytes(values))
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = _to_json(values, output.spec.name)
        described.append(tensor)
    fields = {"model_name": model, "model_version": version, "outputs": described}
    if request.id is not None:
        fields["id"] = request.id
    header = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([header, *blobs]), len(header) if blobs else None


def read_json_size(text: str | None, body_size: int) -> int:
    """Bytes of JSON at the body's start: all of it without the header Inference-Header-Content-Length.

    Raises:
        InputError: The header is not a number of bytes that the body has.
    """
    if text is None:
        return body_size
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or not 2 <= int(text) <= body_size:
        raise InputError(
            f"Inference-Header-Content-Length must be 2..{body_size}, the body's bytes, got {sanitise(text, 30)!r}."
        )
    return int(text)


def _read_parameters(given: Any) -> dict[str, Any]:
    """The request's parameters, checked, by name.

    Raises:
        InputError: One is unknown or invalid.
    """
    fields = expect({} if given is None else given, dict, "parameters", "a JSON object")
    for name in fields:
        if name not in _READERS:
            raise InputError(f"parameters must be known, got {show(name)}{suggest(name[:60], _READERS)}")
    return {name: _READERS[name](value) for name, value in fields.items()}


def _read_threshold(value: Any) -> float:
    if not 0 <= expect(value, (int, float), "threshold", "a number 0..1") <= 1:
        raise InputError(f"threshold must be 0..1, got {show(value)}.")
    return float(value)


def _read_classes(value: Any) -> tuple[str, ...]:
    expected = "a list of names, or one text with commas between them"
    names = value.split(",") if isinstance(value, str) else expect(value, list, "classes", expected)
    if not 1 <= len(names) <= _MOST_CLASSES:
        raise InputError(f"classes must be 1..{_MOST_CLASSES} names, got {len(names)}.")
    classes = tuple(expect(name, str, "classes", expected).strip() for name in names)
    longest = max(map(len, classes))
    if longest > _MOST_LETTERS:
        raise InputError(f"classes must be names of at most {_MOST_LETTERS} letters, got one of {longest}.")
    return classes


def _read_max_detections(value: Any) -> int:
    if not 1 <= expect(value, int, "max_detections", "a whole number") < 2**31:
        raise InputError(f"max_detections must be at least 1 and fit into 32 bits, got {show(value)}.")
    return int(value)


def _read_timeout_s(value: Any) -> float:
    if not 1 <= expect(value, int, "timeout", "a whole number of microseconds") < 2**63:
        raise InputError(f"timeout must be at least 1 µs and fit into 64 bits, got {show(value)}.")
    return float(1e-6 * value)


def _read_is_binary(value: Any) -> bool:
    return bool(expect(value, bool, "binary_data_output", "true or false"))


_READERS: dict[str, Callable[[Any], Any]] = {
    "threshold": _read_threshold,
    "classes": _read_classes,
    "max_detections": _read_max_detections,
    "timeout": _read_timeout_s,
    "binary_data_output": _read_is_binary,
}


def _read_id(value: Any) -> str | None:
    if value is None:
        return None
    if len(expect(value, str, "id", "a text")) > _MOST_LETTERS:
        raise InputError(f"id must have at most {_MOST_LETTERS} letters, got {len(value)}.")
    return str(value)


def _read_outputs(given: list[Any], known: Sequence[TensorSpec], is_binary: bool) -> tuple[RequestedOutput, ...]:
    if not given:
        return tuple(RequestedOutput(spec, is_binary) for spec in known)
    by_name = {spec.name: spec for spec in known}
    read: dict[str, RequestedOutput] = {}
    for number, tensor in enumerate(given):
        fields = expect(tensor, dict, f"outputs[{number}]", "a JSON object")
        name = expect(fields.get("name"), str, f"outputs[{number}].name", "a text")
        if name not in by_name:
            raise InputError(f"outputs must be of the model's, got {show(name)}{suggest(name[:60], by_name)}")
        if name in read:
            raise InputError(f"outputs must have each name once, got {name!r} twice.")
        parameters = tensor_parameters(fields, name)
        is_one_binary = expect(parameters.get("binary_data", is_binary), bool, f"{name}: binary_data", "true or false")
        read[name] = RequestedOutput(by_name[name], is_one_binary)
    return tuple(read.values())


def _collect(found: Sequence[Detections], name: str) -> tuple[NDArray[Any] | list[bytes], list[int]]:
    """Values and shape of one output."""
    if name == "masks":
        counts = [bytes(rle["counts"]) for one in found for rle in one.rle or []]
        return counts, [len(counts)]
    if name == "count":
        values = np.array([len(one) for one in found])
    elif name == "image_size":
        values = np.array([one.image_size for one in found])
    else:
        field = {"boxes": "xyxy", "scores": "confidence", "class_ids": "class_id"}[name]
        values = np.concatenate([getattr(one, field) for one in found])
    spec = next(spec for spec in OUTPUTS if spec.name == name)
    return values.astype(_DTYPES[spec.datatype]), list(values.shape)


def _to_bytes(values: NDArray[Any] | list[bytes]) -> bytes:
    if isinstance(values, list):
        return b"".join(chain.from_iterable((v2_images.PREFIX.pack(len(one)), one) for one in values))
    return values.tobytes()


def _to_json(values: NDArray[Any] | list[bytes], name: str) -> list[Any]:
    """A flat list, row by row."""
    if isinstance(values, list):
        return [one.decode("ascii") for one in values]
    if not np.isfinite(values).all():
        raise InputError(f"{name} must be finite to be written as JSON; ask for it in binary, with binary_data.")
    return values.ravel().tolist()

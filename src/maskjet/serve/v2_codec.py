"""Codec of the Open Inference Protocol (KServe v2), in the forms that docs/serving.md describes; pure functions.

Requests are untrusted. Sizes, shapes and offsets are checked as Python's unbounded integers before memory is taken for
them, and JSON of more than `v2_json.MOST_VALUES` values is not parsed, as the parser holds the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, StringConstraints

from maskjet.checks import shown
from maskjet.detections import Detections
from maskjet.errors import InputError, suggest
from maskjet.host.printing import sanitise
from maskjet.serve import v2_images
from maskjet.serve.tickets import Options
from maskjet.serve.v2_json import Fields

_Text = Annotated[str, StringConstraints(max_length=2**10)]
_Name = Annotated[_Text, StringConstraints(strip_whitespace=True)]


@dataclass(frozen=True)
class TensorSpec:
    """Description of an input or output in the model's metadata."""

    name: str
    """Name of the tensor in requests and responses."""
    datatype: str
    """Datatype in the protocol's terms, such as FP32."""
    shape: tuple[int, ...]
    """Shape; -1 for dimensions of any size."""


INPUT = TensorSpec(v2_images.NAME, "UINT8", (-1, -1, 3))
"""The input in its simplest form."""
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
Output = tuple[TensorSpec, bool]
"""An output to return, and whether its values follow the JSON in binary."""
_DTYPES = {"INT32": np.dtype("<i4"), "FP32": np.dtype("<f4")}


def _split_names(names: Any) -> Any:
    return names.split(",") if isinstance(names, str) else names


class _Parameters(Fields, extra="forbid"):
    threshold: float | None = Field(default=None, ge=0, le=1)
    classes: Annotated[list[_Name] | None, BeforeValidator(_split_names), Field(min_length=1, max_length=2**12)] = None
    max_detections: int | None = Field(default=None, ge=1, lt=2**31)
    nms: float | None = Field(default=None, ge=0, le=1)
    timeout: int | None = Field(default=None, ge=1, lt=2**63)
    binary_data_output: bool = False


class _OutputParameters(Fields):
    binary_data: bool | None = None
    classification: None = None
    shared_memory_region: None = None


class _Output(Fields):
    name: str
    parameters: _OutputParameters = _OutputParameters()


class InferRequest(Fields):
    """Validated inference request; its image is not decoded yet."""

    id: _Text | None = None
    parameters: _Parameters = _Parameters()
    inputs: list[v2_images.ImageTensor] = Field(min_length=1, max_length=1)
    outputs: list[_Output] = Field(default=[], max_length=len(OUTPUTS))

    def options(self) -> Options:
        """Options of `Model.predict`; whether the model has the classes is not checked."""
        given, classes = self.parameters, self.parameters.classes
        return Options(given.threshold, None if classes is None else tuple(classes), given.max_detections, given.nms)

    def choose_outputs(self, known: Sequence[TensorSpec]) -> list[Output]:
        """Choose the outputs to return, in order, among the `known` ones of the model."""
        by_name, default = {spec.name: spec for spec in known}, self.parameters.binary_data_output
        chosen: dict[str, Output] = {}
        for output in self.outputs or [_Output(name=name) for name in by_name]:
            name, is_binary = output.name, output.parameters.binary_data
            if name not in by_name:
                raise InputError(f"outputs must be of the model's, got {shown(name)}{suggest(name[:60], by_name)}")
            if name in chosen:
                raise InputError(f"outputs must have each name once, got {name!r} twice.")
            chosen[name] = by_name[name], default if is_binary is None else is_binary
        return list(chosen.values())


def write_response(
    found: Sequence[Detections], identity: str | None, outputs: Sequence[Output], model: str, version: str
) -> tuple[bytes, int | None]:
    """Encode the body of a response.

    Returns:
        The body, and the value of its header Inference-Header-Content-Length; None if it is JSON alone.

    Raises:
        InputError: A box or confidence that is asked for as JSON is not finite.
    """
    described, blobs = [], []
    for spec, is_binary in outputs:
        values, shape = _collect(found, spec)
        tensor: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": shape}
        if is_binary:
            blobs.append(_to_bytes(values))
            tensor["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            tensor["data"] = _to_json(values, spec.name)
        described.append(tensor)
    fields = {"model_name": model, "model_version": version, "outputs": described}
    if identity is not None:
        fields["id"] = identity
    header = orjson.dumps(fields)
    return b"".join([header, *blobs]), len(header) if blobs else None


def read_json_size(text: str | None, body_size: int) -> int:
    """Parse the length of the JSON part of a body; all of it without the header. Raises InputError."""
    if text is None:
        return body_size
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or not 2 <= int(text) <= body_size:
        raise InputError(
            f"Inference-Header-Content-Length must be 2..{body_size}, the body's bytes, got {sanitise(text, 30)!r}."
        )
    return int(text)


def _collect(found: Sequence[Detections], spec: TensorSpec) -> tuple[NDArray[Any] | list[bytes], list[int]]:
    """Values and shape of one output, over the detections of all images."""
    name = spec.name
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
    return values.astype(_DTYPES[spec.datatype]), list(values.shape)


def _to_bytes(values: NDArray[Any] | list[bytes]) -> bytes:
    if isinstance(values, list):
        return b"".join(chain.from_iterable((v2_images.PREFIX.pack(len(one)), one) for one in values))
    return values.tobytes()


def _to_json(values: NDArray[Any] | list[bytes], name: str) -> list[Any]:
    """Convert values to a flat JSON list, row by row."""
    if isinstance(values, list):
        return [one.decode("ascii") for one in values]
    if not np.isfinite(values).all():
        raise InputError(f"{name} must be finite to be written as JSON; ask for it in binary, with binary_data.")
    return values.ravel().tolist()

"""Metadata of exported files: JSON texts under keys that begin with "maskjet."."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from maskjet import limits
from maskjet.checks import shown
from maskjet.errors import CheckpointError, InputError, translate_errors
from maskjet.host.extras import require
from maskjet.spec import ModelSpec

if TYPE_CHECKING:
    from onnx import ModelProto

Precision = Literal["fp32", "fp16"]
"""Floating-point type of the weights and activations of a file that `export` writes."""
FilePrecision = Literal["fp32", "fp16", "bf16", "int8"]
"""Type of a file's weights and activations; with "bf16" and "int8" those of the decoder and the input are float32."""
ONNX, IR = ".onnx", ".xml"
"""Suffixes of ONNX files, and of OpenVINO's, whose weights are beside them in a file .bin."""
IMAGES = "images"
"""Name of a file's input."""
OUTPUTS = ("logits", "boxes_cxcywh", "mask_logits")
"""Names of a file's outputs: the fields of `NetworkOutput`, the last only with masks."""
LARGEST_BATCH = 256
"""Most images of a file's fixed batch."""
VERSION = 1
"""Version of the metadata; raised when a key is added or its meaning changes."""
_PREFIX = "maskjet."
_OF_INPUT = ("class_names", "mean", "std")  # fields of the spec with their own key, for other programs
_OF_RESIZE = {"mode": "resize", "color": "letterbox_color", "place": "letterbox_place", "antialias": "antialias"}
"""Keys of maskjet.resize, and the spec's fields."""
_FILTER = {"filter": "bilinear", "centres": "half_pixel"}
_LONGEST = 2**24  # most characters of one value


@dataclass(frozen=True)
class Metadata:
    """The metadata of a file that `export` or `quantize` wrote."""

    spec: ModelSpec
    """The network's input size, architecture and classes."""
    precision: FilePrecision
    """Type of weights and activations."""
    certificate: Mapping[str, Any] = field(default_factory=dict)
    """What a quantised file was measured to lose, see `maskjet.quantize`; else empty."""

    def as_properties(self) -> dict[str, str]:
        """Encode as JSON texts by key."""
        spec = self.spec.as_dict()
        resize = {key: spec.pop(name) for key, name in _OF_RESIZE.items()}
        values = {
            "version": VERSION,
            **{name: spec.pop(name) for name in _OF_INPUT},
            "spec": spec,
            "resize": {**resize, **_FILTER},
            "precision": self.precision,
            **({"certificate": dict(self.certificate)} if self.certificate else {}),
        }
        return {_PREFIX + name: json.dumps(value, allow_nan=False) for name, value in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Metadata:
        """Decode the output of `as_properties`, untrusted; keys of other programs are ignored.

        Raises:
            InputError: A key is missing, unknown or invalid; the message names it.
        """
        stated = {
            key.removeprefix(_PREFIX): _parse(key, text) for key, text in properties.items() if key.startswith(_PREFIX)
        }
        version = stated.get("version")
        if version is None:
            raise InputError("metadata must have keys that begin with maskjet., got none: the file is not of export.")
        if type(version) is not int or version != VERSION:
            raise InputError(f"maskjet.version must be {VERSION}, got {shown(version)}: export the file again.")
        known = {"version", *_OF_INPUT, "spec", "resize", "precision"}
        certificate = stated.pop("certificate", {})
        if stated.pop("selecting", None) is not None:  # files of old versions that include postprocessing
            raise InputError("it must be exported without postprocess, as maskjet chooses detections itself.")
        if differing := sorted(known ^ stated.keys()):
            problem = "missing" if differing[0] in known else "unknown"
            raise InputError(
                f"metadata must have the keys of version {VERSION}, maskjet.{shown(differing[0])[1:-1]} is {problem}."
            )
        elsewhere = (*_OF_INPUT, *_OF_RESIZE.values())
        if not isinstance(stated["spec"], dict) or stated["spec"].keys() & set(elsewhere):
            raise InputError(f"maskjet.spec must be an object without {', '.join(elsewhere)}.")
        resize = stated["resize"] if isinstance(stated["resize"], dict) else {}
        rest = {key: value for key, value in resize.items() if key not in _OF_RESIZE}
        if rest != _FILTER or not _OF_RESIZE.keys() <= resize.keys():
            raise InputError(
                f"maskjet.resize must be {', '.join(_OF_RESIZE)} with {json.dumps(_FILTER)}, "
                f"got {shown(properties[_PREFIX + 'resize'])}."
            )
        if stated["precision"] not in get_args(FilePrecision):
            raise InputError(
                f"maskjet.precision must be one of {get_args(FilePrecision)}, got {shown(stated['precision'])}."
            )
        if not isinstance(certificate, dict):
            raise InputError(f"maskjet.certificate must be an object, got {shown(certificate)}.")
        resizing = {name: resize[key] for key, name in _OF_RESIZE.items()}
        spec = ModelSpec.from_dict({**stated["spec"], **resizing, **{name: stated[name] for name in _OF_INPUT}})
        return cls(spec, stated["precision"], certificate)


def read_onnx(path: Path, purpose: str) -> ModelProto:
    """Read an ONNX file, without the weights that are in other files; errors name what needs onnx as `purpose`.

    Raises:
        CheckpointError: It is missing, too large or no ONNX file.
        MissingDependencyError: onnx is not installed.
    """
    onnx = require("onnx", extra="onnx", purpose=purpose)
    name = repr(str(path))
    with translate_errors(CheckpointError, f"model must be an ONNX file, got {name}"):
        limits.check("checkpoint_bytes", path.stat().st_size, f"{name} has", CheckpointError)
        model: ModelProto = onnx.load(path, load_external_data=False)
        return model


def properties_of(model: ModelProto) -> dict[str, str]:
    """The metadata of an ONNX model, by key.

    Raises:
        InputError: A key is there twice.
    """
    properties = {each.key: each.value for each in model.metadata_props}
    if len(properties) < len(model.metadata_props):  # ambiguous: programs differ in which one they read
        raise InputError("metadata must have each key once, got one twice.")
    return properties


def _parse(key: str, text: str) -> Any:
    if len(text) > _LONGEST:
        raise InputError(f"{shown(key)[1:-1]} must have at most {_LONGEST:,} characters, got {len(text):,}.")
    with translate_errors(InputError, f"{shown(key)[1:-1]} must be JSON"):
        return json.loads(text)

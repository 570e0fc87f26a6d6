"""What an exported file says about its network: JSON under keys that begin with "maskjet.", in the ONNX metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from maskjet import limits
from maskjet.errors import CheckpointError, InputError, translate_errors
from maskjet.extras import require
from maskjet.spec import ModelSpec, check_whole, shown

if TYPE_CHECKING:
    from onnx import ModelProto

Precision = Literal["fp32", "fp16"]
"""Type of a file's weights and activations."""
ONNX, ENGINES = ".onnx", (".engine", ".plan")
"""Suffixes of ONNX files, and of TensorRT's engines."""
VERSION = 1
"""Version of the metadata; each key that is added, or whose meaning changes, raises it."""
_PREFIX = "maskjet."
_OF_INPUT = ("class_names", "mean", "std")  # fields of the spec with a key of their own, as any program needs them
_OF_RESIZE = {"mode": "resize", "color": "letterbox_color", "place": "letterbox_place"}  # those in maskjet.resize
_FILTER = {"filter": "bilinear", "centres": "half_pixel", "antialias": False}
_LONGEST = 2**24  # characters of one value


@dataclass(frozen=True)
class Selecting:
    """How a file chooses detections, if it does."""

    thresholds: tuple[float | None, ...]
    """Per class of the class head, the confidence that a detection must exceed, 0..1; None drops the class."""
    rows: int
    """Number of rows that the file gives for each image."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a file that `export` wrote."""

    spec: ModelSpec
    """Input, architecture and classes."""
    precision: Precision
    """Type of weights, activations and input: "fp32" or "fp16"."""
    selecting: Selecting | None
    """How the file chooses detections; None if it gives the network's outputs."""

    def as_properties(self) -> dict[str, str]:
        """The metadata as ONNX keeps it: JSON by key."""
        spec = self.spec.as_dict()
        resize = {key: spec.pop(name) for key, name in _OF_RESIZE.items()}
        values = {
            "version": VERSION,
            **{name: spec.pop(name) for name in _OF_INPUT},
            "spec": spec,
            "resize": {**resize, **_FILTER},
            "precision": self.precision,
            "selecting": None if self.selecting is None else vars(self.selecting),
        }
        return {_PREFIX + name: json.dumps(value, allow_nan=False) for name, value in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Metadata:
        """Read the output of `as_properties`, which may come from others, and among other programs' keys.

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
        known = {"version", *_OF_INPUT, "spec", "resize", "precision", "selecting"}
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
        if stated["precision"] not in get_args(Precision):
            raise InputError(
                f"maskjet.precision must be one of {get_args(Precision)}, got {shown(stated['precision'])}."
            )
        resizing = {name: resize[key] for key, name in _OF_RESIZE.items()}
        spec = ModelSpec.from_dict({**stated["spec"], **resizing, **{name: stated[name] for name in _OF_INPUT}})
        return cls(spec, stated["precision"], _read_selecting(stated["selecting"], spec))


def read_metadata(path: str | os.PathLike[str]) -> Metadata:
    """Read the metadata of a file that `export` wrote, and check it.

    Args:
        path: An ONNX file.

    Returns:
        What it says about the network. Names are sanitised (`printing.sanitise`).

    Raises:
        CheckpointError: The file is missing, too large or not ONNX, or its metadata are missing, of another version or
            invalid.
        MissingDependencyError: onnx-ir, which brings onnx, is not installed.
    """
    model = read_onnx(Path(path), "path", "read_metadata()")
    try:
        return Metadata.from_properties(properties_of(model))
    except InputError as error:
        raise CheckpointError(f"path must be a file that maskjet export wrote, got {str(path)!r}: {error}") from error


def read_onnx(path: Path, argument: str, purpose: str) -> ModelProto:
    """Read an ONNX file, without the weights that are in other files.

    Errors name the path as `argument`, and what needs onnx as `purpose`.

    Raises:
        CheckpointError: It is missing, too large or no ONNX file.
        MissingDependencyError: onnx is not installed.
    """
    onnx = require("onnx", extra="onnx", purpose=purpose)
    name = repr(str(path))
    with translate_errors(CheckpointError, f"{argument} must be an ONNX file, got {name}"):
        limits.check("checkpoint_bytes", path.stat().st_size, f"{name} has", CheckpointError)
        model: ModelProto = onnx.load(path, load_external_data=False)
        return model


def properties_of(model: ModelProto) -> dict[str, str]:
    """The metadata of an ONNX model, by key.

    Raises:
        InputError: A key is there twice.
    """
    properties = {each.key: each.value for each in model.metadata_props}
    if len(properties) < len(model.metadata_props):  # programs would differ in which one counts
        raise InputError("metadata must have each key once, got one twice.")
    return properties


def _parse(key: str, text: str) -> Any:
    if len(text) > _LONGEST:
        raise InputError(f"{shown(key)[1:-1]} must have at most {_LONGEST:,} characters, got {len(text):,}.")
    with translate_errors(InputError, f"{shown(key)[1:-1]} must be JSON"):
        return json.loads(text)


def _read_selecting(stated: Any, spec: ModelSpec) -> Selecting | None:
    if stated is None:
        return None
    names = {each.name for each in fields(Selecting)}
    if not isinstance(stated, dict) or stated.keys() != names:
        raise InputError(f"maskjet.selecting must be null or have {', '.join(sorted(names))}, got {shown(stated)}.")
    thresholds = stated["thresholds"]
    if (
        not isinstance(thresholds, list)
        or len(thresholds) != spec.class_logits
        or not all(map(_is_threshold, thresholds))
    ):
        raise InputError(
            f"maskjet.selecting must have {spec.class_logits} thresholds, each null or 0..1, got {shown(thresholds)}."
        )
    pairs = min(spec.selected_pairs, spec.queries * spec.class_logits)
    check_whole("rows of maskjet.selecting", stated["rows"], (1, pairs))
    return Selecting(tuple(thresholds), stated["rows"])


def _is_threshold(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)  # type: ignore[operator]

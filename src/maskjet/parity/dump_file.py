"""Reading, writing and checking a dump's file, NumPy's .npz of eight arrays.

Sizes are checked before anything is unpacked, contents afterwards. Faults raise ValueError here; `Dump.load` and
`Dump.save` turn it into one of maskjet's exceptions, which names the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import reprlib
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.errors import SourceError
from maskjet.files import replacing

Header = dict[str, Any]
Fields = Mapping[str, NDArray[Any]]

_DTYPES = {
    "header": ("|u1", ()),
    "sizes": ("<i4", (2,)),
    "counts": ("<i4", ()),
    "xyxy": ("<f4", (4,)),
    "confidence": ("<f4", ()),
    "class_id": ("<i4", ()),
    "string_lengths": ("<i4", ()),
    "strings": ("|u1", ()),
}
"""Name of each array: its dtype, and its shape without the first dimension."""
_HEAD_BYTES = 128  # most of an array's header, which NumPy evaluates as a Python literal
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need memory that the stated sizes do not show
# Most bytes of Python objects for one detection with its mask, for one image, and for one byte of JSON.
_DETECTION_BYTES, _IMAGE_BYTES, _JSON_FACTOR = 700, 1000, 32
_DEEPEST = 8  # levels of the header, which `dataclasses.asdict` and Jinja walk recursively
# Least confidence, as a share of the threshold. JSON keeps the threshold exactly, but a program may round it to its own
# dtype before it compares, or round confidences afterwards. The coarsest dtype is bfloat16, with 8 significant bits:
# rounding to nearest lowers a number by at most 2**-8 of it.
_ROUNDING = 1 - 2**-8


def as_json(value: Any) -> Any:
    """A value as it comes back from JSON: tuples become lists, keys texts."""
    return json.loads(json.dumps(value))


def write(path: Path, header: Header, fields: Fields) -> str:
    """Check a header and arrays, write them to a file once they are complete, and return their digest."""
    header = as_json(header)
    check(header, fields)
    header["digest"] = _digest(header, fields)
    data = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path) as temporary:
        np.savez_compressed(temporary.file, header=data, **fields)  # type: ignore[arg-type]
    return str(header["digest"])


def read(path: Path) -> tuple[Header, Fields]:
    """Read a file that `write` wrote: the parsed header, and arrays of the right dtypes and matching lengths.

    Memory is allocated only after the sizes that the archive and its arrays state agree and keep `limits.dump_bytes`.
    """
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        _check_lengths(_read_lengths(archive), str(path))
        fields = {name: _unpack(archive, name) for name in _DTYPES}
    header = json.loads(fields.pop("header").tobytes())
    _expect(isinstance(header, dict), "header", "a JSON object", header)
    if "digest" in header:  # older dumps have none
        _expect(header["digest"] == _digest(header, fields), "digest", "that of the contents", header["digest"])
    return header, fields


def check(header: Header, fields: Fields) -> None:
    """Check the header and the arrays, also against each other; the masks are not decoded."""
    check_header(header)
    sizes, counts = fields["sizes"].astype(np.int64), fields["counts"]
    images, detections = len(sizes), len(fields["xyxy"])
    for name in ("names", "digests"):
        _expect(len(header[name]) == images, name, f"one per image, {images}", len(header[name]))
    doubles = [name for name, times in Counter[str](header["names"]).items() if times > 1]
    _expect(not doubles, "names", "different", next(iter(doubles), None))
    _expect(bool((sizes >= 1).all()), "sizes", "at least one pixel a side", sizes.min(initial=1))
    limits.check("image_pixels", int(sizes.prod(axis=1).max(initial=0)), "an image of the dump has", SourceError)
    _expect(bool((counts >= 0).all()), "counts", "0 or more", counts.min(initial=0))
    total = int(counts.sum(dtype=np.int64))
    _expect(total == detections, "counts", f"those of {detections} detections", total)
    for name in ("confidence", "class_id"):
        _expect(len(fields[name]) == detections, name, f"one per detection, {detections}", len(fields[name]))
    _check_detections(fields, np.repeat(sizes, counts, axis=0), float(header["variant"]["threshold"]))
    masks, lengths, size = detections if header["has_masks"] else 0, fields["string_lengths"], len(fields["strings"])
    _expect(len(lengths) == masks, "string_lengths", f"one per mask, {masks}", len(lengths))
    _expect(bool((lengths > 0).all()), "string_lengths", "at least 1", lengths.min(initial=1))
    total = int(lengths.sum(dtype=np.int64))
    _expect(total == size, "string_lengths", f"those of {size} bytes", total)


def check_header(header: Header) -> None:
    """Check that the header has all fields, of the right types, with printable names."""
    _check_json(header)
    variant, run = (_field(header, name, dict) for name in ("variant", "run"))
    _field(_field(header, "images", dict), "kind", str)
    name, threshold = _field(variant, "name", str), _field(variant, "threshold", (int, float))
    _expect(name != "" and name.isprintable(), "variant['name']", "in printable characters", name)
    _expect(0 <= threshold < 1, "threshold", "0 or more and below 1", threshold)
    for field in ("names", "digests", "skipped"):
        values = _field(header, field, list) if field in header or field != "skipped" else []
        _expect(all(isinstance(value, str) for value in values), field, "a list of strings", values)
    _field(header, "has_masks", bool)
    for number, title in _field(header, "class_names", dict).items():
        _expect(re.fullmatch("[0-9]{1,9}", number) is not None, "class_names", "by class id", number)
        _expect(isinstance(title, str) and title.isprintable(), "class_names", "in printable characters", title)
    for field in ("cpu", "measured_at"):
        _field(run, field, str)
    if _field(run, "gpu", (dict, type(None))) is not None:
        _field(run["gpu"], "name", str)
    _field(run, "versions", dict)
    _field(run, "commit", (str, type(None)))


def _read_lengths(archive: zipfile.ZipFile) -> dict[str, int]:
    """The arrays' lengths by name. Their headers must state the right dtypes, and the sizes that the archive has."""
    names = sorted(archive.namelist())
    _expect(names == sorted(f"{name}.npy" for name in _DTYPES), "arrays", f"{', '.join(_DTYPES)}, each once", names)
    lengths = {}
    for name, (dtype, more) in _DTYPES.items():
        info = archive.getinfo(f"{name}.npy")
        _expect(info.compress_type in _COMPRESSION, info.filename, "stored or deflated", info.compress_type)
        with archive.open(info) as stream:
            version = np.lib.format.read_magic(stream)
            _expect(version == (1, 0), info.filename, "of version 1.0 of NumPy's format", version)
            shape, _, found = np.lib.format.read_array_header_1_0(stream, max_header_size=_HEAD_BYTES)
            size = info.file_size - stream.tell()
        is_right = found == np.dtype(dtype) and shape[1:] == more and len(shape) > 0
        _expect(is_right, info.filename, f"{dtype} [n, {more}]", (found, shape))
        stated = math.prod(shape) * found.itemsize
        _expect(stated == size, info.filename, f"of the {stated} bytes that its shape {shape} takes", size)
        lengths[name] = shape[0]
    return lengths


def _check_lengths(rows: Mapping[str, int], path: str) -> None:
    """Check the arrays' lengths against each other, then the memory that all of them need."""
    images, detections = rows["sizes"], rows["xyxy"]
    _expect(rows["counts"] == images, "counts", f"one per image, {images}", rows["counts"])
    for name in ("confidence", "class_id"):
        _expect(rows[name] == detections, name, f"one per detection, {detections}", rows[name])
    masks = rows["string_lengths"]
    _expect(masks in (0, detections), "string_lengths", f"none or one per detection, {detections}", masks)
    _expect(rows["strings"] >= masks, "strings", f"those of {masks} masks", rows["strings"])
    size = rows["header"] * _JSON_FACTOR + images * _IMAGE_BYTES + detections * _DETECTION_BYTES + rows["strings"]
    limits.check("dump_bytes", size, f"{path!r} unpacks to", SourceError)


def _unpack(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_HEAD_BYTES))


def _check_detections(fields: Fields, sizes: NDArray[np.int64], threshold: float) -> None:
    """Check confidences, boxes and classes; `sizes` [n, 2] are (height, width) of each detection's image."""
    confidence, boxes, classes = fields["confidence"], fields["xyxy"], fields["class_id"]
    lowest = threshold * _ROUNDING
    is_sure = (confidence >= lowest) & (confidence <= 1)
    _expect(bool(is_sure.all()), "confidence", f"{threshold:g} (the threshold) to 1", confidence[~is_sure][:1])
    reach = np.tile(sizes[:, ::-1], 2)  # (w, h, w, h): a box may reach one image size beyond the border
    is_near = (boxes >= -reach) & (boxes <= 2 * reach)
    _expect(bool(is_near.all()), "xyxy", "finite and near the image", boxes[~is_near][:1])
    _expect(bool((classes >= 0).all()), "class_id", "0 or more", classes.min(initial=0))


def _check_json(value: Any, level: int = 0) -> None:
    """Check that JSON values have finite numbers, text that can be encoded, and limited nesting."""
    if level > _DEEPEST:
        raise ValueError(f"header must be at most {_DEEPEST} levels deep.")
    if isinstance(value, str):
        value.encode()  # raises on half a surrogate pair
    elif isinstance(value, int | float):
        _expect(abs(value) < 2**63, "header's numbers", "finite and below 2**63", value)
    elif isinstance(value, list):
        for each in value:
            _check_json(each, level + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_json(key, level + 1)
            _check_json(each, level + 1)


def _field(of: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of the header, checked to be of one of some types."""
    if name not in of:
        raise ValueError(f"header must have {name!r}, got {reprlib.repr(list(of))}.")
    value = of[name]
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    kinds = kind if isinstance(kind, tuple) else (kind,)
    _expect(is_right, repr(name), " or ".join(each.__name__ for each in kinds), value)
    return value


def _digest(header: Header, fields: Fields) -> str:
    """Digest of the header and the arrays, without the header's own digest field."""
    rest = {name: value for name, value in header.items() if name != "digest"}
    found = hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16)
    for name in sorted(fields):
        found.update(f"{name} {fields[name].shape}".encode())
        found.update(fields[name].tobytes())
    return found.hexdigest()


def _expect(is_right: bool, name: str, expected: str, got: object) -> None:
    if not is_right:
        raise ValueError(f"{name} must be {expected}, got {reprlib.repr(got)}.")

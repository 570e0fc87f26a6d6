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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
_NPY_HEAD = re.compile(
    rb"\x93NUMPY\x01\x00(..)"
    rb"\{'descr': '([<|]\w\d)', 'fortran_order': False, 'shape': \((\d{1,15}),(?: (\d))?\), \} *\n",
    re.DOTALL,
)
_NPY_HEAD_BYTES = 128  # header size of every array here; NumPy pads headers to a multiple of 64
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need memory that the stated sizes do not show
_CHUNK = 2**24
# Most bytes of Python objects for one detection with its mask, for one image, and for one byte of JSON.
_DETECTION_BYTES, _IMAGE_BYTES, _JSON_FACTOR = 700, 1000, 32
_DEEPEST = 8  # levels of the header, which `dataclasses.asdict` and Jinja walk recursively
# Least confidence, as a share of the threshold. JSON keeps the threshold exactly, but a program may round it to its own
# dtype before it compares, or round confidences afterwards. The coarsest dtype is bfloat16, with 8 significant bits:
# rounding to nearest lowers a number by at most 2**-8 of it.
_ROUNDING = 1 - 2**-8


class _Member(NamedTuple):
    """An array in the archive, as its header states it."""

    info: zipfile.ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def as_json(value: Any) -> Any:
    """A value as it comes back from JSON: tuples become lists, keys texts."""
    return json.loads(json.dumps(value))


def write(path: Path, header: Header, fields: Fields) -> str:
    """Check a header and arrays, then write them; an existing file is replaced once the new one is complete.

    Returns:
        The digest of the contents.
    """
    header = as_json(header)
    check(header, fields)
    header["digest"] = _digest(header, fields)
    data = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path) as part:
        np.savez_compressed(part.file, header=data, **fields)  # type: ignore[arg-type]
    return str(header["digest"])


def read(path: Path) -> tuple[Header, Fields]:
    """Read a file that `write` wrote: the parsed header, and arrays of the right dtypes and matching lengths.

    Memory is allocated only after the sizes that the archive and its arrays state agree and keep `limits.dump_bytes`.
    """
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        members = _find_members(archive)
        _check_lengths({name: member.shape[0] for name, member in members.items()}, str(path))
        fields = {name: _unpack(archive, member) for name, member in members.items()}
    header = json.loads(fields.pop("header").tobytes())
    _expect(isinstance(header, dict), "header", "a JSON object", header)
    if "digest" in header:  # older dumps have none
        _expect(header["digest"] == _digest(header, fields), "digest", "that of the contents", header["digest"])
    return header, fields


def check(header: Header, fields: Fields) -> None:
    """Check the header and the arrays, alone and against each other; the masks are not decoded."""
    check_header(header)
    sizes, counts = fields["sizes"].astype(np.int64), fields["counts"]
    images, detections = len(sizes), len(fields["xyxy"])
    for name in ("names", "digests"):
        _expect(len(header[name]) == images, name, f"one per image, {images}", len(header[name]))
    _expect(len(set(header["names"])) == images, "names", "different", _first_double(header["names"]))
    _expect(bool((sizes >= 1).all()), "sizes", "at least one pixel a side", sizes.min(initial=1))
    limits.check("image_pixels", int(sizes.prod(axis=1).max(initial=0)), "an image of the dump has", SourceError)
    _expect(bool((counts >= 0).all()), "counts", "0 or more", counts.min(initial=0))
    total = int(counts.sum(dtype=np.int64))
    _expect(total == detections, "counts", f"those of {detections} detections", total)
    for name in ("confidence", "class_id"):
        _expect(len(fields[name]) == detections, name, f"one per detection, {detections}", len(fields[name]))
    _check_detections(fields, np.repeat(sizes, counts, axis=0), float(header["variant"]["threshold"]))
    _check_strings(fields, detections if header["has_masks"] else 0)


def check_header(header: Header) -> None:
    """Check that the header has all fields, of the right types, with printable names."""
    _check_json(header)
    variant, run = (_part(header, name, dict) for name in ("variant", "run"))
    _part(_part(header, "images", dict), "kind", str)
    name, threshold = _part(variant, "name", str), _part(variant, "threshold", (int, float))
    _expect(name != "" and name.isprintable(), "variant['name']", "in printable characters", name)
    _expect(0 <= threshold < 1, "threshold", "0 or more and below 1", threshold)
    for field in ("names", "digests", "skipped"):
        values = _part(header, field, list) if field in header or field != "skipped" else []
        _expect(all(isinstance(value, str) for value in values), field, "a list of strings", values)
    _part(header, "has_masks", bool)
    for number, title in _part(header, "class_names", dict).items():
        _expect(re.fullmatch("[0-9]{1,9}", number) is not None, "class_names", "by class id", number)
        _expect(isinstance(title, str) and title.isprintable(), "class_names", "in printable characters", title)
    for field in ("cpu", "measured_at"):
        _part(run, field, str)
    if _part(run, "gpu", (dict, type(None))) is not None:
        _part(run["gpu"], "name", str)
    _part(run, "versions", dict)
    _part(run, "commit", (str, type(None)))


def _find_members(archive: zipfile.ZipFile) -> dict[str, _Member]:
    """The arrays by name, with the dtypes and shapes that their headers state."""
    infos = archive.infolist()
    names = sorted(info.filename for info in infos)
    _expect(names == sorted(f"{name}.npy" for name in _DTYPES), "arrays", f"{', '.join(_DTYPES)}, each once", names)
    return {info.filename.removesuffix(".npy"): _read_head(archive, info) for info in infos}


def _read_head(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    """Read an array's header and check it against its size in the archive and the dtype it must have."""
    dtype, more = _DTYPES[info.filename.removesuffix(".npy")]
    _expect(info.compress_type in _COMPRESSION, info.filename, "stored or deflated", info.compress_type)
    with archive.open(info) as stream:
        head = stream.read(_NPY_HEAD_BYTES)
    found = _NPY_HEAD.fullmatch(head)
    if found is None or int.from_bytes(found[1], "little") != _NPY_HEAD_BYTES - 10:
        raise ValueError(f"{info.filename} must be an array as NumPy saves it, it begins with {reprlib.repr(head)}.")
    shape = (int(found[3]), *([int(found[4])] if found[4] else []))
    _expect(found[2] == dtype.encode() and shape[1:] == more, info.filename, f"{dtype} [n, {more}]", (found[2], shape))
    stated = math.prod(shape) * np.dtype(dtype).itemsize
    size = info.file_size - _NPY_HEAD_BYTES
    _expect(stated == size, info.filename, f"of the {stated} bytes that its shape {shape} takes", size)
    return _Member(info, np.dtype(dtype), shape)


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


def _unpack(archive: zipfile.ZipFile, member: _Member) -> NDArray[Any]:
    size = member.info.file_size - _NPY_HEAD_BYTES
    data = np.empty(size, np.uint8)
    with archive.open(member.info) as stream:
        stream.read(_NPY_HEAD_BYTES)
        for start in range(0, size, _CHUNK):
            chunk = stream.read(min(_CHUNK, size - start))
            data[start : start + _CHUNK] = np.frombuffer(chunk, np.uint8)  # raises if it is cut off
    return data.view(member.dtype).reshape(member.shape)


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


def _check_strings(fields: Fields, expected: int) -> None:
    lengths, size = fields["string_lengths"], len(fields["strings"])
    _expect(len(lengths) == expected, "string_lengths", f"one per mask, {expected}", len(lengths))
    _expect(bool((lengths > 0).all()), "string_lengths", "at least 1", lengths.min(initial=1))
    total = int(lengths.sum(dtype=np.int64))
    _expect(total == size, "string_lengths", f"those of {size} bytes", total)


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


def _part(of: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """A field of the header, checked to be of one of some types."""
    if name not in of:
        raise ValueError(f"header must have {name!r}, got {reprlib.repr(list(of))}.")
    value = of[name]
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    kinds = kind if isinstance(kind, tuple) else (kind,)
    _expect(is_right, repr(name), " or ".join(each.__name__ for each in kinds), value)
    return value


def _first_double(names: list[str]) -> str:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), "")  # type: ignore[func-returns-value]


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

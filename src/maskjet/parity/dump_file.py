"""Read, write and check dump files: NumPy's .npz with eight arrays.

Sizes are checked before anything is unpacked, contents afterwards. Faults raise ValueError here; `Dump.load` and
`Dump.save` turn it into one of maskjet's exceptions, which names the file.
"""

from __future__ import annotations

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
from maskjet.host.files import replacing

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
_HEAD_BYTES = 128  # longest array header, which NumPy evaluates as a Python literal
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may need more memory than stated sizes show
# Most bytes of Python objects for one byte of JSON, for one image, and for one detection with its mask.
_ROW_BYTES = {"header": 32, "sizes": 1000, "xyxy": 700}
_DEEPEST = 8  # nesting of the header, which is walked recursively
# Least confidence, as a share of the threshold. JSON keeps the threshold exactly, but a program may round it to its own
# dtype before it compares, or round confidences afterwards. The coarsest dtype is bfloat16, with 8 significant bits:
# rounding to nearest lowers a number by at most 2**-8 of it.
_ROUNDING = 1 - 2**-8


def as_json(value: Any) -> Any:
    """Normalise a value as by a round trip through JSON: tuples become lists, keys texts."""
    return json.loads(json.dumps(value))


def write(path: Path, header: Header, fields: Fields) -> None:
    """Check a header and arrays, and write them to a file atomically."""
    header = as_json(header)
    check(header, fields)
    data = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with replacing(path) as temporary:
        np.savez_compressed(temporary.file, header=data, **fields)  # type: ignore[arg-type]


def read(path: Path) -> tuple[Header, Fields]:
    """Read a file that `write` wrote: the parsed header, and arrays of the right dtypes.

    Memory is taken only after the sizes that the archive states keep `limits.dump_bytes`: no array is read further.
    """
    with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        _check_sizes(archive, str(path))
        fields = {name: _unpack(archive, name) for name in _DTYPES}
    header = json.loads(fields.pop("header").tobytes())
    _expect(isinstance(header, dict), "header", "a JSON object", header)
    return header, fields


def check(header: Header, fields: Fields) -> None:
    """Check the header and the arrays, also against each other; the masks are not decoded."""
    check_header(header)
    sizes, counts = fields["sizes"].astype(np.int64), fields["counts"]
    images, detections = len(sizes), len(fields["xyxy"])
    for name, values in (("names", header["names"]), ("digests", header["digests"]), ("counts", counts)):
        _expect(len(values) == images, name, f"one per image, {images}", len(values))
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
    _check_depth(header)
    json.dumps(header, allow_nan=False, ensure_ascii=False).encode()  # raises on NaN and half a surrogate pair
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


def _check_sizes(archive: zipfile.ZipFile, path: str) -> None:
    """Check the memory that the arrays will take, and Python's objects for their rows, by the sizes in the archive."""
    names = sorted(archive.namelist())
    _expect(names == sorted(f"{name}.npy" for name in _DTYPES), "arrays", f"{', '.join(_DTYPES)}, each once", names)
    size = 0
    for name, (dtype, more) in _DTYPES.items():
        info = archive.getinfo(f"{name}.npy")
        _expect(info.compress_type in _COMPRESSION, info.filename, "stored or deflated", info.compress_type)
        rows = info.file_size // (np.dtype(dtype).itemsize * math.prod(more))
        size += info.file_size + rows * _ROW_BYTES.get(name, 0)
    limits.check("dump_bytes", size, f"{path!r} unpacks to", SourceError)


def _unpack(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array, of the right dtype and dimensions; its length may be any."""
    dtype, more = _DTYPES[name]
    with archive.open(f"{name}.npy") as stream:
        found = np.asarray(np.lib.format.read_array(stream, allow_pickle=False, max_header_size=_HEAD_BYTES))
        _expect(not stream.read(1), name, "an array alone", "more")  # reading to the end also verifies the checksum
    is_right = found.dtype == np.dtype(dtype) and found.ndim == 1 + len(more) and found.shape[1:] == more
    _expect(is_right, name, f"{dtype} [n, {more}]", (found.dtype, found.shape))
    return found


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


def _check_depth(value: Any, level: int = 0) -> None:
    if level > _DEEPEST:
        raise ValueError(f"header must be at most {_DEEPEST} levels deep.")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(each, level + 1)


def _field(of: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """Get a field of the header, checked for its type."""
    if name not in of:
        raise ValueError(f"header must have {name!r}, got {reprlib.repr(list(of))}.")
    value = of[name]
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    kinds = kind if isinstance(kind, tuple) else (kind,)
    _expect(is_right, repr(name), " or ".join(each.__name__ for each in kinds), value)
    return value


def _expect(is_right: bool, name: str, expected: str, got: object) -> None:
    if not is_right:
        raise ValueError(f"{name} must be {expected}, got {reprlib.repr(got)}.")

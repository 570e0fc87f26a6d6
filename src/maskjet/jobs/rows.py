"""Rows of parts: schemas, and conversion of detections to tables and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.host.extras import require
from maskjet.host.printing import as_utf8
from maskjet.version import __version__

if TYPE_CHECKING:
    import pyarrow

SCHEMA = 1
"""Version of the schemas; a reader refuses others."""
METADATA_KEY = b"maskjet"
"""Key of maskjet's JSON in the metadata of a schema."""
_WEAK = "weak_"  # prefix of the columns of weak detections
_FRAMES_AT_ONCE = 1024  # frames per record batch, since list offsets have 32 bits
_BYTES_AT_ONCE = 2**28
_MOST_BYTES = 2**31 - 1


def arrow() -> Any:
    """Import pyarrow, or raise MissingDependencyError."""
    return require("pyarrow", extra="jobs", purpose="maskjet.jobs")


def schema(*, with_weak: bool = False, with_moved: bool = False) -> pyarrow.Schema:
    """Arrow schema of a part, without metadata; docs/jobs.md explains the columns."""
    pa = arrow()

    def column(name: str, kind: Any, *, nullable: bool = False) -> Any:
        return pa.field(name, kind, nullable=nullable)

    def lists(kind: Any) -> Any:
        return pa.list_(column("element", kind))

    about = [
        column("source", pa.string()),
        column("index", pa.int64()),
        column("time_s", pa.float64(), nullable=True),
        column("height", pa.int32()),
        column("width", pa.int32()),
    ]
    found = [
        column("n", pa.int32()),
        column("class_id", lists(pa.int32())),
        column("class_name", lists(pa.string())),
        column("confidence", lists(pa.float32())),
        column("xyxy", lists(pa.list_(column("element", pa.float32()), 4))),
        column("rle", lists(pa.binary()), nullable=True),
    ]
    if with_moved:
        found.append(column("moved", lists(pa.int64())))
    if with_weak:
        found += [each.with_name(_WEAK + each.name) for each in found if each.name not in ("n", "class_name")]
    return pa.schema([*about, *found])


def with_metadata(table: pyarrow.Table, **more: Any) -> pyarrow.Table:
    """Add entries, in JSON types, to maskjet's metadata of a table."""
    return table.replace_schema_metadata({METADATA_KEY: _dump(metadata(table.schema) | more)})


def metadata(of: pyarrow.Schema) -> dict[str, Any]:
    """Parse maskjet's metadata of a schema; raises InputError if this version of maskjet writes none like it."""
    text = (of.metadata or {}).get(METADATA_KEY)
    if text is None:
        raise InputError("part must have maskjet's metadata, this file has none: it is not of a job.")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"part must have metadata in JSON, got {text[:60]!r}.") from error
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        stated = value.get("schema") if isinstance(value, dict) else None
        raise InputError(f"part must have schema {SCHEMA}, got {stated!r}: it is of another version of maskjet.")
    return value


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, allow_nan=False).encode()


@dataclass(frozen=True, eq=False)
class FoundFrame:
    """A frame or image with its detections."""

    source: str
    """Path or URL of the source file."""
    index: int
    """Position of the frame in its file, from 0."""
    time_s: float | None
    """Presentation time of the frame in seconds; None without a clock."""
    found: Detections
    """Detections of the frame."""
    weak: Detections | None = None
    """Weak detections for the tracker; None if the job does not track, and for images."""


class TableBuilder:
    """Builds a table from frames, added in order; `about` are further entries of its metadata, in JSON types."""

    def __init__(self, *, with_weak: bool = False, with_moved: bool = False, **about: Any) -> None:
        self._schema = schema(with_weak=with_weak, with_moved=with_moved).with_metadata(
            {METADATA_KEY: _dump({"version": __version__, "schema": SCHEMA, "bad_frames": []} | about)}
        )
        self._detections = 0
        self._waiting: list[FoundFrame] = []
        self._bytes = 0
        self._batches: list[pyarrow.RecordBatch] = []

    def add(self, frame: FoundFrame) -> None:
        """Add a frame."""
        size = sum(len(rle["counts"]) for each in (frame.found, frame.weak) if each for rle in each.rle or ())
        if size > _MOST_BYTES:
            raise InputError(f"rle must have at most {_MOST_BYTES} bytes in a frame, got {size}.")
        self._detections += len(frame.found)
        self._waiting.append(frame)
        self._bytes += size
        if len(self._waiting) == _FRAMES_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
            self._flush()

    def table(self, **more: Any) -> pyarrow.Table:
        """Build the table of all added frames; metadata: numbers of frames and detections, and `more`."""
        self._flush()
        table = arrow().Table.from_batches(self._batches, schema=self._schema)
        return with_metadata(table, frames=table.num_rows, detections=self._detections, **more)

    def _flush(self) -> None:
        frames, self._waiting, self._bytes = self._waiting, [], 0
        if not frames:
            return
        # Selects the schema's columns, and converts to its types.
        self._batches.append(arrow().RecordBatch.from_pydict(_columns(frames), schema=self._schema))


def _columns(frames: Sequence[FoundFrame]) -> dict[str, Any]:
    """Columns of frames, by name; numbers of detections are arrays, not Python objects."""
    found = [each.found for each in frames]
    about = {
        "source": [as_utf8(each.source) for each in frames],
        "index": [each.index for each in frames],
        "time_s": [each.time_s for each in frames],
        "height": [each.image_size[0] for each in found],
        "width": [each.image_size[1] for each in found],
    }
    weak = [each.found[:0] if each.weak is None else each.weak for each in frames]
    weak_lists = {_WEAK + name: column for name, column in _lists(weak).items()}
    return about | {"n": list(map(len, found))} | _lists(found) | weak_lists


def _lists(found: Sequence[Detections]) -> dict[str, Any]:
    pa = arrow()
    kinds = {field.name: field.type for field in schema(with_moved=True)}
    offsets = pa.array(np.cumsum([0, *map(len, found)]), pa.int32())
    boxes = pa.array(np.concatenate([each.xyxy for each in found]).ravel())
    # A class without a name gets its id, as in `Detections`.
    names = [as_utf8(each.class_names.get(number, str(number))) for each in found for number in each.class_id.tolist()]
    values = {
        "class_id": pa.array(np.concatenate([each.class_id for each in found])),
        "class_name": pa.array(names, pa.string()),
        "confidence": pa.array(np.concatenate([each.confidence for each in found])),
        "xyxy": pa.FixedSizeListArray.from_arrays(boxes, type=kinds["xyxy"].value_type),
    }
    if all(each.moved is not None for each in found):
        values["moved"] = pa.array(np.concatenate([each.moved for each in found]))
    lists = {name: pa.ListArray.from_arrays(offsets, each, type=kinds[name]) for name, each in values.items()}
    masks = [None if each.rle is None else [rle["counts"] for rle in each.rle] for each in found]
    return lists | {"rle": masks}


def read_frames(batch: pyarrow.RecordBatch, class_names: Mapping[int, str]) -> Iterator[FoundFrame]:
    """Convert rows back to frames, equal to those given to `TableBuilder.add`, with sources by `as_utf8`."""
    about = zip(*(batch.column(name).to_pylist() for name in ("source", "index", "time_s")), strict=True)
    found = _read_lists(batch, class_names)
    weak = _read_lists(batch, class_names, _WEAK) if f"{_WEAK}rle" in batch.schema.names else repeat(None)
    for (source, index, time_s), some, weaker in zip(about, found, weak, strict=False):
        yield FoundFrame(source, index, time_s, some, weaker)


def _read_lists(batch: pyarrow.RecordBatch, class_names: Mapping[int, str], start: str = "") -> Iterator[Detections]:
    """Convert list columns to the detections of each row; `start` is the prefix of the columns."""
    columns = {name.removeprefix(start): batch.column(name) for name in batch.schema.names if name.startswith(start)}
    ends = columns["class_id"].offsets.to_numpy()
    class_id = columns["class_id"].values.to_numpy()
    confidence = columns["confidence"].values.to_numpy()
    xyxy = columns["xyxy"].values.flatten().to_numpy().reshape(-1, 4)
    sizes = zip(batch.column("height").to_pylist(), batch.column("width").to_pylist(), strict=True)
    names, strings = columns.get("class_name"), columns["rle"]
    moved = columns["moved"].values.to_numpy() if "moved" in columns else None
    for row, size in enumerate(sizes):
        rows = slice(ends[row], ends[row + 1])
        counts = strings[row].as_py()
        texts = [] if names is None else names[row].as_py()
        yield Detections(
            image_size=size,
            xyxy=xyxy[rows],
            confidence=confidence[rows],
            class_id=class_id[rows],
            rle=None if counts is None else [{"size": [*size], "counts": each} for each in counts],
            class_names={**dict(zip(class_id[rows].tolist(), texts, strict=names is not None)), **class_names},
            moved=None if moved is None else moved[rows],
        )

"""The parts of a job: one Parquet file per segment, named by a digest, whole or not there."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskjet import coco_rle
from maskjet.errors import InputError, MaskjetError, OutputError, SourceError, border, first_line
from maskjet.files import Part, naming
from maskjet.jobs import storage
from maskjet.jobs.rows import SCHEMA, arrow, metadata, schema, unescape
from maskjet.jobs.segments import Segment, digest

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

_FOLDER = "parts"
MANIFEST = "segments.jsonl"
_SUFFIX = ".parquet"
_PARTIAL = ".partial"
_DIGEST = re.compile(r"[0-9a-f]{32}")
# Frames, or detections, of a row group: some ten MB when it is read, in a video with 100 masks a frame.
_ROWS_AT_ONCE = {"frame": 256, "detection": 2**14}


class Parts:
    """The parts in an output's folder: out/parts/ab/abcdef….parquet.

    Args:
        out: The job's output: a path, or the URL of a folder in a store.

    Raises:
        InputError: It is a URL that pyarrow has no file system for.
        MissingDependencyError: pyarrow is not installed.
    """

    def __init__(self, out: str) -> None:
        arrow()
        self._store: _Store = _RemoteStore(out) if storage.is_remote(out) else _LocalStore(out)

    def path_of(self, digest: str) -> str:
        """Path or URL of a part.

        Raises:
            InputError: It is no digest.
        """
        return self._store.name(self._place_of(digest))

    def _place_of(self, digest: str) -> str:
        """Path of a part below the output."""
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"digest must be 32 hexadecimal digits, got {digest!r}.")
        return f"{_FOLDER}/{digest[:2]}/{digest}{_SUFFIX}"

    def write(self, digest: str, table: pyarrow.Table) -> None:
        """Write a part: once this returns, it is whole and on the disk; after an error nothing is left of it.

        Args:
            digest: Its name.
            table: Its rows, with their metadata.

        Raises:
            OutputError: It can't be written, for example because the disk is full.
            InputError: It is no digest, or the table is not of `process`.
        """
        from pyarrow import parquet

        place, rows = self._place_of(digest), metadata(table.schema)["rows"]
        data = io.BytesIO()
        parquet.write_table(
            table, data, compression="zstd", row_group_size=_ROWS_AT_ONCE[rows], write_page_checksum=True
        )
        self._store.write(place, data.getvalue())

    def existing(self, digests: Iterable[str]) -> set[str]:
        """Those of the digests that have a part; lists each folder once, at most 256.

        Raises:
            OutputError: A folder can't be listed.
            InputError: One is no digest.
        """
        wanted: dict[str, set[str]] = {}
        for each in digests:
            wanted.setdefault(os.path.dirname(self._place_of(each)), set()).add(each)  # noqa: PTH120 - no local path
        found: set[str] = set()
        for folder, names in wanted.items():
            found |= names & {
                name.removesuffix(_SUFFIX) for name in self._store.names(folder) if name.endswith(_SUFFIX)
            }
        return found

    @contextmanager
    def open(self, digest: str) -> Iterator[ParquetFile]:
        """Open a part, to be read by row groups; errors of pyarrow's within the context become ours.

        Raises:
            SourceError: There is none, or it is damaged.
            InputError: It is no digest.
        """
        from pyarrow import parquet

        path = self.path_of(digest)
        with (
            border(SourceError, f"part must be a whole Parquet file, {path!r} is not"),
            self._store.open(self._place_of(digest)) as file,
        ):
            yield parquet.ParquetFile(file, page_checksum_verification=True)

    def read(self, digest: str) -> pyarrow.Table:
        """Read a part.

        Raises:
            SourceError: There is none, or it is damaged.
            InputError: It is no digest.
        """
        with self.open(digest) as file:
            return file.read()

    def verify(self, digests: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Read parts with all their columns.

        Args:
            digests: Names of the parts.

        Yields:
            Name and reason of each part that is missing, damaged, or not what its name says.
        """
        for each in digests:
            try:
                table = self.read(each)
                with border(SourceError, "part must be sound, it is not"):
                    _check(each, table)
            except MaskjetError as error:
                yield each, first_line(error)

    def manifest(self) -> Iterator[tuple[str, Segment]]:
        """Name and segment of each part that the job plans, in its order: the lines of out/segments.jsonl.

        Raises:
            SourceError: There is no such file, or a line is not of a job.
        """
        path = self._store.name(MANIFEST)
        with (
            border(SourceError, f"out must be a job's output, {path!r} can't be read"),
            self._store.open(MANIFEST) as file,
            io.BufferedReader(file) as lines,  # files of pyarrow have no lines
        ):
            for line in lines:
                value = json.loads(line)
                self._place_of(value["part"])
                yield value["part"], Segment.from_dict(value["segment"])

    def clean(self) -> int:
        """Remove what killed runs have left of parts, and count it. To be called while no other job writes here.

        Raises:
            OutputError: A folder can't be listed, or a file can't be removed.
        """
        return self._store.clean()


class _Store(Protocol):
    """Holds files below a job's output."""

    def name(self, place: str) -> str:
        """Path or URL of a file."""

    def write(self, place: str, data: bytes) -> None:
        """Write a file that appears whole."""

    def names(self, folder: str) -> Iterable[str]:
        """Names of the files in a folder; none if there is no folder."""

    def open(self, place: str) -> Any:
        """Open a file to read it: a binary file of Python's or pyarrow's."""

    def clean(self) -> int:
        """Remove files that are not whole, and count them."""


class _LocalStore:
    """Files of this machine, or of a file system that it has mounted."""

    def __init__(self, out: str) -> None:
        self._out = Path(out)

    def name(self, place: str) -> str:
        return str(self._out / place)

    def write(self, place: str, data: bytes) -> None:
        path = self._out / place
        part = Part(str(path), suffix="")  # no suffix of Parquet, by which programs find files
        try:
            part.write(data)
            part.finish()
        except BaseException:
            part.remove()
            raise
        with naming(str(path)):
            for folder in (path.parent, path.parent.parent, self._out):  # the first two may be new
                _sync_folder(folder)

    def names(self, folder: str) -> Iterable[str]:
        path = self._out / folder
        with naming(str(path)):
            try:
                return os.listdir(path)  # noqa: PTH208 - paths take more memory
            except FileNotFoundError:
                return []

    def open(self, place: str) -> Any:
        return (self._out / place).open("rb")

    def clean(self) -> int:
        removed = 0
        root = self._out / _FOLDER
        with naming(str(root)):
            for path in root.glob(f"??/*{_PARTIAL}*"):
                path.unlink(missing_ok=True)
                removed += 1
        return removed


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _RemoteStore:
    """Objects of a store, which are there once they are written to their end."""

    def __init__(self, out: str) -> None:
        self._address, _, query = out.partition("?")
        self._query = f"?{query}" if query else ""
        self._system, self._root = storage.resolve(out, "out", OutputError)

    def name(self, place: str) -> str:
        return f"{self._address.rstrip('/')}/{place}{self._query}"

    def write(self, place: str, data: bytes) -> None:
        path = f"{self._root}/{place}"
        try:
            with (
                border(OutputError, f"out must be writable, {self.name(place)!r} is not"),
                self._system.open_output_stream(path) as stream,
            ):
                stream.write(data)
        except BaseException:
            with suppress(Exception):  # closing the stream may have kept what was written so far
                self._system.delete_file(path)
            raise

    def names(self, folder: str) -> Iterable[str]:
        from pyarrow import fs

        with border(OutputError, f"out must be readable, {self.name(folder)!r} is not"):
            selector = fs.FileSelector(f"{self._root}/{folder}", allow_not_found=True)
            return [info.base_name for info in self._system.get_file_info(selector) if info.is_file]

    def open(self, place: str) -> Any:
        return self._system.open_input_file(f"{self._root}/{place}")

    def clean(self) -> int:
        return 0  # an object that was not written to its end has never been there


def _check(name: str, table: pyarrow.Table) -> None:
    """Check that a table is the part of this name.

    Raises:
        InputError: It is not; the message says why.
    """
    about = metadata(table.schema)
    rows = about["rows"]
    if not table.schema.equals(schema(rows), check_metadata=False):
        raise InputError(f"part must have the columns of schema {SCHEMA}, got {', '.join(table.schema.names)[:200]}.")
    with border(InputError, "part must have sound columns, it has not"):
        table.validate(full=True)
    segment = _segment_of(about)
    if digest(segment, about.get("settings", {})) != name:
        raise InputError(f"part must be named by its segment and settings, it is of {segment.name!r}.")
    _check_counts(table, about)
    _check_frames(table, segment)
    (_check_frame_rows if rows == "frame" else _check_detection_rows)(table)


def _segment_of(about: dict[str, Any]) -> Segment:
    """The segment that the metadata states."""
    with border(InputError, "part must state its segment, it does not"):
        return Segment.from_dict(about["segment"])


def _check_counts(table: pyarrow.Table, about: dict[str, Any]) -> None:
    """Check that a table has as many frames and detections as its metadata states."""
    stated = {name: about.get(name) for name in ("frames", "detections")}
    if about["rows"] == "detection":
        found = {"frames": stated["frames"], "detections": table.num_rows}
    else:
        found = {"frames": table.num_rows, "detections": int(table.column("n").to_numpy().sum())}
    if found != stated:
        raise InputError(f"part must have the rows that its metadata states, {stated}, got {found}.")


def _check_frames(table: pyarrow.Table, segment: Segment) -> None:
    """Check that frames are the segment's, in its order, and have a size."""
    index, height, width = (table.column(name).to_numpy() for name in ("index", "height", "width"))
    repeats = "n" not in table.schema.names  # there is a row per detection
    sources = [unescape(each) for each in table.column("source").to_pylist()]
    if repeats:
        sources = [source for source, _ in groupby(sources)]
    if segment.is_video:
        end = np.inf if segment.count is None else segment.first + segment.count
        if ((index < segment.first) | (index >= end)).any() or (np.diff(index) < (0 if repeats else 1)).any():
            raise InputError(f"index must rise from {segment.first} and stay below {end}, got others.")
        wanted = {segment.files[0].path}.issuperset(sources)
    else:
        if index.any():
            raise InputError("index must be 0 for images, got others.")
        paths = (file.path for file in segment.files)
        wanted = all(source in paths for source in sources)  # each after the one before it
    if not wanted:
        raise InputError("source must be the segment's files in their order, got others.")
    if ((height < 0) | (width < 0)).any():
        raise InputError("height and width must be at least 0, got others.")


def _check_frame_rows(table: pyarrow.Table) -> None:
    for batch in table.to_batches():
        n, height, width = (batch.column(name).to_numpy() for name in ("n", "height", "width"))
        for name in ("class_id", "class_name", "confidence", "xyxy", "rle"):
            column = batch.column(name)
            lengths = column.value_lengths()
            is_right = lengths.fill_null(0).to_numpy() == np.where(column.is_null().to_numpy(False), 0, n)
            if not is_right.all():
                row = int(is_right.argmin())
                raise InputError(f"{name} must have as many values as n, {n[row]}, got {lengths[row]}.")
        for row, masks in enumerate(batch.column("rle")):
            for counts in masks.as_py() or ():
                _check_rle(counts, height[row], width[row])


def _check_detection_rows(table: pyarrow.Table) -> None:
    columns = (table.column(name).to_pylist() for name in ("rle", "height", "width"))
    for counts, height, width in zip(*columns, strict=True):
        if counts is not None:
            _check_rle(counts, height, width)


def _check_rle(counts: bytes, height: int, width: int) -> None:
    """Check that counts are a mask of this size; raises InputError."""
    coco_rle.area({"size": [int(height), int(width)], "counts": counts})

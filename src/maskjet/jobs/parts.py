"""Parts: the Parquet files of a job, one per segment, named by a digest and written atomically."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.jobs.folders import Folder
from maskjet.jobs.rows import arrow, metadata
from maskjet.jobs.segments import Segment

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

FOLDER = "parts"
MANIFEST = "segments.jsonl"
_DIGEST = re.compile(r"[0-9a-f]{32}")
_ROWS_AT_ONCE = 256  # per row group: some ten MB in memory, in a video with 100 masks a frame


class Parts:
    """Reads and writes the parts in an output folder, a path or URL: out/parts/ab/abcdef….parquet.

    Methods take digests, and raise InputError if one is none, OutputError if the folder can't be used, and SourceError
    if a part that is read is not there, or damaged.
    """

    def __init__(self, out: str) -> None:
        arrow()
        self._folder = Folder(out)

    def path_of(self, digest: str) -> str:
        """Path or URL of a part."""
        return self._folder.name(self._place_of(digest))

    def _place_of(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise InputError(f"digest must be 32 hexadecimal digits, got {digest!r}.")
        return f"{FOLDER}/{digest[:2]}/{digest}.parquet"

    def write(self, digest: str, table: pyarrow.Table) -> None:
        """Write a table of `process` atomically, and sync it to disk; an error leaves nothing of it."""
        from pyarrow import parquet

        place, data = self._place_of(digest), io.BytesIO()
        metadata(table.schema)  # raises
        parquet.write_table(table, data, compression="zstd", row_group_size=_ROWS_AT_ONCE, write_page_checksum=True)
        self._folder.write(place, data.getvalue())

    def had(self, digest: str) -> bool:
        """Whether a part exists; in a store according to the first listing, see `Folder.had`."""
        return self._folder.had(self._place_of(digest))

    @contextmanager
    def open(self, digest: str) -> Iterator[ParquetFile]:
        """Open a part for reading by row groups; translates pyarrow's errors."""
        from pyarrow import parquet

        path = self.path_of(digest)
        with (
            translate_errors(SourceError, f"part must be a whole Parquet file, {path!r} is not"),
            self._folder.open(self._place_of(digest)) as file,
        ):
            yield parquet.ParquetFile(file, page_checksum_verification=True)

    def manifest(self) -> Iterator[tuple[str, Segment]]:
        """Read the manifest, out/segments.jsonl; yields name and segment of each planned part, in order."""
        path = self._folder.name(MANIFEST)
        with (
            translate_errors(SourceError, f"out must be a job's output, {path!r} can't be read"),
            self._folder.open(MANIFEST) as file,
            io.BufferedReader(file) as lines,  # pyarrow's files can't be read by lines
        ):
            for line in lines:
                value = json.loads(line)
                self._place_of(value["part"])
                yield value["part"], Segment.from_dict(value["segment"])

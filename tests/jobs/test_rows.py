"""Rows: what goes into a table comes out of it, and other programs read the same."""

import dataclasses
import os
import re
from dataclasses import asdict
from pathlib import Path

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pytest

import maskjet
from maskjet.errors import InputError
from maskjet.jobs import rows as jobs_rows
from maskjet.jobs.rows import FoundFrame, TableBuilder, metadata, read_frames, schema
from tests.detections.test_detections import NAMES, some_detections
from tests.jobs.making import assert_equal, made_up, table_of, write_made_up


def frames_of(table):
    return [frame for batch in table.to_batches() for frame in read_frames(batch, NAMES)]


@pytest.mark.parametrize("with_masks", [True, False])
def test_frames_come_back(with_masks):
    segment, frames = made_up(count=9, with_masks=with_masks)
    table = table_of(segment, frames)
    table.validate(full=True)
    assert metadata(table.schema)["version"] == maskjet.__version__
    assert table.column("n").to_pylist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert table.column("rle").null_count == (0 if with_masks else 9)
    for start in range(9):
        for frame, other in zip(frames[start:], frames_of(table.slice(start)), strict=True):
            assert_equal(frame, other)


def test_weak_detections_come_back():
    segment, frames = made_up(count=5)
    weak = [some_detections(3 - index % 3, with_masks=index > 2) for index in range(5)]
    frames = [dataclasses.replace(frame, weak=each) for frame, each in zip(frames, weak, strict=True)]
    about = {"class_names": NAMES, "segment": asdict(segment), "with_weak": True}
    builder = TableBuilder(**about)
    for frame in frames:
        builder.add(frame)
    table = builder.table()
    table.validate(full=True)
    assert metadata(table.schema)["detections"] == sum(table.column("n").to_pylist()) == 6
    for start in range(5):
        for frame, other in zip(frames[start:], frames_of(table.slice(start)), strict=True):
            assert_equal(frame, other)


def test_some_frames_may_have_no_masks():
    segment, frames = made_up(count=6)
    frames[2] = dataclasses.replace(frames[2], found=some_detections(2, with_masks=False))
    table = table_of(segment, frames)
    table.validate(full=True)
    expected = [[rle["counts"] for rle in frame.found.rle] if frame.found.rle is not None else None for frame in frames]
    assert table.column("rle").to_pylist() == expected


def test_many_frames_become_several_batches_with_the_same_rows(monkeypatch):
    segment, frames = made_up(count=50)
    whole = table_of(segment, frames)
    monkeypatch.setattr(jobs_rows, "_FRAMES_AT_ONCE", 7)
    many = table_of(segment, frames)
    monkeypatch.setattr(jobs_rows, "_FRAMES_AT_ONCE", 1000)
    monkeypatch.setattr(jobs_rows, "_BYTES_AT_ONCE", 100)
    assert len(many.to_batches()) == 8
    assert len(table_of(segment, frames).to_batches()) > 8
    assert whole.equals(many)
    assert whole.equals(table_of(segment, frames))


def test_masks_beyond_what_offsets_count_are_refused(monkeypatch):
    monkeypatch.setattr(jobs_rows, "_MOST_BYTES", 10)
    with pytest.raises(InputError, match="rle must have at most 10 bytes in a frame, got"):
        table_of(*made_up(count=4))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "part must have maskjet's metadata, this file has none: it is not of a job"),
        (b"{", "part must have metadata in JSON, got b'{'"),
        (b"[" * 100_000, "part must have metadata in JSON, got b'\\[\\["),
        (b'{"schema": 2}', "part must have schema 1, got 2: it is of another version"),
    ],
)
def test_other_metadata_is_refused(value, message):
    with pytest.raises(InputError, match=message):
        metadata(pa.schema([]) if value is None else pa.schema([], metadata={b"maskjet": value}))


def test_bytes_of_a_path_that_are_no_utf8_are_escapes():
    path = os.fsdecode(b"/data/h\xc3\xa4user \\ caf\xe9.mp4")
    segment, frames = made_up(path, count=3)
    frames[1] = dataclasses.replace(frames[1], found=dataclasses.replace(frames[1].found, class_names={0: "c\udce9t"}))
    table = table_of(segment, frames)
    assert table.column("class_name")[1].as_py() == [r"c\udce9t"]
    assert [frame.source for frame in frames_of(table)] == ["/data/h\u00e4user \\ caf\\udce9.mp4"] * 3
    assert frames_of(table)[1].found.class_names[0] == NAMES[0]  # the model's, which are the same in a job


READERS = {
    "pyarrow": lambda out: pyarrow.dataset.dataset(out / "parts", format="parquet").to_table().to_pylist(),
    "pandas": lambda out: pandas.concat(map(pandas.read_parquet, out.glob("parts/*/*"))).to_dict("records"),
    "duckdb": lambda out: duckdb.sql(f"SELECT * FROM '{out}/parts/*/*.parquet'").to_arrow_table().to_pylist(),
    "polars": lambda out: polars.scan_parquet(f"{out}/parts/*/*.parquet").collect().to_dicts(),
}


def test_other_programs_read_the_same(tmp_path):
    parts = [made_up("a.mp4", 0, 5), made_up("b.mp4", 7, 6)]
    write_made_up(tmp_path, parts)
    expected = [row for part in parts for row in table_of(*part).to_pylist()]
    assert len(expected) == 11
    for name, read in READERS.items():
        found = [{key: plain(value) for key, value in row.items()} for row in read(tmp_path)]
        assert sorted(found, key=repr) == sorted(expected, key=repr), name


def plain(value):
    """A value with lists where a program has arrays."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def test_columns_are_built_without_an_object_per_value():
    """The arrays hold the detections' own numbers, NaN included."""
    found = some_detections(3)
    strange = dataclasses.replace(found, xyxy=np.array([[np.nan, -0.0, np.inf, 1e-45]] * 3, np.float32))
    builder = TableBuilder()
    builder.add(FoundFrame("a.mp4", 0, None, strange))
    (back,) = frames_of(builder.table())
    assert back.found.xyxy.tobytes() == strange.xyxy.tobytes()
    assert back.time_s is None


def test_the_page_has_every_column_in_order():
    page = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    types = {"float": "float32", "double": "float64"}

    def shown(kind):
        if pa.types.is_fixed_size_list(kind):
            return f"{shown(kind.value_type)}[{kind.list_size}]"
        return f"list of {shown(kind.value_type)}" if pa.types.is_list(kind) else types.get(str(kind), str(kind))

    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|[^|]*\|$", page, re.MULTILINE)
    fields = schema(with_weak=True, with_moved=True)
    assert rows == [(field.name, shown(field.type)) for field in fields]
    nullable = {field.name for field in fields if field.nullable}
    assert nullable == {"time_s", "rle", "weak_rle"}

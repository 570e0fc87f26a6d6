"""Rows: what goes into a table comes out of it, and other programs read the same."""

import dataclasses
import os

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskjet
from maskjet.coco_rle import area
from maskjet.errors import InputError
from maskjet.jobs import rows as jobs_rows
from maskjet.jobs.rows import FoundFrame, TableBuilder, check_kind, escape, metadata, read_frames, schema, unescape
from tests.jobs.making import assert_equal, made_up, table_of, write_made_up
from tests.test_detections import NAMES, some_detections


def frames_of(table):
    return [frame for batch in table.to_batches() for frame in read_frames(batch, NAMES)]


@pytest.mark.parametrize("with_masks", [True, False])
def test_frames_come_back(with_masks):
    segment, frames = made_up(count=9, with_masks=with_masks)
    table = table_of(segment, frames)
    table.validate(full=True)
    assert table.column("n").to_pylist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert table.column("rle").null_count == (0 if with_masks else 9)
    for frame, other in zip(frames, frames_of(table), strict=True):
        assert_equal(frame, other)


def test_slices_of_rows_come_back():
    _, frames = made_up(count=9)
    table = table_of(*made_up(count=9))
    for start in range(8):
        for frame, other in zip(frames[start:], frames_of(table.slice(start)), strict=True):
            assert_equal(frame, other)


def test_a_row_per_detection():
    segment, frames = made_up(count=5)
    table = table_of(segment, frames, "detection")
    table.validate(full=True)
    expected = [
        {
            "source": frame.source,
            "index": frame.index,
            "time_s": frame.time_s,
            "height": 48,
            "width": 64,
            "class_id": class_id,
            "class_name": name,
            "confidence": confidence,
            **dict(zip(("x1", "y1", "x2", "y2"), xyxy, strict=True)),
            "rle": rle["counts"],
        }
        for frame in frames
        for class_id, name, confidence, xyxy, rle in zip(
            frame.found.class_id.tolist(),
            frame.found.class_name.tolist(),
            frame.found.confidence.tolist(),
            frame.found.xyxy.tolist(),
            frame.found.rle,
            strict=True,
        )
    ]
    assert len(expected) == 6
    assert table.to_pylist() == expected


@pytest.mark.parametrize("rows", ["frame", "detection"])
def test_some_frames_may_have_no_masks(rows):
    segment, frames = made_up(count=6)
    frames[2] = dataclasses.replace(frames[2], found=some_detections(2, with_masks=False))
    table = table_of(segment, frames, rows)
    table.validate(full=True)
    expected = [[rle["counts"] for rle in frame.found.rle] if frame.found.rle is not None else None for frame in frames]
    if rows == "detection":
        expected = [
            counts for frame, some in zip(frames, expected, strict=True) for counts in some or [None] * len(frame.found)
        ]
    assert table.column("rle").to_pylist() == expected


@pytest.mark.parametrize("rows", ["frame", "detection"])
@pytest.mark.parametrize("frames", [[], made_up(count=1)[1]])
def test_nothing_found(rows, frames):
    table = table_of(made_up(count=1)[0], frames, rows)
    table.validate(full=True)
    assert table.num_rows == (len(frames) if rows == "frame" else 0)
    assert table.schema.equals(schema(rows), check_metadata=False)


@pytest.mark.parametrize("rows", ["frame", "detection"])
def test_many_frames_become_several_batches_with_the_same_rows(rows, monkeypatch):
    segment, frames = made_up(count=50)
    whole = table_of(segment, frames, rows)
    monkeypatch.setattr(jobs_rows, "_FRAMES_AT_ONCE", 7)
    many = table_of(segment, frames, rows)
    monkeypatch.setattr(jobs_rows, "_FRAMES_AT_ONCE", 1000)
    monkeypatch.setattr(jobs_rows, "_BYTES_AT_ONCE", 100)
    assert len(many.to_batches()) == 8
    assert len(table_of(segment, frames, rows).to_batches()) > 8
    assert whole.equals(many)
    assert whole.equals(table_of(segment, frames, rows))


def test_masks_beyond_what_offsets_count_are_refused(monkeypatch):
    monkeypatch.setattr(jobs_rows, "_MOST_BYTES", 10)
    with pytest.raises(InputError, match="rle must have at most 10 bytes in a frame, got"):
        table_of(*made_up(count=4))


def test_metadata_says_what_made_the_rows():
    table = table_of(*made_up(), model="demo")
    about = metadata(table.schema)
    assert about["version"] == maskjet.__version__
    assert (about["schema"], about["rows"], about["bad_frames"], about["model"]) == (1, "frame", [], "demo")
    assert metadata(jobs_rows.with_metadata(table, model="other").schema) == about | {"model": "other"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "part must have maskjet's metadata, this file has none: it is not of a job"),
        (b"{", "part must have metadata in JSON, got b'{'"),
        (b"[" * 100_000, "part must have metadata in JSON, got b'\\[\\["),
        (b"\xff", "part must have metadata in JSON"),
        (b"[]", "part must have schema 1, got None"),
        (b'{"schema": 2, "rows": "frame"}', "part must have schema 1, got 2: it is of another version"),
        (b'{"schema": 1, "rows": "pixel"}', "part must have schema 1"),
        (b'{"schema": 1, "rows": ["frame"]}', "part must have schema 1"),
    ],
)
def test_other_metadata_is_refused(value, message):
    with pytest.raises(InputError, match=message):
        metadata(pa.schema([]) if value is None else pa.schema([], metadata={b"maskjet": value}))


def test_rows_that_there_are():
    assert check_kind("detection") == "detection"
    with pytest.raises(InputError, match='rows must be "frame" or "detection", got \'image\''):
        check_kind("image")


@given(
    st.text(
        alphabet=st.one_of(st.characters(), st.characters(categories=["Cs"]), st.sampled_from('json:\\"')), max_size=20
    )
)
def test_any_text_is_valid_utf8_and_comes_back(text):
    for name in (text, "json:" + text):
        escape(name).encode()
        assert unescape(escape(name)) == name


def test_valid_names_stay_as_they_are():
    for name in ("/data/häuser 日本.mp4", "a\\b", "", "s3://bucket/a.mp4", "a\0b"):
        assert escape(name) == name


def test_a_path_that_is_no_utf8_comes_back():
    path = os.fsdecode(b"/data/caf\xe9.mp4")
    segment, frames = made_up(path, count=3)
    frames[1] = dataclasses.replace(frames[1], found=dataclasses.replace(frames[1].found, class_names={0: "c\udce9t"}))
    table = table_of(segment, frames)
    assert table.column("source")[0].as_py() == 'json:"/data/caf\\udce9.mp4"'
    assert table.column("class_name")[1].as_py() == ['json:"c\\udce9t"']
    assert [frame.source for frame in frames_of(table)] == [path] * 3
    assert frames_of(table)[1].found.class_names[0] == NAMES[0]  # the model's, which are the same in a job


@pytest.mark.parametrize("text", ["json:", "json:{}", "json:'a'", 'json:"a'])
def test_text_that_was_not_escaped_here(text):
    with pytest.raises(InputError, match="source must be a path, or"):
        unescape(text)


@pytest.fixture(scope="module", params=["frame", "detection"])
def job(request, tmp_path_factory):
    """Two parts, what was found in both, and which rows they have."""
    out = tmp_path_factory.mktemp("job")
    parts = [made_up("a.mp4", 0, 5), made_up("b.mp4", 7, 6)]
    write_made_up(out, parts, request.param)
    return out, [frame for _, frames in parts for frame in frames], request.param


def expected_cars(frames):
    """Per car: source, index, confidence, left border, area; most confident first."""
    cars = [
        (frame.source, frame.index, found.confidence.item(), found.xyxy[0, 0].item(), area(found.rle[0]))
        for frame in frames
        for found in frame.found
        if found.class_name[0] == "car"
    ]
    assert len(cars) > 4
    return sorted(cars)


def with_areas(rows):
    """The same of rows with source, index, confidence, x1, height, width and counts."""
    return sorted(
        (source, index, confidence, x1, area({"size": [height, width], "counts": bytes(counts)}))
        for source, index, confidence, x1, height, width, counts in rows
    )


def test_pyarrow_reads_parts(job):
    out, frames, rows = job
    table = pyarrow.dataset.dataset(out / "parts", format="parquet").to_table()
    if rows == "detection":
        cars = table.filter(pyarrow.compute.field("class_name") == "car").to_pylist()
        found = [
            (*(row[name] for name in ("source", "index", "confidence", "x1", "height", "width", "rle")),)
            for row in cars
        ]
    else:
        found = [
            (row["source"], row["index"], confidence, xyxy[0], row["height"], row["width"], counts)
            for row in table.to_pylist()
            for name, confidence, xyxy, counts in zip(
                row["class_name"], row["confidence"], row["xyxy"], row["rle"], strict=True
            )
            if name == "car"
        ]
    assert with_areas(found) == expected_cars(frames)


def test_pandas_reads_parts(job):
    out, frames, rows = job
    table = pandas.concat([pandas.read_parquet(path) for path in (out / "parts").glob("*/*.parquet")])
    if rows == "frame":
        assert table["n"].sum() == sum(len(frame.found) for frame in frames)
        assert set(table.loc[table["n"] == 0, "index"]) == {0, 4, 8, 12}
        table = table.explode(["class_id", "class_name", "confidence", "xyxy", "rle"]).dropna(subset="class_id")
        table["x1"] = table["xyxy"].str[0]
    cars = table[table["class_name"] == "car"]
    names = ["source", "index", "confidence", "x1", "height", "width", "rle"]
    assert with_areas(cars[names].itertuples(index=False, name=None)) == expected_cars(frames)


def test_duckdb_reads_parts(job):
    out, frames, rows = job
    parts = f"read_parquet('{out}/parts/*/*.parquet')"
    if rows == "frame":
        counted = duckdb.sql(f"SELECT sum(n), max(len(rle)) FROM {parts}").fetchall()
        assert counted == [(sum(len(frame.found) for frame in frames), 3)]
        parts = (
            "(SELECT source, index, height, width, unnest(class_name) AS class_name, unnest(confidence) AS confidence, "
            f"unnest(xyxy)[1] AS x1, unnest(rle) AS rle FROM {parts})"
        )
    cars = duckdb.sql(
        f"SELECT source, index, confidence, x1, height, width, rle FROM {parts} WHERE class_name = 'car'"
    ).fetchall()
    assert with_areas(cars) == expected_cars(frames)


def test_polars_reads_parts(job):
    out, frames, rows = job
    table = polars.scan_parquet(f"{out}/parts/*/*.parquet")
    if rows == "frame":
        table = (
            table.filter(polars.col("n") > 0)
            .explode("class_id", "class_name", "confidence", "xyxy", "rle")
            .with_columns(x1=polars.col("xyxy").arr.get(0))
        )
    cars = table.filter(polars.col("class_name") == "car").select(
        "source", "index", "confidence", "x1", "height", "width", "rle"
    )
    assert with_areas(cars.collect().rows()) == expected_cars(frames)


def test_columns_are_built_without_an_object_per_value():
    """The arrays hold the detections' own numbers, NaN included."""
    found = some_detections(3)
    strange = dataclasses.replace(found, xyxy=np.array([[np.nan, -0.0, np.inf, 1e-45]] * 3, np.float32))
    builder = TableBuilder("frame")
    builder.add(FoundFrame("a.mp4", 0, None, strange))
    (back,) = frames_of(builder.table())
    assert back.found.xyxy.tobytes() == strange.xyxy.tobytes()
    assert back.time_s is None

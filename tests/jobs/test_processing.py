"""Processing: a segment's rows are those of `Model.stream` over the whole file, and the same each time."""

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial

import cv2
import numpy as np
import pytest

from maskjet.config import EngineConfig
from maskjet.errors import InputError, SourceError
from maskjet.jobs import processing, storage
from maskjet.jobs.processing import process
from maskjet.jobs.rows import metadata, read_frames
from maskjet.jobs.segments import Segment, SourceFile
from maskjet.model import Model
from maskjet.sources import ahead
from maskjet.sources.frames import Frame, ListSource
from maskjet.sources.images import decode_image
from maskjet.sources.keyframes import CannotEnterError, Entry, cut_video
from maskjet.tiling.layout import UNCUT, Tiling
from tests.jobs.making import images, video, write_street
from tests.networks.test_network import tiny_network
from tests.sources.clips import write_video


def frames_of(table):
    return [frame for batch in table.to_batches() for frame in read_frames(batch, {})]


def as_rows(frames):
    """Index, time and detections of `FoundFrame`s, or of what `Model.stream` yields."""
    return [(frame.index, frame.time_s, frame.found.as_dict()) for frame in frames]


def rows_of(segment, model):
    return as_rows(frames_of(process(segment, model)))


@pytest.fixture(scope="module")
def clip_rows(model, clip):
    """What `Model.stream` finds in the clip."""
    return streamed(model, clip)


def streamed(model, path):
    return [(frame.index, frame.time_s, found.as_dict()) for frame, found in model.stream(str(path))]


def test_a_video(model, clip, clip_rows):
    table = process(video(clip), model)
    assert as_rows(frames_of(table)) == clip_rows
    assert sum(len(found["detections"]) for _, _, found in clip_rows) > 12
    assert set(table.column("source").to_pylist()) == {str(clip)}
    about = metadata(table.schema)
    assert about["bad_frames"] == []
    assert about["class_names"] == {str(key): name for key, name in model.spec.class_names.items()}
    assert Segment.from_dict(about["segment"]) == video(clip)


def test_a_part_without_frames(model, clip, monkeypatch):
    monkeypatch.setattr(processing, "open_part", lambda *_, **__: None)
    assert process(video(clip), model).num_rows == 0


def test_an_entry_that_does_not_hold_is_left(model, clip, clip_rows, monkeypatch):
    open_part, entries = processing.open_part, []

    def leave_off(name, entry):
        yield Frame(5, 0.5, np.zeros((96, 160, 3), np.uint8), name, "wrong")
        raise CannotEnterError(name, entry, "a frame is missing")

    def refusing(name, part, **options):
        entries.append(part.entry)
        if part.entry is None:
            return open_part(name, part, **options)
        source = ListSource([], name)
        source._read = partial(leave_off, name, part.entry)
        return source

    monkeypatch.setattr(processing, "open_part", refusing)
    segment = replace(video(clip, 5, 4), entry=Entry(5, 0, 5))
    assert rows_of(segment, model) == clip_rows[5:9]
    assert entries == [segment.entry, None]


def test_entries_that_hold_or_lie_give_the_same_rows(model, tmp_path):
    path = write_video(tmp_path / "keys.mp4", 12, size=(96, 160), gop=4)
    whole = streamed(model, path)
    parts = cut_video(str(path), seconds=0.3)
    assert [part.first for part in parts] == [0, 4, 8]
    assert parts[1].entry is not None
    for part in parts:
        right = replace(video(path, part.first, part.count), entry=part.entry)
        for segment in (right, replace(right, entry=Entry(part.first, 77, 3))):
            assert rows_of(segment, model) == whole[part.first : part.first + 4]


def test_bad_frames_are_listed_under_the_file_s_own_name(model, clip, monkeypatch):
    copy = "copy-of-17.mp4"
    source = ListSource([], copy)
    source.bad_frames = [(3, f"{copy}: 1 frame missing")]
    monkeypatch.setattr(processing, "open_part", lambda *_, **__: source)
    monkeypatch.setattr(processing.storage, "local_copy", lambda _: nullcontext(copy))
    table = process(video(clip), model)
    assert metadata(table.schema)["bad_frames"] == [[3, f"{clip}: 1 frame missing"]]


@pytest.mark.parametrize("is_changed_meanwhile", [False, True])
def test_a_file_that_changed(model, tmp_path, monkeypatch, is_changed_meanwhile):
    path = write_street(tmp_path / "a.png", 1)
    segment = images([path])

    def change_after(image):
        write_street(path, 2, size_hw=(64, 64))
        return image

    if is_changed_meanwhile:
        monkeypatch.setattr(ahead, "decode_image", lambda *file: change_after(decode_image(*file)))
    else:
        change_after(None)
    with pytest.raises(SourceError, match=r"a\.png"):
        process(segment, model)


@pytest.mark.parametrize("batch", [None, 3])
def test_images(model, pictures, batch):
    table = process(images(pictures), model, batch=batch)
    whole = [*pictures[:2], *pictures[3:]]
    assert table.column("source").to_pylist() == list(map(str, whole))
    assert table.column("index").to_pylist() == [0] * 6
    assert table.column("time_s").null_count == 6
    (bad,) = metadata(table.schema)["bad_frames"]
    assert bad[0] == str(pictures[2])
    assert "2.png" in bad[1]
    if batch is None:
        expected = [model.predict(str(path)).as_dict() for path in whole]
        assert [frame.found.as_dict() for frame in frames_of(table)] == expected


@pytest.fixture
def taken(model, monkeypatch):
    """The frames that the model has found something in, and the options of its stream."""
    stream, seen = model.stream, []

    def noting(source, **options):
        for frame, found in stream(source, **options):
            seen.append((frame.name, options))
            yield frame, found

    monkeypatch.setattr(model, "stream", noting, raising=False)
    return seen


@pytest.mark.parametrize("is_two_stage", [False, True])
def test_batches_are_always_the_same(model, pictures, taken, is_two_stage, monkeypatch):
    if is_two_stage:
        monkeypatch.setattr(processing, "TwoStageSpec", type(model.spec))
    process(images(pictures), model, batch=8)
    sizes = [cv2.imread(name).shape for name, _ in taken]
    large, small = (96, 160, 3), (80, 96, 3)
    assert sizes == ([large] * 3 + [small] * 3 if is_two_stage else [large, small, small, large, small, large])
    assert all((options["batch"], options["whole_batches"]) == (8, True) for _, options in taken)


@pytest.mark.parametrize(("batch", "tiling"), [(1, UNCUT), (4, UNCUT), (4, Tiling(80))])
def test_the_same_bytes_each_time(model, clip, pictures, batch, tiling, monkeypatch):
    """However slowly frames come, and however many are ready when the network is."""
    segments = [video(clip), images(pictures)]
    expected = [process(segment, model, batch=batch, tiling=tiling) for segment in segments]
    open_part = processing.open_part

    def slowly(*args, **options):
        source = open_part(*args, **options)
        source._read = partial(waiting, source._read)
        return source

    def waiting(read):
        for number, frame in enumerate(read()):
            time.sleep(0.04 * (number % 3 == 0))
            yield frame

    monkeypatch.setattr(ahead, "decode_image", lambda *file: time.sleep(0.02) or decode_image(*file))
    monkeypatch.setattr(processing, "open_part", slowly)
    for segment, table in zip(segments, expected, strict=True):
        assert process(segment, model, batch=batch, tiling=tiling).equals(table, check_metadata=True)


def test_tiles_with_what_tracking_needs(clip):
    model, tiling = Model(tiny_network(), EngineConfig(device="cpu"), threshold=0.15), Tiling((64, 80), 0.1, full=False)
    frames = frames_of(process(video(clip), model, track=True, tiling=tiling))
    expected = [found.as_dict() for _, found in model.stream(str(clip), **asdict(tiling))]
    assert [frame.found.as_dict() for frame in frames] == expected
    assert any(each["detections"] for each in expected)
    assert any(len(frame.weak) for frame in frames)


def test_between_detected_frames_detections_are_moved(model, clip):
    table = process(video(clip), model, detect=3, track=True)
    frames = frames_of(table)
    expected = list(model.stream(str(clip), detect=3))
    assert [frame.found.as_dict() for frame in frames] == [found.as_dict() for _, found in expected]
    assert any(frame.found.moved.any() for frame in frames)
    assert not any(frame.found.moved.any() for frame in (frames[0], frames[-1]))
    assert process(video(clip), model, detect=3, track=True).equals(table, check_metadata=True)


def test_images_of_a_store(model, pictures, monkeypatch):
    """Each is read from the store's bytes, as if it lay in a file."""
    urls = [f"file://{path}" for path in pictures]
    remote = Segment(tuple(map(storage.describe, urls)), is_video=False)
    expected = process(images(pictures), model)
    monkeypatch.setattr(processing, "read_encoded", None)
    for batch in (1, 2):
        table = process(remote, model, batch=batch)
        assert table.column("source").to_pylist() == [*urls[:2], *urls[3:]]
        assert [name for name, _ in metadata(table.schema)["bad_frames"]] == [urls[2]]
        assert batch > 1 or table.drop(["source"]).equals(expected.drop(["source"]))


def test_objects_that_went_or_are_too_large(model, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "check_unchanged", lambda _: None)
    url = f"file://{tmp_path}/gone.png"
    with pytest.raises(SourceError, match=r"source must be readable, 'file://.*/gone\.png' is not"):
        process(Segment((SourceFile(url, 1, 1),), is_video=False), model)
    table = process(Segment((SourceFile(url, 2**40, 1),), is_video=False), model)  # which is not read
    ((name, reason),) = metadata(table.schema)["bad_frames"]
    assert name == url
    assert "1,099,511,627,776 bytes, the limit is" in reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": True}, "every must be a whole number of at least 1, got True"),
        ({"detect": 65}, "detect must be a whole number from 1 to 64"),
        ({"batch": 0}, "batch must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_options_are_named(model, clip, options, message):
    with pytest.raises(InputError, match=message):
        process(video(clip), model, **options)

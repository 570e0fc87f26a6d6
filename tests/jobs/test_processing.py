"""Processing: a segment's rows are those of `Model.stream` over the whole file, and the same each time."""

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace

import cv2
import numpy as np
import pytest

import maskjet.jobs
from maskjet import traffic
from maskjet.errors import InputError, SourceError
from maskjet.jobs import processing
from maskjet.jobs.processing import process
from maskjet.jobs.rows import metadata, read_frames
from maskjet.jobs.segments import Segment
from maskjet.media.frames import Frame, ListSource, Source
from maskjet.media.images import read_image
from maskjet.media.keyframes import CannotEnterError, Entry, cut_video
from tests.jobs.making import images, video, write_street
from tests.media.test_frames import write_video


def frames_of(table):
    return [frame for batch in table.to_batches() for frame in read_frames(batch, {})]


def as_rows(frames):
    """Index, time and detections of `FoundFrame`s, or of what `Model.stream` yields."""
    return [(frame.index, frame.time_s, frame.found.as_dict()) for frame in frames]


def streamed(model, source, **options):
    return [(frame.index, frame.time_s, found.as_dict()) for frame, found in model.stream(source, **options)]


def test_a_video(model, clip):
    table = process(video(clip), model)
    rows = as_rows(frames_of(table))
    assert rows == streamed(model, str(clip))
    assert sum(len(found["detections"]) for _, _, found in rows) > 12
    assert set(table.column("source").to_pylist()) == {str(clip)}
    about = metadata(table.schema)
    assert about["bad_frames"] == []
    assert about["class_names"] == {str(key): name for key, name in model.spec.class_names.items()}
    assert Segment.from_dict(about["segment"]) == video(clip)


@pytest.mark.parametrize("every", [1, 3])
def test_segments_of_a_video_are_the_whole(model, clip, every):
    whole = [row for row in streamed(model, str(clip)) if row[0] % every == 0]
    parts = [video(clip, 0, 5), video(clip, 5, 2), video(clip, 7)]
    assert [row for part in parts for row in as_rows(frames_of(process(part, model, every=every)))] == whole


def test_a_row_per_detection(model, clip):
    frames, detections = (process(video(clip), model, rows=rows) for rows in ("frame", "detection"))
    assert detections.num_rows == sum(frames.column("n").to_pylist())
    assert detections.column("rle").to_pylist() == [each for row in frames.column("rle").to_pylist() for each in row]


def test_a_part_without_frames(model, clip, monkeypatch):
    monkeypatch.setattr(processing, "open_part", lambda *_, **__: None)
    assert process(video(clip), model).num_rows == 0


class LeavesOff(Source):
    """A frame, then an entry that does not hold after all."""

    kind = "video"

    def __init__(self, name, entry):
        super().__init__(name)
        self.entry = entry

    def _read(self):
        yield Frame(5, 0.5, np.zeros((96, 160, 3), np.uint8), self.name, "wrong")
        raise CannotEnterError(self.name, self.entry, "a frame is missing")


@pytest.mark.parametrize("when", ["opening", "reading"])
def test_an_entry_that_does_not_hold_is_left(model, clip, monkeypatch, when):
    open_part, entries = processing.open_part, []

    def refusing(name, part, **options):
        entries.append(part.entry)
        if part.entry is None:
            return open_part(name, part, **options)
        if when == "opening":
            raise CannotEnterError(name, part.entry, "it is none")
        return LeavesOff(name, part.entry)

    monkeypatch.setattr(processing, "open_part", refusing)
    segment = Segment(video(clip).files, is_video=True, first=5, count=4, entry=Entry(5, 0, 5))
    assert as_rows(frames_of(process(segment, model))) == streamed(model, str(clip))[5:9]
    assert entries == [segment.entry, None]


def test_entries_that_hold_or_lie_give_the_same_rows(model, tmp_path):
    path = write_video(tmp_path / "keys.mp4", 12, size=(96, 160), gop=4)
    whole = streamed(model, str(path))
    parts = cut_video(str(path), seconds=0.3)
    assert [part.first for part in parts] == [0, 4, 8]
    assert parts[1].entry is not None
    for part in parts:
        right = Segment(video(path).files, is_video=True, first=part.first, count=part.count, entry=part.entry)
        lying = replace(right, entry=Entry(part.first, 77, 3))
        for segment in (right, lying):
            assert as_rows(frames_of(process(segment, model))) == whole[part.first : part.first + 4]


def test_bad_frames_are_listed_under_the_file_s_own_name(model, clip, monkeypatch):
    copy = "copy-of-17.mp4"
    source = ListSource([], copy)
    source.bad_frames = [(3, f"{copy}: 1 frame missing")]
    monkeypatch.setattr(processing, "open_part", lambda *_, **__: source)
    monkeypatch.setattr(processing.storage, "local_copy", lambda _: nullcontext(copy))
    table = process(video(clip), model)
    assert metadata(table.schema)["bad_frames"] == [[3, f"{clip}: 1 frame missing"]]


def test_a_file_that_is_no_video(model, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"nothing" * 1000)
    with pytest.raises(SourceError, match=r"a\.mp4"):
        process(video(tmp_path / "a.mp4"), model)


@pytest.mark.parametrize("is_changed_meanwhile", [False, True])
def test_a_file_that_changed(model, tmp_path, monkeypatch, is_changed_meanwhile):
    path = write_street(tmp_path / "a.png", 1)
    segment = images([path])

    def change():
        write_street(path, 2, size_hw=(64, 64))

    def decode_then_change(path):
        image = read_image(path)
        change()
        return image

    if is_changed_meanwhile:
        monkeypatch.setattr(processing, "read_image", decode_then_change)
    else:
        change()
    with pytest.raises(SourceError, match=r"a\.png"):
        process(segment, model)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Images of two sizes in turn, with one that is damaged, and their paths."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [write_street(folder / f"{i}.png", i, size_hw=[(96, 160), (80, 96)][i % 2]) for i in range(6)]
    paths.insert(2, folder / "damaged.png")
    paths[2].write_bytes(paths[0].read_bytes()[:500])
    return paths


@pytest.mark.parametrize("batch", [None, 3])
def test_images(model, pictures, batch):
    table = process(images(pictures), model, batch=batch)
    whole = [path for path in pictures if path.name != "damaged.png"]
    assert table.column("source").to_pylist() == list(map(str, whole))
    assert table.column("index").to_pylist() == [0] * 6
    assert table.column("time_s").null_count == 6
    (bad,) = metadata(table.schema)["bad_frames"]
    assert bad[0] == str(pictures[2])
    assert "damaged.png" in bad[1]
    if batch is None:
        expected = [found.as_dict() for found in model.predict(list(map(str, whole)))]
        assert [frame.found.as_dict() for frame in frames_of(table)] == expected


def test_batches_are_of_one_size_and_always_the_same(model, pictures, monkeypatch):
    stream, seen = model.stream, []

    def noting(source, **options):
        for frame, found in stream(source, **options):
            seen.append((frame.name, options))
            yield frame, found

    monkeypatch.setattr(model, "stream", noting, raising=False)
    process(images(pictures), model, batch=8)
    sizes = [cv2.imread(name).shape for name, _ in seen]
    assert sizes == [(96, 160, 3)] * 3 + [(80, 96, 3)] * 3
    assert all(options == {"batch": 8, "whole_batches": True} for _, options in seen)


def test_only_bad_images(model, tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8")
    table = process(images([tmp_path / "a.png", tmp_path / "b.jpg"]), model)
    assert table.num_rows == 0
    assert [name for name, _ in metadata(table.schema)["bad_frames"]] == [
        str(tmp_path / "a.png"),
        str(tmp_path / "b.jpg"),
    ]


@pytest.mark.parametrize("batch", [1, 4])
def test_the_same_bytes_each_time(model, clip, pictures, batch, monkeypatch):
    """However slowly frames come, and however many are ready when the network is."""
    segments = [video(clip), images(pictures)]
    expected = [process(segment, model, batch=batch) for segment in segments]
    decode = processing.read_image
    monkeypatch.setattr(processing, "read_image", lambda path: threading.Event().wait(0.05) or decode(path))
    open_part = processing.open_part

    def slowly(*args, **options):
        source = open_part(*args, **options)
        read = source._read

        def wait():
            for number, frame in enumerate(read()):
                threading.Event().wait(0.05 * (number % 3 == 0))
                yield frame

        source._read = wait
        return source

    monkeypatch.setattr(processing, "open_part", slowly)
    for segment, table in zip(segments, expected, strict=True):
        assert process(segment, model, batch=batch).equals(table, check_metadata=True)


def test_images_of_a_store(model, pictures, tmp_path, monkeypatch):
    """Each is read from the store's bytes, as if it lay in a file."""
    from pyarrow import fs

    asked = []

    def resolve(url):
        asked.append(url)
        return fs.LocalFileSystem(), url.removeprefix("store://")

    local = images(pictures)
    remote = Segment(
        tuple(type(file)(f"store://{file.path}", file.size, file.modified_ns) for file in local.files), is_video=False
    )
    expected = process(local, model)
    monkeypatch.setattr(processing.storage, "is_remote", lambda url: url.startswith("store://"))
    monkeypatch.setattr(processing.storage, "resolve", resolve)
    monkeypatch.setattr(processing.storage, "check_unchanged", lambda _: None)
    for batch in (1, 2):
        table = process(remote, model, batch=batch)
        assert table.column("source").to_pylist() == [
            f"store://{name}" for name in expected.column("source").to_pylist()
        ]
        assert [name for name, _ in metadata(table.schema)["bad_frames"]] == [f"store://{pictures[2]}"]
    assert process(remote, model).drop(["source"]).equals(expected.drop(["source"]))
    assert set(asked) == {file.path for file in remote.files}
    gone = Segment((type(local.files[0])(f"store://{tmp_path}/gone.png", 1, 1),), is_video=False)
    with pytest.raises(SourceError, match=r"source must be readable, 'store://.*/gone\.png' is not"):
        process(gone, model)


def test_objects_that_are_too_large_are_not_read(model, monkeypatch):
    monkeypatch.setattr(processing.storage, "is_remote", lambda _: True)
    monkeypatch.setattr(processing.storage, "check_unchanged", lambda _: None)
    monkeypatch.setattr(processing.storage, "resolve", lambda _: pytest.fail("it was read"))
    segment = Segment((processing.SourceFile("store://a.png", 2**40, 1),), is_video=False)
    ((name, reason),) = metadata(process(segment, model).schema)["bad_frames"]
    assert name == "store://a.png"
    assert "1,099,511,627,776 bytes, the limit is" in reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "image"}, 'rows must be "frame" or "detection", got \'image\''),
        ({"every": 0}, "every must be a whole number of at least 1, got 0"),
        ({"every": 1.5}, "every must be a whole number of at least 1, got 1.5"),
        ({"every": True}, "every must be a whole number of at least 1, got True"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
    ],
)
def test_bad_options_are_named(model, clip, options, message):
    with pytest.raises(InputError, match=message):
        process(video(clip), model, **options)


def test_images_are_read_a_bounded_number_ahead(model, tmp_path, monkeypatch):
    path = write_street(tmp_path / "a.png", 1)
    segment = images([path] * 40)
    lock, waiting, most = threading.Lock(), 0, 0
    decode, stream = processing.read_image, model.stream

    def read(path):
        nonlocal waiting, most
        with lock:
            waiting += 1
            most = max(most, waiting)
        return decode(path)

    def consume(*args, **options):
        nonlocal waiting
        for each in stream(*args, **options):
            with lock:
                waiting -= 1
            yield each

    monkeypatch.setattr(processing, "read_image", read)
    monkeypatch.setattr(model, "stream", consume, raising=False)
    assert process(segment, model).num_rows == 40
    assert most <= 2 * processing._MOST_READERS + 8
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("maskjet-images")]


def test_street_is_found(model):
    """The fixture finds something, or the comparisons above would say nothing."""
    assert len(model.predict(traffic.sample(seed=0, size_hw=(96, 160)).image))


def test_public_names_are_imported_on_first_use():
    assert maskjet.jobs.process is process
    assert [getattr(maskjet.jobs, name).__name__ for name in maskjet.jobs.__all__] == maskjet.jobs.__all__
    with pytest.raises(AttributeError, match=r"module 'maskjet\.jobs' has no attribute 'proces'"):
        maskjet.jobs.proces  # noqa: B018
    loads = "import maskjet.jobs, sys; assert not {'torch', 'pyarrow'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", loads], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

"""Merging: one file out of all parts, equal to what `maskjet run` writes, in little memory."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pycocotools.coco import COCO

import maskjet
from maskjet import traffic
from maskjet.detections import Detections
from maskjet.errors import InputError, OutputError, SourceError
from maskjet.jobs import merging
from maskjet.jobs.merging import Merged, merge
from maskjet.jobs.parts import Parts
from maskjet.jobs.rows import FoundFrame
from maskjet.jobs.segments import Segment, SourceFile
from maskjet.outputs.opening import open_sinks
from maskjet.sources.frames import open_source
from tests.detections.test_detections import NAMES, some_detections
from tests.jobs.making import images, made_up, run_job, table_of, video, write_made_up


def run(model, source, *outs, track=False, **options):
    """What `maskjet run` does."""
    with open_sinks([str(out) for out in outs]) as sinks:
        for frame, found in model.stream(open_source(source, **options), track=track):
            sinks.write(frame, found)


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def outs(tmp_path):
    """Files to merge into, as options."""
    return {"coco": str(tmp_path / "m.json"), "jsonl": str(tmp_path / "m.jsonl")}


@pytest.mark.parametrize("every", [1, 3])
def test_files_of_a_video_are_those_of_run(model, clip, tmp_path, outs, every):
    """Byte for byte."""
    run(model, clip, tmp_path / "run.jsonl", tmp_path / "run.json", every=every)
    run_job(tmp_path / "out", [video(clip, 0, 5), video(clip, 5, 2), video(clip, 7)], model, every=every)
    merged = merge(str(tmp_path / "out"), jsonl=outs["jsonl"])
    expected = (tmp_path / "run.jsonl").read_bytes()
    assert (tmp_path / "m.jsonl").read_bytes() == expected
    assert merged == Merged(12 // every, expected.count(b'"confidence"'), 0, 0)
    assert merged.detections > 4
    if every == 1:  # in a data set frames count on
        assert merge(str(tmp_path / "out"), coco=outs["coco"]) == merged
        assert (tmp_path / "m.json").read_bytes() == (tmp_path / "run.json").read_bytes()


def test_lines_of_a_folder_are_those_of_run_but_for_the_folder(model, pictures, tmp_path, outs):
    """But for "source", which a part does not know, all is equal, also the indices after a bad image."""
    folder = pictures[0].parent
    run(model, folder, tmp_path / "run.jsonl")
    run_job(tmp_path / "out", [images(pictures[:3]), images(pictures[3:])], model)
    merge(str(tmp_path / "out"), jsonl=outs["jsonl"])
    expected = lines_of(tmp_path / "run.jsonl")
    assert [line["index"] for line in expected] == [0, 1, 3, 4, 5, 6]
    assert all(line["source"] == str(folder) for line in expected)
    assert lines_of(outs["jsonl"]) == [line | {"source": line["name"]} for line in expected]


def test_both_at_once_over_videos_and_images(model, clip, pictures, tmp_path, outs):
    out = str(tmp_path / "out")
    run_job(out, [images(pictures[:3]), video(clip, 0, 3), images(pictures[3:5]), video(clip, 3, 2)], model)
    merged = merge(out, **outs)
    lines = lines_of(outs["jsonl"])
    assert [line["index"] for line in lines] == [0, 1, 0, 1, 2, 3, 4, 3, 4]
    coco = COCO(outs["coco"])
    assert [image["id"] for image in coco.dataset["images"]] == list(range(9))
    assert [image["file_name"] for image in coco.dataset["images"]] == [line["name"] for line in lines]
    assert lines[2]["name"] == f"{clip}#0"
    assert {category["name"] for category in coco.loadCats(coco.getCatIds())} == set(model.spec.class_names.values())
    for position, line in enumerate(lines):
        annotations = coco.imgToAnns[position]
        assert [each["segmentation"] for each in annotations] == [each["rle"] for each in line["detections"]]
    assert merged == Merged(9, len(coco.anns), 0, 0)


def test_models_without_masks_classes_without_names_and_paths_that_are_no_utf8(tmp_path, outs):
    segment, frames = made_up("caf\udce9.mp4", with_masks=False)
    write_made_up(tmp_path, [(segment, frames)])
    merge(str(tmp_path), jsonl=outs["jsonl"])
    with open_sinks([str(tmp_path / "expected.jsonl")]) as sinks:
        for each in frames:
            source = r"caf\udce9.mp4"
            name = f"{source}#{each.index}"
            sinks.write(merging.Frame(each.index, each.time_s, np.empty((0, 0, 3)), source, name), each.found)
    assert Path(outs["jsonl"]).read_bytes() == (tmp_path / "expected.jsonl").read_bytes()
    lines = lines_of(outs["jsonl"])
    assert [line["source"] for line in lines] == [r"caf\udce9.mp4"] * 5
    assert lines[3]["detections"][2]["class_name"] == "7"
    image = replace(frames[3], source="caf\udce9.png", index=0, time_s=None)
    write_made_up(tmp_path, [(Segment((SourceFile(image.source, 1, 2),), is_video=False), [image])])
    assert merge(str(tmp_path), jsonl=outs["jsonl"]).frames == 1


def test_detections_that_are_not_finite_are_left_out_as_in_run(tmp_path, outs):
    segment, frames = made_up(count=4)
    xyxy = frames[3].found.xyxy.copy()
    xyxy[1, 2] = np.nan
    frames[3] = replace(frames[3], found=replace(frames[3].found, xyxy=xyxy))
    write_made_up(tmp_path, [(segment, frames)])
    assert merge(str(tmp_path), **outs) == Merged(4, 5, 1, 0)
    assert len(lines_of(outs["jsonl"])[3]["detections"]) == 2
    assert len(json.loads((tmp_path / "m.json").read_text())["annotations"]) == 5


def test_missing_parts_are_counted_and_the_cure_is_named(tmp_path, outs):
    segments = [made_up("a.mp4", first, 5) for first in (0, 5, 10)]
    names = write_made_up(tmp_path, segments)
    for name in names[::2]:
        Path(Parts(str(tmp_path)).path_of(name)).unlink()
    message = r"out must have a part for each segment, 2 of '.*' have none: run the same job"
    with pytest.raises(InputError, match=message):
        merge(str(tmp_path), **outs)
    assert not list(tmp_path.glob("m*"))
    merged = merge(str(tmp_path), **outs, incomplete=True)
    assert merged == Merged(5, 7, 0, 2)
    assert [line["index"] for line in lines_of(outs["jsonl"])] == [5, 6, 7, 8, 9]
    assert str(merged) == "5 frames, 7 detections; 2 segments have no part"


def test_images_of_missing_parts_are_counted_in_the_indices(tmp_path, outs):
    """So that an index says the same, whatever is missing."""
    frame = made_up(count=4)[1][3]
    segments = []
    for first in (0, 2):
        names = [f"{first}.png", f"{first + 1}.png"]
        segment = Segment(tuple(SourceFile(name, 1, 1) for name in names), is_video=False)
        segments.append((segment, [replace(frame, source=name, index=0, time_s=None) for name in names]))
    (first, _) = write_made_up(tmp_path, segments)
    Path(Parts(str(tmp_path)).path_of(first)).unlink()
    merge(str(tmp_path), **outs, incomplete=True)
    assert [(line["index"], line["name"]) for line in lines_of(outs["jsonl"])] == [(2, "2.png"), (3, "3.png")]


def test_what_cannot_be_merged_is_refused(tmp_path, outs):
    with pytest.raises(InputError, match="coco or jsonl must be a path, got none"):
        merge(str(tmp_path))
    with pytest.raises(InputError, match=r"coco and jsonl must be files of their own, got '.*x' twice"):
        merge(str(tmp_path), coco=str(tmp_path / "x"), jsonl=str(tmp_path / "x"))
    with pytest.raises(SourceError, match=r"out must be a job's output, '.*segments\.jsonl' can't be read"):
        merge(str(tmp_path), **outs)
    (part, *_) = write_made_up(tmp_path, [made_up()])
    files = [str(tmp_path / name) for name in ("segments.jsonl", "failures.jsonl", "job.lock")]
    for own in (*files, Parts(str(tmp_path)).path_of(part)):
        with pytest.raises(InputError, match="must be none of the job's own files, got "):
            merge(str(tmp_path), jsonl=own)
    with pytest.raises(OutputError, match=r"out must be writable, '/dev/null/m\.json' is not"):
        merge(str(tmp_path), jsonl=outs["jsonl"], coco="/dev/null/m.json")
    assert not list(tmp_path.glob("m.*"))


def test_tracks_are_those_of_run(tmp_path, outs):
    """Byte for byte, over the borders of segments."""
    clip = tmp_path / "street.mp4"
    traffic.write_video(clip, size_hw=(96, 160), frames=7, seed=8)
    with maskjet.load("demo", device="cpu", input_size=(160, 160), threshold=0.7) as model:
        run(model, clip, tmp_path / "run.jsonl", tmp_path / "run.json", track=True)
        run_job(tmp_path / "out", [video(clip, 0, 3), video(clip, 3, 2), video(clip, 5)], model, track=True)
    merge(str(tmp_path / "out"), **outs)
    for name in ("jsonl", "json"):
        assert (tmp_path / f"m.{name}").read_bytes() == (tmp_path / f"run.{name}").read_bytes()
    lines = lines_of(outs["jsonl"])
    assert all(1 in [each["track_id"] for each in line["detections"]] for line in lines)


def one_that_runs_off(name):
    """A segment in which one thing stands, is only found weakly while it moves, and then stands elsewhere."""
    segment, frames = made_up(name, count=10)
    for index in range(10):
        left, is_weak = 5 * max(index - 1, 0), 1 < index < 9
        xyxy, class_id = np.array([[left, 9, left + 12, 30]], np.float32), np.zeros(1, np.int32)
        found = Detections((48, 64), xyxy, np.float32([0.3 if is_weak else 0.9]), class_id, None, NAMES)
        frames[index] = replace(frames[index], found=found[is_weak:], weak=found[: int(is_weak)])
    return segment, frames


def test_weak_detections_hold_tracks_together_in_each_video_and_images_have_none(tmp_path, outs):
    segment, frames = made_up("a.png")
    stills = replace(segment, is_video=False, count=None)
    still = replace(frames[3], index=0, time_s=None, weak=some_detections(1))
    write_made_up(tmp_path, [(stills, [still]), one_that_runs_off("a.mp4"), one_that_runs_off("b.mp4")])
    merge(str(tmp_path), **outs)
    first, *lines = lines_of(outs["jsonl"])
    assert all("track_id" not in each for each in first["detections"])
    ids = [[each["track_id"] for each in line["detections"]] for line in lines]
    assert ids == [[1], [1], [], [], [], [], [], [], [], [1]] * 2
    assert [line["source"] for line in lines] == ["a.mp4"] * 10 + ["b.mp4"] * 10
    images = json.loads(Path(outs["coco"]).read_text())["images"]
    assert [(each["id"], each.get("video_id"), each.get("frame_id")) for each in images] == [
        (0, None, None),
        *((index, 1 + index // 11, (index - 1) % 10) for index in range(1, 21)),
    ]


@pytest.mark.parametrize("how", ["cut", "other columns", "too many masks", "other images", OSError, KeyboardInterrupt])
def test_what_breaks_off_names_its_part_and_leaves_the_file_that_was(tmp_path, outs, monkeypatch, how):
    segment, frames = made_up(count=5)
    images = Segment((SourceFile("a.png", 1, 1),), is_video=False)
    stills = [replace(frames[1], source="b.png", index=0)]
    (name,) = write_made_up(tmp_path, [(images, stills) if how == "other images" else (segment, frames)])
    path = Path(Parts(str(tmp_path)).path_of(name))
    table = table_of(segment, frames)

    def breaks(*_, **__):
        yield FoundFrame("a.mp4", 0, None, some_detections(1))
        raise how(name)

    if how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "other columns":
        parquet.write_table(table.drop(["xyxy"]), path)
    elif how == "too many masks":
        field = table.schema.field("rle")
        parquet.write_table(table.set_column(10, field, pa.array([[b"1"]] * 5, field.type)), path)
    elif how != "other images":
        monkeypatch.setattr(merging, "_read_part", breaks)
    Path(outs["jsonl"]).write_text("the last merge")
    with pytest.raises(SourceError if isinstance(how, str) else how, match=name):
        merge(str(tmp_path), **outs)
    assert Path(outs["jsonl"]).read_text() == "the last merge"
    assert not Path(outs["coco"]).exists()


@pytest.mark.slow
def test_memory_does_not_grow_with_parts(tmp_path):
    frames = made_up(count=100)[1]

    def peak(count):
        out = tmp_path / str(count)
        names = [f"{number}.mp4" for number in range(count)]
        write_made_up(out, [(made_up(name)[0], [replace(f, source=name) for f in frames]) for name in names])
        tracemalloc.start()
        merged = merge(str(out), coco=str(out / "m.json"), jsonl=str(out / "m.jsonl"))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert merged.frames == 100 * count
        return most

    peak(2)  # what is imported and made once
    few, many = peak(10), peak(30)
    written = sum((tmp_path / "30" / name).stat().st_size for name in ("m.json", "m.jsonl"))
    assert written > 2_000_000
    assert many < few + written / 40

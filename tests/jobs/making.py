"""Files, segments, jobs and objects of stores for tests."""

import json
import threading
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from maskjet import traffic
from maskjet.jobs import driver
from maskjet.jobs.parts import Parts
from maskjet.jobs.planning import plan
from maskjet.jobs.processing import process
from maskjet.jobs.rows import FoundFrame, TableBuilder, with_metadata
from maskjet.jobs.segments import Segment, Settings, SourceFile, digest
from maskjet.jobs.storage import describe
from tests.detections.test_detections import NAMES, some_detections
from tests.sources.clips import write_image

SETTINGS = Settings().identity(None)
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-to-be-shown",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Variables that the store of tests asks for."""


def source_file(path):
    return describe(str(path))


def video(path, first=0, count=None):
    return Segment((source_file(path),), is_video=True, first=first, count=count)


def images(paths):
    return Segment(tuple(map(source_file, paths)), is_video=False)


def write_street(path, seed, size_hw=(96, 160)):
    """A street as an image file."""
    return write_image(path, traffic.sample(seed=seed, size_hw=size_hw).image)


def put(system, path, data=b"1"):
    """Write an object."""
    with system.open_output_stream(path) as stream:
        stream.write(data)


def made_up(name="a.mp4", first=0, count=5, *, with_masks=True):
    """A segment of a video that is nowhere, and what was found in its frames: 0, 1, 2, 3, 0, … ellipses."""
    segment = Segment((SourceFile(name, 10, 20),), is_video=True, first=first, count=count)
    frames = [
        FoundFrame(name, index, index / 10, some_detections(index % 4, with_masks=with_masks))
        for index in range(first, first + count)
    ]
    return segment, frames


def read_part(out, name):
    """The table of a part."""
    with Parts(str(out)).open(name) as file:
        return file.read()


def table_of(segment, frames, **about):
    names = {str(class_id): name for class_id, name in NAMES.items()}
    about = {"class_names": names, "segment": asdict(segment), "settings": SETTINGS} | about
    if any(frame.weak is not None for frame in frames):
        about |= {"with_weak": True, "track_threshold": 0.5}
    builder = TableBuilder(**about)
    for frame in frames:
        builder.add(frame)
    return builder.table()


def write_made_up(out, segments_and_frames):
    """Write parts and the manifest; returns the names of the parts."""
    parts, names = Parts(str(out)), []
    for segment, frames in segments_and_frames:
        names.append(digest(segment, SETTINGS))
        parts.write(names[-1], table_of(segment, frames))
    write_manifest(out, [segment for segment, _ in segments_and_frames])
    return names


def write_manifest(out, segments):
    with (Path(out) / "segments.jsonl").open("w") as file:
        for segment in segments:
            file.write(json.dumps({"part": digest(segment, SETTINGS), "segment": asdict(segment)}) + "\n")


def run_job(out, segments, model, **options):
    """What a driver and its workers do."""
    parts = Parts(str(out))
    for segment in segments:
        parts.write(digest(segment, SETTINGS), with_metadata(process(segment, model, **options), settings=SETTINGS))
    write_manifest(out, segments)


def run_driver(source, out, make_workers):
    """A job in this process, a segment per image."""
    return driver.run(plan(source, images=1), str(out), Settings(), make_workers, threading.Event())


def assert_equal(frame, other):
    """Two `FoundFrame`s are equal bit for bit."""
    assert (frame.source, frame.index, frame.time_s) == (other.source, other.index, other.time_s)
    assert frame.found.class_name.tolist() == other.found.class_name.tolist()
    for some, others in ((frame.found, other.found), (frame.weak, other.weak)):
        for name in [] if some is None else [each.name for each in fields(some) if each.name != "class_names"]:
            one, another = getattr(some, name), getattr(others, name)
            assert getattr(one, "dtype", None) == getattr(another, "dtype", None)
            np.testing.assert_array_equal(one, another)

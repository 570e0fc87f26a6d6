"""The plan as a queue, and failures that outlive their process; in a folder and in a store."""

import json
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from maskjet.errors import SourceError
from maskjet.jobs import manifest
from maskjet.jobs.folders import Folder
from maskjet.jobs.manifest import FAILURES, Failures, Plan, note_failures
from maskjet.jobs.parts import MANIFEST
from maskjet.jobs.rows import METADATA_KEY, SCHEMA, schema
from maskjet.jobs.segments import Segment, Settings, SourceFile, digest
from maskjet.sources.keyframes import Entry
from maskjet.tiling.layout import Tiling
from tests.jobs.making import SETTINGS


def segment(number, **options):
    return Segment((SourceFile(f"/data/{number}.png", 100 + number, 10**18 + number),), is_video=False, **options)


@pytest.fixture
def folder(any_out, tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "_SAVE_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "drafts"))
    (tmp_path / "drafts").mkdir()
    yield Folder(any_out)
    assert not list((tmp_path / "drafts").iterdir())


def entries(folder, place):
    return [json.loads(line) for line in folder.read(place).splitlines()]


def known(plan):
    return [task for task in plan.read() if task is not None]


def kept(folder):
    return [entry["part"] for entry in entries(folder, MANIFEST)]


def test_a_plan_is_read_while_it_is_made_and_kept_when_it_is_whole(folder):
    """Until then the older one stays."""
    older = Plan(folder, iter([segment(1)]), SETTINGS)
    known(older)
    older.close()
    go = threading.Event()

    def found():
        yield segment(0)
        go.wait(10)
        yield Segment((SourceFile("/data/a.mp4", 1, 2),), is_video=True, first=7, count=9, entry=Entry(7, 3584, 8))

    plan = Plan(folder, found(), SETTINGS)
    tasks = plan.read()
    assert next(task for task in tasks if task is not None) == (digest(segment(0), SETTINGS), segment(0))
    assert next(tasks) is None
    assert not plan.is_complete
    assert kept(folder) == [digest(segment(1), SETTINGS)]
    go.set()
    (rest,) = [task for task in tasks if task is not None]
    assert (plan.planned, plan.is_complete) == (2, True)
    assert rest[1].entry == Entry(7, 3584, 8)
    assert kept(folder) == [digest(segment(0), SETTINGS), rest[0]]
    plan.close()


def test_a_plan_that_fails_says_so_after_what_it_has(folder):
    def found():
        yield segment(0)
        raise SourceError("source must exist, 'b' does not.")

    plan, seen = Plan(folder, found(), SETTINGS), []
    with pytest.raises(SourceError, match="'b' does not"):
        seen.extend(task for task in plan.read() if task is not None)
    assert [each for _, each in seen] == [segment(0)]
    assert not plan.is_complete
    assert folder.read(MANIFEST) is None


def test_planning_stops_when_it_is_closed(folder):
    counted = []

    def found():
        for number in range(10**6):
            counted.append(number)
            yield segment(number)

    plan = Plan(folder, found(), SETTINGS)
    tasks = plan.read()
    assert next(task for task in tasks if task is not None)[1] == segment(0)
    plan.close()
    assert not plan._thread.is_alive()
    assert len(counted) < 10**6


def test_a_digest_tells_files_segments_and_settings_apart():
    base = segment(1)
    moved, grown = SourceFile("/data/1.png", 101, 10**18), SourceFile("/data/1.png", 102, 10**18 + 1)
    others = [segment(2), segment(1, first=1), segment(1, count=5), segment(1, entry=Entry(0, 0, 0))]
    others += [Segment(base.files, is_video=True), *(Segment((file,), is_video=False) for file in (moved, grown))]
    some = Settings(threshold=0.3, class_thresholds={"car": 0.5}, classes=("car", "bus"), every=3, weights="a.pt")
    changes = [{"model": "rf-detr-seg-nano"}, {"threshold": 0.4}, {"class_thresholds": {"car": 0.4}}]
    changes += [{"classes": ("car",)}, {"every": 2}, {"track": True}]
    changes += [{"tiling": Tiling(64)}, {"tiling": Tiling((64, 80))}, {"tiling": Tiling(64, full=False)}]
    settings = [some, *(Settings(**each) for each in changes)]
    names = {digest(each, SETTINGS) for each in (base, *others)}
    names |= {digest(base, each.identity(None)) for each in settings}
    names.add(digest(base, Settings().identity("another file's")))
    assert len(names) == 1 + len(others) + len(settings) + 1
    for each in settings[:-2]:
        assert Settings.from_dict(json.loads(json.dumps(asdict(each)))) == each
    for each in (base, *others):
        assert Segment.from_dict(json.loads(json.dumps(asdict(each)))) == each


class SomeParts:
    """Parts, of which those that are named tell of bad frames."""

    def __init__(self, *names):
        self.names = names

    @contextmanager
    def open(self, part):
        told = {"schema": SCHEMA, "bad_frames": [["x.png", "broken"]] if part in self.names else []}
        yield SimpleNamespace(schema_arrow=schema().with_metadata({METADATA_KEY: json.dumps(told)}))


def failures_in(folder):
    return [(entry["part"], entry["what"]) for entry in entries(folder, FAILURES)]


def fail(folder, failures, part, *what):
    """A segment that fails, in a worker and in the driver."""
    note_failures(folder, part, [(each, "broken") for each in what])
    failures.take(part, [(each, "broken") for each in what])


def test_failures_are_kept_until_mended(folder):
    failures = Failures(folder)
    fail(folder, failures, "a", "x.png", "y.png")
    fail(folder, failures, "b", "z.mp4")
    failures.take("c", ())
    assert failures_in(folder) == [("a", "x.png"), ("a", "y.png"), ("b", "z.mp4")]  # though nobody has finished
    again = Failures(folder)
    assert again.count == 0
    again.keep("a", SomeParts("a"))
    assert again.count == 2
    again.take("b", ())
    again.finish(plan_is_complete=True)
    assert failures_in(folder) == [("a", "x.png"), ("a", "y.png")]
    assert folder.names("failed") == {"a"}


def test_failures_that_a_driver_did_not_live_to_see_are_kept(folder):
    note_failures(folder, "a", (("x.png", "torn"),))
    note_failures(folder, "b", (("z.mp4", "broken"),))
    note_failures(folder, "b", ())
    note_failures(folder, "b", ())
    note_failures(folder, "c", (("z.mp4", "lost"),))
    Failures(folder).finish(plan_is_complete=False)
    assert failures_in(folder) == [("a", "x.png"), ("c", "z.mp4")]


def test_failures_of_what_is_no_longer_planned_are_left_out(folder):
    fail(folder, Failures(folder), "a", "x.png")
    failures = Failures(folder)
    failures.keep("a", SomeParts())  # made since
    failures.keep("b", SomeParts("b"))  # without a note
    assert failures.count == 0
    failures.finish(plan_is_complete=True)
    assert folder.read(FAILURES) is None
    again = Failures(folder)  # of the first plan
    again.keep("a", SomeParts("a"))
    again.finish(plan_is_complete=True)
    assert failures_in(folder) == [("a", "x.png")]


def test_failures_are_written_now_and_then(any_out, monkeypatch):
    folder = Folder(any_out)
    written = []
    monkeypatch.setattr(folder, "write", lambda place, data: written.append((place, data.count(b"\n"))))
    failures = Failures(folder)
    for number in range(100):
        failures.take(str(number), (("x.png", "broken"),))
    assert len(written) < 100
    failures.finish(plan_is_complete=False)
    assert written[0] == (FAILURES, 1)
    assert written[-1] == (FAILURES, 100)

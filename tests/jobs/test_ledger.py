"""The plan as a queue, and failures that outlive their process; in a folder and in a store."""

import json
import tempfile
import threading

import pytest

from maskjet.errors import SourceError
from maskjet.jobs import ledger
from maskjet.jobs.folders import open_folder
from maskjet.jobs.ledger import Failures, Plan
from maskjet.jobs.parts import FAILURES, MANIFEST
from maskjet.jobs.segments import Segment, Settings, SourceFile, digest
from maskjet.jobs.work import Outcome
from maskjet.media.keyframes import Entry

IDENTITY = Settings().identity(None)


def segment(number, **options):
    return Segment((SourceFile(f"/data/{number}.png", 100 + number, 10**18 + number),), is_video=False, **options)


@pytest.fixture
def folder(any_out, tmp_path, monkeypatch):
    monkeypatch.setattr(ledger, "_SAVE_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "drafts"))
    (tmp_path / "drafts").mkdir()
    yield open_folder(any_out)
    assert not list((tmp_path / "drafts").iterdir())


def entries(folder, place):
    return [json.loads(line) for line in folder.read(place).splitlines()]


def known(plan):
    return [task for task in plan.read() if task is not None]


def kept(folder):
    return [entry["part"] for entry in entries(folder, MANIFEST)]


def test_a_plan_is_read_while_it_is_made_and_kept_when_it_is_whole(folder):
    go = threading.Event()

    def found():
        yield segment(0)
        go.wait(10)
        yield Segment((SourceFile("/data/a.mp4", 1, 2),), is_video=True, first=7, count=9, entry=Entry(7, 3584, 8))

    plan = Plan(folder, found(), IDENTITY)
    tasks = plan.read()
    assert next(task for task in tasks if task is not None) == (digest(segment(0), IDENTITY), segment(0))
    assert next(tasks) is None
    assert not plan.is_complete
    assert folder.read(MANIFEST) is None
    go.set()
    (rest,) = [task for task in tasks if task is not None]
    assert (plan.planned, plan.is_complete) == (2, True)
    assert rest[1].entry == Entry(7, 3584, 8)
    assert kept(folder) == [digest(segment(0), IDENTITY), rest[0]]
    plan.close()


def test_a_plan_that_fails_says_so_after_what_it_has(folder):
    def found():
        yield segment(0)
        raise SourceError("source must exist, 'b' does not.")

    plan, seen = Plan(folder, found(), IDENTITY), []
    with pytest.raises(SourceError, match="'b' does not"):
        seen.extend(task for task in plan.read() if task is not None)
    assert [each for _, each in seen] == [segment(0)]
    assert not plan.is_complete
    assert folder.read(MANIFEST) is None


def test_an_older_plan_stays_until_the_new_one_is_whole(folder):
    plan = Plan(folder, iter([segment(0)]), IDENTITY)
    known(plan)
    plan.close()
    go = threading.Event()

    def found():
        yield segment(1)
        go.wait(10)

    plan = Plan(folder, found(), IDENTITY)
    assert kept(folder) == [digest(segment(0), IDENTITY)]
    go.set()
    known(plan)
    plan.close()
    assert kept(folder) == [digest(segment(1), IDENTITY)]


def test_planning_stops_when_it_is_closed(folder):
    counted = []

    def found():
        for number in range(10**9):
            counted.append(number)
            yield segment(number)

    plan = Plan(folder, found(), IDENTITY)
    tasks = plan.read()
    assert next(task for task in tasks if task is not None)[1] == segment(0)
    plan.close()
    assert not plan._thread.is_alive()
    assert len(counted) < 10**9


def test_a_digest_tells_files_segments_and_settings_apart():
    base = segment(1)
    others = [
        segment(2),
        segment(1, first=1),
        segment(1, count=5),
        segment(1, entry=Entry(0, 0, 0)),
        Segment(base.files, is_video=True),
        Segment((SourceFile("/data/1.png", 101, 10**18),), is_video=False),
        Segment((SourceFile("/data/1.png", 102, 10**18 + 1),), is_video=False),
    ]
    settings = [
        Settings(model="rf-detr-seg-nano"),
        Settings(threshold=0.4),
        Settings(class_thresholds={"car": 0.4}),
        Settings(classes=("car",)),
        Settings(every=2),
        Settings(rows="detection"),
    ]
    names = {digest(each, IDENTITY) for each in (base, *others)}
    names |= {digest(base, each.identity(None)) for each in settings}
    names.add(digest(base, Settings().identity("another file's")))
    assert len(names) == 1 + len(others) + len(settings) + 1
    assert digest(Segment.from_dict(json.loads(json.dumps(base.as_dict()))), IDENTITY) == digest(base, IDENTITY)


def test_settings_survive_json():
    settings = Settings(threshold=0.3, class_thresholds={"car": 0.5}, classes=("car", "bus"), every=3, weights="a.pt")
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings


def failures_in(folder):
    return [(entry["part"], entry["what"]) for entry in entries(folder, FAILURES)]


def test_failures_are_kept_until_mended(folder):
    failures = Failures(folder)
    failures.take(Outcome("a", failures=(("x.png", "broken"), ("y.png", "gone")), is_written=False))
    failures.take(Outcome("b", failures=(("z.mp4", "broken"),), is_written=False))
    failures.take(Outcome("c", frames=3))
    assert failures_in(folder) == [("a", "x.png"), ("a", "y.png"), ("b", "z.mp4")]  # though nobody has finished
    again = Failures(folder)
    assert again.count == 0
    again.keep("a")
    assert again.count == 2
    again.take(Outcome("b", frames=4))
    again.finish(plan_is_complete=True)
    assert failures_in(folder) == [("a", "x.png"), ("a", "y.png")]


def test_failures_of_what_is_no_longer_planned_are_forgotten(folder):
    Failures(folder).take(Outcome("a", failures=(("x.png", "broken"),), is_written=False))
    broken_off = Failures(folder)
    broken_off.finish(plan_is_complete=False)
    assert failures_in(folder) == [("a", "x.png")]
    Failures(folder).finish(plan_is_complete=True)
    assert folder.read(FAILURES) is None


def test_a_line_of_failures_that_was_cut_off_is_left_out(folder):
    Failures(folder).take(Outcome("a", failures=(("x.png", "broken"),), is_written=False))
    folder.write(FAILURES, folder.read(FAILURES) + b'{"part": "b", "wh')
    failures = Failures(folder)
    failures.keep("a")
    failures.keep("b")
    assert failures.count == 1


def test_failures_are_written_to_a_store_now_and_then(remote_out, monkeypatch):
    folder = open_folder(remote_out)
    written = []
    monkeypatch.setattr(folder, "write", lambda place, data: written.append((place, data.count(b"\n"))))
    failures = Failures(folder)
    for number in range(100):
        failures.take(Outcome(str(number), failures=(("x.png", "broken"),)))
    assert len(written) < 100
    failures.finish(plan_is_complete=False)
    assert written[0] == (FAILURES, 1)
    assert written[-1] == (FAILURES, 100)

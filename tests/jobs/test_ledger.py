"""The plan as a queue, failures that outlive their process, and the lock."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from maskjet.errors import OutputError, SourceError
from maskjet.jobs import ledger
from maskjet.jobs.ledger import FAILURES, Failures, Plan, locked
from maskjet.jobs.parts import MANIFEST, Parts
from maskjet.jobs.segments import Segment, Settings, SourceFile, digest
from maskjet.jobs.work import Outcome
from maskjet.media.keyframes import Entry

IDENTITY = Settings().identity(None)


def segment(number, **options):
    return Segment((SourceFile(f"/data/{number}.png", 100 + number, 10**18 + number),), is_video=False, **options)


def known(plan):
    return [task for task in plan.read() if task is not None]


def kept(folder):
    return list(Parts(str(folder)).manifest())


def test_a_plan_is_read_while_it_is_made_and_kept_when_it_is_whole(tmp_path):
    go = threading.Event()

    def found():
        yield segment(0)
        go.wait(10)
        yield Segment((SourceFile("/data/a.mp4", 1, 2),), is_video=True, first=7, count=9, entry=Entry(7, 3584, 8))

    plan = Plan(tmp_path, found(), IDENTITY)
    tasks = plan.read()
    assert next(task for task in tasks if task is not None) == (digest(segment(0), IDENTITY), segment(0))
    assert next(tasks) is None
    assert not plan.is_complete
    assert not (tmp_path / MANIFEST).exists()
    go.set()
    (rest,) = [task for task in tasks if task is not None]
    assert (plan.planned, plan.is_complete) == (2, True)
    assert rest[1].entry == Entry(7, 3584, 8)
    assert [part for part, _ in kept(tmp_path)] == [digest(segment(0), IDENTITY), rest[0]]
    plan.close()


def test_a_plan_that_fails_says_so_after_what_it_has(tmp_path):
    def found():
        yield segment(0)
        raise SourceError("source must exist, 'b' does not.")

    plan, seen = Plan(tmp_path, found(), IDENTITY), []
    with pytest.raises(SourceError, match="'b' does not"):
        seen.extend(task for task in plan.read() if task is not None)
    assert [each for _, each in seen] == [segment(0)]
    assert not plan.is_complete
    with pytest.raises(SourceError, match=r"segments\.jsonl' can't be read"):
        kept(tmp_path)


def test_an_older_plan_stays_until_the_new_one_is_whole(tmp_path):
    plan = Plan(tmp_path, iter([segment(0)]), IDENTITY)
    known(plan)
    plan.close()
    go = threading.Event()

    def found():
        yield segment(1)
        go.wait(10)

    plan = Plan(tmp_path, found(), IDENTITY)
    assert [each for _, each in kept(tmp_path)] == [segment(0)]
    go.set()
    known(plan)
    plan.close()
    assert [each for _, each in kept(tmp_path)] == [segment(1)]


def test_planning_stops_when_it_is_closed(tmp_path):
    counted = []

    def found():
        for number in range(10**9):
            counted.append(number)
            yield segment(number)

    plan = Plan(tmp_path, found(), IDENTITY)
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
    return [(each["part"], each["what"]) for each in map(json.loads, (folder / FAILURES).read_text().splitlines())]


def test_failures_are_kept_until_mended(tmp_path):
    failures = Failures(tmp_path)
    failures.take(Outcome("a", failures=(("x.png", "broken"), ("y.png", "gone"))))
    failures.take(Outcome("b", failures=(("z.mp4", "broken"),), is_written=False))
    failures.take(Outcome("c", frames=3))
    assert failures_in(tmp_path) == [("a", "x.png"), ("a", "y.png"), ("b", "z.mp4")]  # though nobody has finished
    again = Failures(tmp_path)
    assert again.count == 0
    again.keep("a")
    assert again.count == 2
    again.take(Outcome("b", frames=4))
    again.finish(plan_is_complete=True)
    assert failures_in(tmp_path) == [("a", "x.png"), ("a", "y.png")]


def test_failures_of_what_is_no_longer_planned_are_forgotten(tmp_path):
    Failures(tmp_path).take(Outcome("a", failures=(("x.png", "broken"),)))
    broken_off = Failures(tmp_path)
    broken_off.finish(plan_is_complete=False)
    assert failures_in(tmp_path) == [("a", "x.png")]
    Failures(tmp_path).finish(plan_is_complete=True)
    assert not (tmp_path / FAILURES).exists()


def test_a_line_of_failures_that_was_cut_off_is_left_out(tmp_path):
    Failures(tmp_path).take(Outcome("a", failures=(("x.png", "broken"),)))
    with (tmp_path / FAILURES).open("ab") as file:
        file.write(b'{"part": "b", "wh')
    failures = Failures(tmp_path)
    failures.keep("a")
    failures.keep("b")
    assert failures.count == 1


def test_two_drivers_do_not_share_a_folder(tmp_path):
    with (
        locked(tmp_path),
        pytest.raises(OutputError, match=f"out must not be in use, .*: process {os.getpid()} on "),
        locked(tmp_path),
    ):
        pass
    with locked(tmp_path):
        pass


def test_the_lock_ends_with_its_process(tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom maskjet.jobs.ledger import locked\n"
        "with locked(Path(sys.argv[1])): print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        with pytest.raises(OutputError, match=f"process {other.pid} on"), locked(tmp_path):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"out must be writable, .*file/out' is not"),
        locked(tmp_path / "file" / "out"),
    ):
        pass


def test_a_lock_that_says_nothing_is_another_process(tmp_path):
    with locked(tmp_path):
        (tmp_path / ledger.LOCK).write_text("[]")
        with pytest.raises(OutputError, match="is: another process works on it"), locked(tmp_path):
            pass

"""What an actor of a job on Ray asks, does and tells, and windows of the plan; no Ray is started."""

import json
import sys
import threading
from types import SimpleNamespace

import pyarrow
import pytest

from maskjet import __version__
from maskjet.errors import DeviceError, OutputError
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs.desk import Desk
from maskjet.jobs.segments import Segment, Settings, SourceFile
from maskjet.jobs.work import Outcome
from tests.waiting import until

DONE = json.dumps(Outcome("a", 3, 7).as_dict())


def begin(desk, part="a", *, is_alone=False):
    return desk.begin(part, f"{part}.mp4", is_alone=is_alone)


def kill(desk, part, times=3):
    """Let workers die on a segment."""
    for deaths in range(times):
        assert begin(desk, part, is_alone=deaths > 0) == ("work", "")


def test_a_segment_whose_worker_died_is_tried_alone_and_then_given_up():
    desk = Desk(3)
    assert begin(desk) == ("work", "")
    for _ in range(2):  # of three tries, the first of which was beside others
        assert begin(desk) == ("alone", "")
        assert begin(desk, is_alone=True) == ("work", "")
    for is_alone in (False, True):
        answer, text = begin(desk, is_alone=is_alone)
        outcome = Outcome.from_dict(json.loads(text))
        assert (answer, outcome.part, outcome.is_written) == ("known", "a", False)
        assert outcome.failures == (("a.mp4", "its worker died 3 times"),)
    assert desk.state() == {"arrived": 0, "busy": 0, "error": None}
    kill(desk, "b", times=2)
    assert begin(desk, "b", is_alone=True) == ("work", "")
    desk.end("b", DONE)  # it survived alone
    assert begin(desk, "b") == ("known", DONE)


def test_segments_given_up_in_a_row_end_the_job_and_others_between_do_not():
    desk = Desk(3)

    def give_up(part):
        kill(desk, part)
        begin(desk, part)
        return desk.state()["error"]

    assert [give_up(part) for part in "bc"] == [None, None]
    begin(desk, "a")
    desk.end("a", DONE)
    assert [give_up(part) for part in "de"] == [None, None]
    text = "Workers died 3 times on 3 segments in a row, at last 'f.mp4'."
    assert give_up("f") == {"error": "DeviceError", "text": text}
    assert begin(desk, "g") == ("known", "")


@pytest.mark.parametrize("end", [Desk.stop, lambda desk: desk.fail("OutputError", "full")])
def test_once_a_job_ends_nothing_begins_and_what_was_begun_is_finished(end):
    desk = Desk(3)
    begin(desk, "a")
    begin(desk, "b")
    end(desk)
    assert begin(desk, "c") == ("known", "")
    assert begin(desk, "b") == ("known", "")  # its worker died: nobody works on it any more
    assert desk.state()["busy"] == 1
    desk.end("a", DONE)
    assert desk.state()["busy"] == 0
    assert begin(desk, "a") == ("known", DONE)
    assert desk.outcomes() == [DONE]


def test_the_first_error_counts():
    desk = Desk(3)
    desk.arrive()
    desk.fail("OutputError", "full")
    desk.fail("DeviceError", "gone")
    assert desk.state() == {"arrived": 1, "busy": 0, "error": {"error": "OutputError", "text": "full"}}


class Remote:
    """A desk as actors have it, in this process."""

    def __init__(self, desk):
        self._desk = desk

    def __getattr__(self, name):
        return SimpleNamespace(remote=getattr(self._desk, name))


@pytest.fixture
def make_actor(monkeypatch, tmp_path):
    """Makes an actor and its desk."""
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda value: value))
    monkeypatch.setattr(jobs_ray.process, "suit_program", lambda: None)

    def make(worker=None, **facts):
        monkeypatch.setattr(jobs_ray, "Worker", lambda *_: worker)
        orders = {"settings": Settings().as_dict(), "device": "cpu", "lanes": 1, "out": str(tmp_path)}
        desk = Desk(3)
        return jobs_ray._Actor({**orders, "facts": {"version": __version__, **facts}}, Remote(desk)), desk

    return make


class Worker:
    """Does a segment by raising an error, or well."""

    def __init__(self, error=None):
        self.error, self.done = error, []

    def do(self, part, segment):
        self.done.append(segment)
        if self.error:
            raise self.error
        return Outcome(part, 3, 7)


def rows_of(actor, part):
    segment = Segment((SourceFile(f"{part}.mp4", 1, 2),), is_video=True)
    batch = pyarrow.table({"part": [part], "segment": [json.dumps(segment.as_dict())]})
    return actor(batch).to_pylist(), segment


def test_an_actor_does_a_segment_once(make_actor):
    worker = Worker()
    actor, desk = make_actor(worker)
    for _ in range(2):
        rows, segment = rows_of(actor, "a")
        assert rows == [{"outcome": DONE}]
        assert worker.done == [segment]
    assert desk.state() == {"arrived": 1, "busy": 0, "error": None}


@pytest.mark.parametrize("error", [OutputError("part must be writable."), RuntimeError("odd")])
def test_an_error_is_told_to_the_desk_and_not_to_ray(make_actor, error):
    worker = Worker(error)
    actor, desk = make_actor(worker)
    assert rows_of(actor, "a")[0] == rows_of(actor, "b")[0] == [{"outcome": ""}]
    assert len(worker.done) == 1
    told = {"error": "OutputError", "text": "part must be writable."}
    if isinstance(error, RuntimeError):
        told = {"error": "MaskjetError", "text": "a.mp4 failed: RuntimeError('odd')."}
    assert desk.state() == {"arrived": 1, "busy": 0, "error": told}


def test_a_device_that_failed_ends_its_process(make_actor, monkeypatch):
    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(jobs_ray.os, "_exit", end)
    actor, desk = make_actor(Worker(DeviceError("gone", index=0)))
    with pytest.raises(SystemExit, match="5"):
        rows_of(actor, "a")
    assert desk.state() == {"arrived": 1, "busy": 1, "error": None}  # Ray gives it to another process


def test_another_version_on_a_node_ends_the_job(make_actor):
    actor, desk = make_actor(version="0.0.1")
    assert rows_of(actor, "a")[0] == [{"outcome": ""}]
    error = desk.state()["error"]
    assert error["error"] == "UnsupportedError"
    assert error["text"].startswith(f"maskjet must be of one version on all nodes, got {__version__} beside")


def test_who_works_alone_waits_for_the_others_and_then_they_for_it():
    lanes, order = jobs_ray._Lanes(), []
    may_end = threading.Event()

    def work_alone():
        with lanes.alone():
            order.append("alone")
            may_end.wait()
            order.append("alone no more")

    def work_beside():
        with lanes.shared():
            order.append("beside")

    with lanes.shared(), lanes.shared():
        alone = threading.Thread(target=work_alone)
        alone.start()
        until(lambda: lanes._waiting)
        beside = threading.Thread(target=work_beside)
        beside.start()
        order.append("before")
    may_end.set()
    alone.join()
    beside.join()
    assert order == ["before", "alone", "alone no more", "beside"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("The head is gone.", "The head is gone."),
        ("A task failed:\n  File a, line 1\n  ValueError: odd\n", "A task failed: ValueError: odd"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_rays_is_one_line(text, why):
    assert str(jobs_ray._failed(RuntimeError(text))) == f"The Ray cluster failed: {why}"


def windows(tasks, largest=100, stop=None):
    return list(jobs_ray._windows(tasks, stop or threading.Event(), largest))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(0, 1), (0.1, 2), (0.2, None), (0.3, 3)], [[1, 2, 3]]),
        # The first one ends while the plan goes on.
        ([(9, None), (10, 1), (10.5, 2), (10.6, None), (12, 3), (12.1, 4), (13, 5)], [[1, 2, 3], [4, 5]]),
        # A later one ends when it waits for the plan.
        ([(0, 1), (2, None), (3, 2), (9, 3), (9.1, None), (9.2, 4), (9.3, None)], [[1], [2, 3], [4]]),
        ([(0, number) for number in range(11)], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10]]),
    ],
)
def test_windows(monkeypatch, entries, expected):
    """Of at most five segments, of tasks that come at some time in seconds."""
    now = [0.0]
    monkeypatch.setattr(jobs_ray.time, "monotonic", lambda: now[0])

    def tasks():
        for now[0], task in entries:
            yield task

    assert windows(tasks(), largest=5) == expected


def test_a_stopped_job_has_no_more_windows():
    stop = threading.Event()

    def tasks():
        yield from (1, 2)
        stop.set()
        yield 3

    assert windows(tasks(), largest=1, stop=stop) == [[1], [2]]
    assert windows([1, 2], stop=stop) == []
    stop.clear()
    assert windows((each for each in (1, None) if each or stop.set()), stop=stop) == []

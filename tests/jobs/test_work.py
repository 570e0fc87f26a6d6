"""What a worker asks, does and tells, what a driver on Ray makes of it, and windows of the plan; no Ray is started."""

import json
import subprocess
import threading
from dataclasses import replace

import pytest

from maskjet import __version__
from maskjet import devices as machines
from maskjet.cli import job
from maskjet.config import EngineConfig
from maskjet.errors import CheckpointError, DeviceError, MaskjetError, OutputError, UnsupportedError
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs import work, worker
from maskjet.jobs.folders import open_folder
from maskjet.jobs.markers import TRIES, Markers
from maskjet.jobs.segments import Settings, digest
from maskjet.jobs.work import Outcome, Worker, error_answer, parse_answer
from maskjet.media import decoding
from maskjet.media.decoding import Decoding
from tests.jobs.making import SETTINGS, made_up, table_of
from tests.waiting import until

SEGMENT, FRAMES = made_up("a.mp4", 0, 5)
PART = digest(SEGMENT, SETTINGS)
DONE = Outcome(PART, 5, 6, (("a.mp4#3", "broken"),))


class Working:
    """A worker whose segments end as a function says."""

    def __init__(self, out, process):
        self.markers = Markers(open_folder(out), "this run")
        self.markers.start()
        self.orders = {"settings": Settings().as_dict(), "device": "cpu", "streams": 2, "out": out}
        self.orders |= {"facts": {"version": __version__, "settings": SETTINGS}, "run": "this run"}
        self.begun, self._process = [], process

    def process(self, *_, **__):
        self.begun.append(self.others())
        return self._process()

    def others(self):
        """The markers but for the run's."""
        return self.markers.names() - {"run"}


@pytest.fixture
def working(any_out, monkeypatch):
    """Makes a worker that finds what is made up, or does something else, and what is known about it."""

    def make(process=lambda: table_of(SEGMENT, FRAMES, bad_frames=[[3, "broken"]]), **facts):
        made = Working(any_out, process)
        made.orders["facts"] |= facts
        monkeypatch.setattr(work, "open_model", lambda *_: None)
        monkeypatch.setattr(work, "process", made.process)
        return made

    return make


def test_what_decodes_jpegs_names_parts_of_images_and_is_the_same_everywhere(working, monkeypatch):
    settings = [Settings(jpeg_decoder=each) for each in ("cpu", "nvJPEG 13.0", "nvJPEG 13.1")]
    for segment, names in ((replace(SEGMENT, is_video=False), 3), (SEGMENT, 1)):
        assert len({digest(segment, each.identity(None)) for each in settings}) == names
    assert settings[0].identity(None) == SETTINGS  # as before there were others
    made = working()
    monkeypatch.setattr(work, "name_nvjpeg", lambda: "cpu")
    made.orders["settings"] = settings[1].as_dict()
    with pytest.raises(UnsupportedError, match=r"JPEGs must be decoded alike, by nvJPEG 13.0 on all nodes, got cpu"):
        Worker(made.orders)
    monkeypatch.setattr(work, "choose_decoding", lambda *_: Decoding("cuda:0"))
    made.orders["settings"] = settings[0].as_dict()
    assert Worker(made.orders)._decoding == Decoding("cuda:0", takes_jpegs=False)


@pytest.mark.parametrize(
    ("ray", "devices", "decoder", "expected"),
    [
        (None, "cuda:0,cuda:1", "auto", "nvJPEG 13.0"),
        (None, "cuda:0,cpu", "auto", "cpu"),
        (None, "cuda:0", "cpu", "cpu"),
        ("auto", None, "auto", "cpu"),
        ("auto", None, "cuda", "nvJPEG 13.0"),
        (None, "cuda:2", "auto", "cpu"),
        (None, "cuda:2", "cuda", "nvJPEG 13.0"),  # the workers say why it can't be had
    ],
)
def test_a_command_chooses_what_decodes_jpegs(ray, devices, decoder, expected, monkeypatch):
    def run(command, **_):
        return subprocess.CompletedProcess(command, "cuda:2" in command[-1])  # a GPU without a decoder of JPEGs

    monkeypatch.setattr(machines, "choose", lambda names, _: machines.place(names.split(","), {}, cores=2))
    monkeypatch.setattr(decoding, "version", lambda _: "13.0")
    monkeypatch.setattr(job.subprocess, "run", run)
    assert job._jpeg_decoder(ray, devices, EngineConfig(decoder=decoder)) == expected


def test_a_gpu_that_is_not_here_decodes_no_jpegs():
    assert not job._decode_jpegs({"cuda:999"})


def test_a_segment_is_done_once(working):
    made = working()
    assert Worker(made.orders).do(PART, SEGMENT) == DONE
    assert made.begun == [{f"{PART}.1"}] * TRIES  # as there is a bad frame
    assert made.others() == set()
    made.markers.put(f"{PART}.1")  # its worker died, or its node, before the driver heard of it
    assert Worker(made.orders).do(PART, SEGMENT) == DONE
    assert (len(made.begun), made.others()) == (TRIES, set())


def test_a_segment_whose_worker_died_is_tried_alone_and_then_given_up(working, monkeypatch):
    alone = []
    hold = work._SharedLock.hold
    monkeypatch.setattr(work._SharedLock, "hold", lambda lock, **how: alone.append(how) or hold(lock, **how))

    def dies():
        raise SystemExit

    made = working(dies)
    for times in range(1, TRIES + 1):
        with pytest.raises(SystemExit):
            Worker(made.orders).do(PART, SEGMENT)
        assert made.others() == {f"{PART}.{number}" for number in range(1, times + 1)}
    assert alone == [{}, *[{}, {"is_exclusive": True}] * (TRIES - 1)]
    lost = Outcome(PART, failures=(("a.mp4#0-4", "its worker died 3 times"),), is_written=False, is_lost=True)
    for _ in range(2):  # Ray may repeat a task
        assert Worker(made.orders).do(PART, SEGMENT) == lost
    assert len(made.begun) == TRIES


def test_a_later_job_takes_over_and_the_earlier_one_is_told(working):
    made = working()
    later = Markers(open_folder(made.orders["out"]), "later")
    later.start()
    with pytest.raises(OutputError, match=r"^out must not be in use, '.*' is: a later job works on it, in place of"):
        parse_answer(Worker(made.orders).answer(PART, SEGMENT))
    assert made.begun == []
    made.markers.clear()  # as its driver does when it ends
    assert later.names() == {"run"}


@pytest.mark.parametrize("error", [OutputError("out must be writable."), RuntimeError("odd")])
def test_an_error_is_told_and_not_raised(working, error):
    def fail():
        raise error

    made = working(fail)
    answer = json.loads(json.dumps(Worker(made.orders).answer(PART, SEGMENT)))
    if isinstance(error, OutputError):
        with pytest.raises(OutputError, match=r"^out must be writable\.$"):
            parse_answer(answer)
    else:  # a foreign library's, of a file that nobody has seen yet
        assert parse_answer(answer) == Outcome(PART, failures=[["a.mp4#0-4", "RuntimeError('odd')"]], is_written=False)
    with pytest.raises(MaskjetError, match=r"^a segment failed: RuntimeError\('odd'\)\.$"):
        parse_answer(error_answer(RuntimeError("odd"), "a segment"))


def test_a_device_that_failed_ends_its_process(working, monkeypatch):
    def fail():
        raise DeviceError("gone", index=0)

    def end(code):
        raise SystemExit(code)

    monkeypatch.setattr(work.os, "_exit", end)
    made = working(fail)
    with pytest.raises(SystemExit, match="5"):
        Worker(made.orders).answer(PART, SEGMENT)
    assert made.others() == {f"{PART}.1"}  # another process begins it again


@pytest.fixture
def quick_actor(monkeypatch):
    monkeypatch.setattr(worker.process, "suit_program", lambda: None)


def answer_of(orders):
    actor = worker.Actor(orders)
    return actor.load() or actor.answer(PART, SEGMENT.as_dict())


@pytest.mark.usefixtures("quick_actor")
def test_an_actor_does_segments(working):
    assert parse_answer(answer_of(working().orders)) == DONE


@pytest.mark.usefixtures("quick_actor")
def test_another_version_on_a_node_ends_the_job(working):
    answer = answer_of(working(version="0.0.1").orders)
    with pytest.raises(
        UnsupportedError, match=f"^maskjet must be of one version on all nodes, got {__version__} beside"
    ):
        parse_answer(answer)


def test_weights_that_changed_since_the_job_began_end_it(working):
    with pytest.raises(CheckpointError, match=r"^weights must not change during a job, 'demo' has changed: run"):
        Worker(working(settings={**SETTINGS, "weights": "another digest"}).orders)


def test_who_works_alone_waits_for_the_others_and_then_they_for_it():
    lock, order = work._SharedLock(), []
    may_end = threading.Event()

    def work_alone():
        with lock.hold(is_exclusive=True):
            order.append("alone")
            may_end.wait()
            order.append("alone no more")

    def work_beside():
        with lock.hold():
            order.append("beside")

    with lock.hold(), lock.hold():
        alone = threading.Thread(target=work_alone)
        alone.start()
        until(lambda: lock._exclusive)
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

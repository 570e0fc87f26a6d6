"""What a worker asks, does and tells, what a driver on Ray makes of it, and windows of the plan; no Ray is started."""

import json
import subprocess
import threading
from dataclasses import asdict, replace

import pytest

from maskjet import __version__
from maskjet.cli import job
from maskjet.config import EngineConfig
from maskjet.errors import CheckpointError, DeviceError, MaskjetError, OutputError, UnsupportedError
from maskjet.host import devices as machines
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs import work, worker
from maskjet.jobs.folders import Folder
from maskjet.jobs.local import LocalWorkers, StartedWorker
from maskjet.jobs.manifest import note_failures
from maskjet.jobs.segments import Settings, digest
from maskjet.jobs.work import TRIES, Outcome, Worker, error_answer, parse_answer
from maskjet.sources import decoding
from maskjet.sources.decoding import Decoding
from tests.jobs.making import SETTINGS, made_up, table_of

SEGMENT, FRAMES = made_up("a.mp4", 0, 5)
PART = digest(SEGMENT, SETTINGS)
DONE = Outcome(PART, 5, 6, (("a.mp4#3", "broken"),))


class Working:
    """A worker whose segments end as a function says."""

    def __init__(self, out, process):
        self.orders = {"settings": asdict(Settings()), "device": "cpu", "streams": 2, "out": out}
        self.orders |= {"facts": {"version": __version__, "settings": SETTINGS}}
        self.times, self._process = 0, process

    def process(self, *_, **__):
        self.times += 1
        return self._process()


@pytest.fixture
def working(any_out, monkeypatch):
    """Makes a worker that finds what is made up, or does something else, and what is known about it."""

    def make(process=lambda: table_of(SEGMENT, FRAMES, bad_frames=[[3, "broken"]]), **facts):
        made = Working(any_out, process)
        made.orders["facts"] |= facts
        monkeypatch.setattr("maskjet.model.open_model", lambda *_, **__: None)
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
    made.orders["settings"] = asdict(settings[1])
    with pytest.raises(UnsupportedError, match=r"JPEGs must be decoded alike, by nvJPEG 13.0 on all nodes, got cpu"):
        Worker(made.orders)
    monkeypatch.setattr(work, "choose_decoding", lambda *_: Decoding("cuda:0"))
    made.orders["settings"] = asdict(settings[0])
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


def test_what_an_attempt_before_has_noted_is_replaced(working, any_out):
    folder = Folder(any_out)
    note_failures(folder, PART, [("a.mp4#1", "broken")])
    Worker(working(lambda: table_of(SEGMENT, FRAMES)).orders).do(PART, SEGMENT, is_again=True)
    assert folder.read(f"failed/{PART}") is None


class Fragile(LocalWorkers):
    """Workers that answer their oldest segment, unless they have one that kills them."""

    def __init__(self, killers):
        super().__init__({}, ["one", "other"], 3)
        self.killers, self.sent = killers, []

    def _start(self, place):
        return StartedWorker(place, None)

    def _send(self, worker, part, _):
        self.sent.append(part)
        assert len(worker.tasks) == 1 or not self._deaths.keys() & worker.tasks.keys()

    def _receive(self):
        for each in self._workers[:]:
            if self.killers & each.tasks.keys():
                yield from self._replace(each, "signal 9")
            elif each.tasks:
                part = next(iter(each.tasks))
                yield self._take(each, part, asdict(Outcome(part)))

    def close(self):
        pass


def test_segments_of_a_worker_that_died_are_tried_alone_and_then_given_up():
    tasks = [(f"{number:02}", SEGMENT) for number in range(20)]
    workers = Fragile({"05"})
    outcomes = list(workers.run(iter([*tasks, None]), threading.Event()))
    assert sorted(each.part for each in outcomes) == [part for part, _ in tasks]
    (lost,) = (each for each in outcomes if not each.is_written)
    assert (lost.part, lost.failures) == ("05", ((SEGMENT.name, "its worker died 3 times"),))
    again = {part for part in workers.sent if workers.sent.count(part) > 1}
    assert 1 < len(again) <= 4
    assert workers.sent.count("05") == TRIES


def test_workers_that_die_again_and_again_end_the_job():
    workers = Fragile({f"{number:02}" for number in range(20)})
    with pytest.raises(DeviceError, match=r"^o\w+ died 5 times without a result, at last: signal 9\.$"):
        list(workers.run(iter([(f"{number:02}", SEGMENT) for number in range(20)]), threading.Event()))


@pytest.mark.parametrize("error", [OutputError("out must be writable."), RuntimeError("odd")])
def test_an_error_is_told_and_not_raised(working, error):
    def fail():
        raise error

    made = working(fail)
    answer = json.loads(json.dumps(Worker(made.orders).answer(PART, SEGMENT, is_again=False)))
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
        Worker(made.orders).answer(PART, SEGMENT, is_again=False)


@pytest.fixture
def quick_actor(monkeypatch):
    monkeypatch.setattr(worker.process, "suit_program", lambda: None)


def answer_of(orders):
    actor = worker.Actor(orders)
    return actor.load() or actor.answer(PART, asdict(SEGMENT), is_again=False)


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

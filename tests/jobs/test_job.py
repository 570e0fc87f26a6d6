"""Jobs on this machine: nothing lost, nothing twice, whatever is killed."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.errors import CheckpointError, DeviceError, OutputError, SourceError
from maskjet.host import devices
from maskjet.jobs import driver, local
from maskjet.jobs.folders import Folder
from maskjet.jobs.parts import Parts
from maskjet.jobs.rows import metadata
from maskjet.jobs.segments import Settings
from maskjet.jobs.work import Worker, digest_weights, error_answer, parse_answer
from maskjet.networks.exported import network_file
from tests.cli.command_line import call
from tests.jobs.making import read_part
from tests.waiting import until

SLOW = """
import os, time
from maskjet.jobs import work

process = work.process

def slowly(segment, *arguments, **options):
    time.sleep(0.5)
    if any("killer" in file.path for file in segment.files):
        os.kill(os.getpid(), 9)
    return process(segment, *arguments, **options)

work.process = slowly
"""
FULL = """
import errno, os

sync = os.fsync

def fail(descriptor):
    if "/parts/" in os.readlink(f"/proc/self/fd/{descriptor}"):
        raise OSError(errno.ENOSPC, "No space left on device")
    sync(descriptor)

os.fsync = fail
"""


@pytest.fixture(scope="module")
def expected(whole):
    return contents(whole)


class WorkersHere:
    """`LocalWorkers` without processes, which prints as Ray does."""

    def __init__(self, orders, *_):
        self.orders = {**orders, "device": "cpu", "streams": 1}

    def run(self, tasks, _):
        sys.stdout.write("(raylet) A worker died.\n")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in processes of workers: rounding depends on it
        try:
            worker = Worker(self.orders)
            yield from (worker.do(*task) for task in tasks if task is not None)
        finally:
            torch.set_num_threads(threads)


def full_disk(_, tasks, stop):  # noqa: ARG001 - as `WorkersHere.run` is called
    for _ in tasks:  # until all is planned
        pass
    raise OutputError("out must be writable, it is not.")
    yield


@pytest.fixture
def quick(monkeypatch):
    """Jobs start no processes."""
    monkeypatch.setattr(local, "LocalWorkers", WorkersHere)


def job(capsys, streets, out, *options):
    return call(capsys, "maskjet", *arguments(streets, out, *options))


def arguments(streets, out, *options):
    devices = () if "--devices" in options else ("--devices", "cpu")
    return ["job", "run", str(streets), "--out", str(out), "--segment-images", "1", *devices, *options]


def patched(folder, patch):
    """PYTHONPATH of processes that run a patch when they start."""
    (folder / "patch").mkdir()
    (folder / "patch" / "sitecustomize.py").write_text(patch)
    return os.pathsep.join([str(folder / "patch"), *filter(None, sys.path)])


def contents(out):
    """The rows of each part."""
    parts = Parts(str(out))
    return {part: read_part(out, part).to_pylist() for part, _ in parts.manifest() if parts.had(part)}


def files_of(out):
    return sorted(Path(out, "parts").rglob("*.parquet"))


def worker_of(pid):
    """The process that a driver has started, once it has."""
    found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return next((each for each in found if b"maskjet.jobs.worker" in Path(f"/proc/{each}/cmdline").read_bytes()), None)


def has_ended(pid):
    path = Path(f"/proc/{pid}/cmdline")
    return not path.exists() or not path.read_bytes()  # of one that nobody has waited for


def failures_of(out):
    lines = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    return [(line["what"], line["reason"]) for line in lines]


@pytest.mark.usefixtures("quick")
def test_a_job_makes_a_part_of_each_segment_and_lists_what_failed(streets, expected, tmp_path, capsys):
    left = tmp_path / "parts" / "ab" / f"{'ab' * 16}.partial.parquet"  # of a run that was killed
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    code, out, err = job(capsys, streets, tmp_path, "--json")
    told = json.loads(out)
    assert (code, told["failures"], told["skipped"], told["failed"]) == (1, 1, 0, 0), err
    assert "(raylet) A worker died." in err
    assert told["done"] == told["planned"] == len(files_of(tmp_path))
    assert contents(tmp_path) == expected
    rows = [row for each in expected.values() for row in each]
    assert told["frames"] == len(rows) == 7 + 5
    assert sum(row["n"] for row in rows) == told["detections"] > 0
    ((what, reason),) = failures_of(tmp_path)
    assert what == str(streets / "5.png")
    assert "corrupt" in reason
    before = {path: path.stat().st_mtime_ns for path in files_of(tmp_path)}
    code, out, _ = job(capsys, streets, tmp_path, "--json")
    again = json.loads(out)
    assert (code, again["failures"], again["done"], again["skipped"]) == (1, 1, 0, told["planned"])
    assert {path: path.stat().st_mtime_ns for path in files_of(tmp_path)} == before


@pytest.mark.usefixtures("quick")
def test_tiles_are_kept_and_name_other_parts(streets, expected, tmp_path, capsys):
    options = ["--tile", "80x48", "--overlap", "0.1", "--no-full", "--every", "3"]
    told, _, err = job(capsys, streets / "*.mp4", tmp_path, *options)
    assert told == 0, err
    (part,) = contents(tmp_path).keys() - expected.keys()
    kept = metadata(read_part(tmp_path, part).schema)["settings"]["tiling"]
    assert kept == {"tile": [48, 80], "overlap": 0.1, "full": False}


@pytest.mark.usefixtures("quick")
def test_a_driver_that_is_killed_loses_no_failure(streets, tmp_path, capsys, monkeypatch):
    """Once a part is there, what is missing in it is listed, even if the driver never hears of it."""

    def is_killed(_, part, failures):  # noqa: ARG001 - as it is called
        if failures:
            raise OutputError("the driver is killed.")

    with monkeypatch.context() as patch:
        patch.setattr(driver.Failures, "take", is_killed)
        patch.setattr(driver.Failures, "finish", lambda *_, **__: None)
        _, _, err = job(capsys, streets, tmp_path)
        assert "the driver is killed" in err
    code, out, _ = job(capsys, streets, tmp_path, "--json")
    assert (code, json.loads(out)["failures"]) == (1, 1)
    assert [what for what, _ in failures_of(tmp_path)] == [str(streets / "5.png")]
    monkeypatch.setattr(WorkersHere, "run", full_disk)
    assert job(capsys, streets, tmp_path, "--every", "2")[0] == 4  # before it has looked for all parts
    assert [what for what, _ in failures_of(tmp_path)] == [str(streets / "5.png")]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_results_in_a_store(streets, expected, tmp_path, remote_out, capsys):
    code, told, err = job(capsys, streets, remote_out, "--json")
    assert (code, json.loads(told)["done"]) == (1, len(expected)), err
    assert contents(remote_out) == expected
    code, _, told = job(capsys, streets, remote_out)
    assert code == 1
    assert f"0 written, {len(expected)} existed before" in told
    folder = Folder(remote_out)
    assert f"1 file or frame failed: see {folder.name('failures.jsonl')}\n" in told
    assert json.loads(folder.read("failures.jsonl"))["what"] == str(streets / "5.png")
    lines = tmp_path / "found.jsonl"
    assert call(capsys, "maskjet", "job", "merge", remote_out, "--jsonl", str(lines))[0] == 0
    assert len(lines.read_text().splitlines()) == 7 + 5


@pytest.mark.usefixtures("quick")
def test_a_file_that_changed_is_done_anew_and_a_mended_one_is_forgotten(streets, tmp_path, capsys):
    folder, out = tmp_path / "streets", tmp_path / "out"
    folder.mkdir()
    for number in range(3):
        shutil.copy(streets / f"{number}.png", folder)
    (folder / "7.png").write_bytes(b"no image")
    (folder / "9.mp4").write_bytes(b"no video")
    code, told, _ = job(capsys, folder, out, "--json")
    told = json.loads(told)
    assert (code, told["done"], told["failed"], told["failures"]) == (1, 4, 1, 2)
    shutil.copy(streets / "7.png", folder)
    (folder / "9.mp4").unlink()
    code, told, _ = job(capsys, folder, out, "--json")
    told = json.loads(told)
    assert (code, told["done"], told["skipped"], told["failures"]) == (0, 1, 3, 0)
    assert not (out / "failures.jsonl").exists()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--every 0", 2, "--every must be a whole number of at least 1, got 0"),
        ("--model demmo", 2, "did you mean 'demo'"),
        ("--weights nowhere.pt", 3, "nowhere.pt' can't be read: No such file"),
        ("--threshold cow=0.5", 2, "cow"),
        ("nowhere", 3, "nowhere' does not"),
    ],
)
def test_bad_options_are_told_before_any_work(streets, tmp_path, capsys, monkeypatch, options, code, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    told, _, err = job(capsys, streets, tmp_path, *options.split())
    assert (told, files_of(tmp_path)) == (code, [])
    assert message in err
    assert "Traceback" not in err


def test_other_weights_at_the_same_path_give_other_parts(tmp_path, monkeypatch):
    weights, exported, beside = tmp_path / "model.pt", tmp_path / "model.onnx", tmp_path / "model.data"
    exported.touch()
    monkeypatch.setattr(network_file, "read_network_file", lambda path: SimpleNamespace(files=(path, beside)))

    def digest_of(path, content, **settings):
        path.write_bytes(content)
        return digest_weights(Settings(**settings))

    for path, settings in (
        (weights, {"model": str(weights)}),
        (weights, {"model": "rf-detr-seg-nano", "weights": str(weights)}),
        (beside, {"model": str(exported)}),
    ):
        first, again, other = (digest_of(path, content, **settings) for content in (b"one", b"one", b"two"))
        assert first == again != other
    assert digest_of(weights, b"one") is None
    with pytest.raises(CheckpointError, match=r"weights must be a file, '/none\.pt' can't be read"):
        digest_weights(Settings(weights="/none.pt"))


def test_errors_cross_processes_as_they_are():
    for error in (SourceError("a"), CheckpointError("b"), DeviceError("c", index=0)):
        with pytest.raises(type(error), match=f"^{error}$"):
            parse_answer(json.loads(json.dumps(error_answer(error, "a segment"))))


def test_a_worker_that_dies_each_time_it_starts_ends_the_job(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    workers = local.LocalWorkers({}, devices.choose("cpu", EngineConfig().check_cpu), 1)
    with pytest.raises(DeviceError, match=r"cpu died 5 times without a result, at last: ended with exit code 1\.$"):
        list(workers.run(itertools.repeat(None), threading.Event()))


@pytest.mark.slow
def test_two_processes_find_what_one_finds(streets, expected, tmp_path, capsys):
    assert job(capsys, streets, tmp_path, "--devices", "cpu,cpu")[0] == 1
    assert contents(tmp_path) == expected


@pytest.fixture
def start(streets, tmp_path):
    """Starts the same job in a process of its own; it works slowly, on a segment at a time."""
    environment = {**os.environ, "PYTHONPATH": patched(tmp_path, SLOW)}
    command = [sys.executable, "-m", "maskjet", *arguments(streets, tmp_path / "out")]
    core = {min(os.sched_getaffinity(0))}
    return lambda: subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )


@pytest.mark.slow
def test_what_is_stopped_or_killed_loses_nothing_and_goes_on_later(expected, tmp_path, start):
    out = tmp_path / "out"
    with start() as process:
        until(lambda: files_of(out))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "not all is done: run the same command again" in process.stderr.read()
    some = contents(out)
    assert 0 < len(some) < len(expected)
    with start() as process:  # it takes its worker along
        until(lambda: len(files_of(out)) > len(some))
        worker = worker_of(process.pid)
        process.kill()
        process.wait()
    until(lambda: has_ended(worker))
    count = len(files_of(out))
    assert count < len(expected)
    with start() as process:
        os.kill(until(lambda: worker_of(process.pid)), signal.SIGKILL)  # before it has loaded its model
        until(lambda: len(files_of(out)) > count)
        os.kill(worker_of(process.pid), signal.SIGKILL)
        assert process.wait(120) == 1, process.stderr.read()
    assert contents(out) == expected
    assert not list(out.rglob("*.partial*"))


@pytest.mark.slow
def test_a_segment_that_kills_its_process_is_given_up_and_the_others_are_not(streets, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", patched(tmp_path, SLOW))
    monkeypatch.setattr(local, "TRIES", 2)
    folder, out = tmp_path / "streets", tmp_path / "out"
    folder.mkdir()
    for name, number in {"0": 0, "1": 1, "killer": 3, "x": 4}.items():
        shutil.copy(streets / f"{number}.png", folder / f"{name}.png")
    assert job(capsys, folder, out)[0] == 1
    assert failures_of(out) == [(str(folder / "killer.png"), "its worker died 2 times")]
    assert len(files_of(out)) == 3


@pytest.mark.slow
def test_a_full_disk_ends_the_job_and_leaves_no_partial_file(streets, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", patched(tmp_path, FULL))
    code, _, err = job(capsys, streets, tmp_path / "out")
    assert code == 4
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("out/parts/*/*"))

"""Jobs on this machine: nothing lost, nothing twice, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import onnx
import pytest

from maskjet import devices, traffic
from maskjet.errors import CheckpointError, DeviceError, OutputError, SourceError
from maskjet.jobs import driver
from maskjet.jobs.folders import LocalFolder, open_folder
from maskjet.jobs.local import error_of
from maskjet.jobs.locks import LOCK, locked
from maskjet.jobs.parts import Parts
from maskjet.jobs.segments import Segment, Settings
from maskjet.jobs.work import Outcome
from tests.cli.command_line import call
from tests.networks.test_network import tiny_network
from tests.waiting import until

SLOW = """
import time
from maskjet.jobs import work

process = work.process

def slowly(segment, *arguments, **options):
    time.sleep({seconds})
    {more}
    return process(segment, *arguments, **options)

work.process = slowly
"""
KILLS = "import os\n    if any('killer' in file.path for file in segment.files): os.kill(os.getpid(), 9)"
FULL = """
import errno
from pathlib import Path
from maskjet import files

finish = files.Part.finish

def fail(self, **options):
    if "parts" in self.path.parts:
        raise OSError(errno.ENOSPC, "No space left on device")
    finish(self, **options)

files.Part.finish = fail
"""


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """Twelve images, of which one is broken, and a video."""
    folder = tmp_path_factory.mktemp("streets")
    for number in range(12):
        image = traffic.sample(seed=number % 4, size_hw=(64, 96)).image
        cv2.imwrite(str(folder / f"{number}.png"), image[..., ::-1])
    (folder / "5.png").write_bytes(b"no image")
    traffic.write_video(folder / "street.mp4", size_hw=(64, 96), frames=12, seed=1)
    return folder


@pytest.fixture(scope="module")
def whole(streets, tmp_path_factory):
    """Results of an undisturbed run."""
    out = tmp_path_factory.mktemp("whole")
    assert subprocess.run(command(streets, out), stderr=subprocess.DEVNULL).returncode == 1
    return contents(out)


def job(capsys, streets, out, *options):
    return call(capsys, "maskjet", "job", str(streets), "--out", str(out), "--segment-images", "2", *options)


def command(streets, out, *options):
    return [
        *(sys.executable, "-m", "maskjet", "job", str(streets), "--out", str(out), "--segment-images", "2"),
        *("--devices", "cpu", *options),
    ]


def patched(folder, patch):
    """An environment whose processes run a patch when they start."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(patch)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


def started(streets, out, folder, patch, *options):
    return subprocess.Popen(
        command(streets, out, *options), env=patched(folder, patch), stderr=subprocess.PIPE, text=True
    )


def contents(out):
    """The rows of each part."""
    parts = Parts(str(out))
    return {part: parts.read(part).to_pylist() for part, _ in parts.manifest() if parts.existing([part])}


def files_of(out):
    return sorted(Path(out, "parts").rglob("*.*")) if Path(out, "parts").exists() else []


def workers_of(pid):
    """The processes that a driver has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found if b"maskjet.jobs.worker" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_job_makes_a_part_of_each_segment_and_lists_what_failed(streets, tmp_path, capsys):
    code, out, err = job(capsys, streets, tmp_path / "out", "--json")
    told = json.loads(out)
    assert (code, told["failures"], told["skipped"], told["failed"]) == (1, 1, 0, 0), err
    assert told["done"] == told["planned"] == len(files_of(tmp_path / "out"))
    rows = [row for each in contents(tmp_path / "out").values() for row in each]
    assert told["frames"] == len(rows) == 11 + 12
    assert sum(row["n"] for row in rows) == told["detections"] > 0
    (line,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["what"] == str(streets / "5.png")
    assert "corrupt" in json.loads(line)["reason"]
    before = {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "out")}
    code, out, _ = job(capsys, streets, tmp_path / "out", "--json")
    again = json.loads(out)
    assert (code, again["failures"], again["done"], again["skipped"]) == (1, 1, 0, told["planned"])
    assert {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "out")} == before


def test_a_driver_that_is_killed_loses_no_failure(streets, tmp_path, capsys, monkeypatch):
    """Once a part is there, what is missing in it is listed, even if the driver never hears of it."""

    def is_killed(_, outcome):
        if outcome.failures:
            raise OutputError("the driver is killed.")

    with monkeypatch.context() as patch:
        patch.setattr(driver.Failures, "take", is_killed)
        patch.setattr(driver.Failures, "finish", lambda *_, **__: None)
        _, _, err = job(capsys, streets, tmp_path / "out")
        assert "the driver is killed" in err
    code, out, _ = job(capsys, streets, tmp_path / "out", "--json")
    assert (code, json.loads(out)["failures"]) == (1, 1)
    (line,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["what"] == str(streets / "5.png")


def test_what_others_print_meanwhile_stays_off_stdout(capsys, streets, tmp_path, monkeypatch):
    run = driver.run

    def noisy(*arguments):
        sys.stdout.write("(raylet) A worker died.\n")
        return run(*arguments)

    monkeypatch.setattr(driver, "run", noisy)
    code, out, err = job(capsys, streets, tmp_path / "out", "--json")
    assert (code, json.loads(out)["failures"]) == (1, 1)
    assert "(raylet) A worker died." in err


def test_results_in_a_store(streets, whole, tmp_path, remote_out, capsys):
    code, told, err = job(capsys, streets, remote_out, "--json")
    assert (code, json.loads(told)["done"]) == (1, len(whole)), err
    assert contents(remote_out) == whole
    code, _, told = job(capsys, streets, remote_out)
    assert code == 1
    assert f"0 written, {len(whole)} there before" in told
    folder = open_folder(remote_out)
    assert f"1 file or frame failed: see {folder.name('failures.jsonl')}\n" in told
    assert json.loads(folder.read("failures.jsonl"))["what"] == str(streets / "5.png")
    with locked(folder):
        code, _, err = job(capsys, streets, remote_out)
    assert (code, f"process {os.getpid()} on" in err) == (2, True)
    assert folder.read(LOCK) is None
    lines = tmp_path / "found.jsonl"
    assert call(capsys, "maskjet", "job", "merge", remote_out, "--jsonl", str(lines))[0] == 0
    assert len(lines.read_text().splitlines()) == 11 + 12


def test_other_weights_beside_an_exported_file_give_other_parts(tmp_path):
    from maskjet import runtimes

    path = tmp_path / "tiny.onnx"
    model = onnx.load(runtimes.export(tiny_network(), path).path)
    onnx.save_model(model, path, save_as_external_data=True, location="tiny.data", size_threshold=0)
    settings = Settings(model=str(path))
    before = driver._digest_of_weights(settings)
    assert driver._digest_of_weights(settings) == before
    data = bytearray((tmp_path / "tiny.data").read_bytes())
    data[-1] ^= 1
    (tmp_path / "tiny.data").write_bytes(data)
    assert driver._digest_of_weights(settings) != before
    (tmp_path / "tiny.data").unlink()
    with pytest.raises(CheckpointError, match="weights must lie in files in its folder"):
        driver._digest_of_weights(settings)


@pytest.mark.slow
def test_two_processes_find_what_one_finds(streets, whole, tmp_path, capsys):
    assert job(capsys, streets, tmp_path, "--devices", "cpu,cpu", "--streams", "2")[0] == 1
    assert contents(tmp_path) == whole


def test_a_file_that_changed_is_done_anew_and_a_mended_one_is_forgotten(streets, tmp_path, capsys):
    folder, out = tmp_path / "streets", tmp_path / "out"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.png").write_bytes((streets / f"{number}.png").read_bytes())
    (folder / "7.png").write_bytes(b"no image")
    assert job(capsys, folder, out, "--segment-images", "1")[0] == 1
    (folder / "7.png").write_bytes((streets / "7.png").read_bytes())
    code, told, _ = job(capsys, folder, out, "--json", "--segment-images", "1")
    told = json.loads(told)
    assert (code, told["done"], told["skipped"], told["failures"]) == (0, 1, 3, 0)
    assert not (out / "failures.jsonl").exists()


def test_another_checkpoint_at_the_same_path_gives_other_parts(tmp_path):
    weights = tmp_path / "model.pt"

    def digest_of(content, **settings):
        weights.write_bytes(content)
        return driver._digest_of_weights(Settings(**settings))

    for settings in ({"model": str(weights)}, {"model": "rf-detr-seg-nano", "weights": str(weights)}):
        assert digest_of(b"one", **settings) == digest_of(b"one", **settings) != digest_of(b"two", **settings)
    assert digest_of(b"one") is None
    with pytest.raises(CheckpointError, match=r"weights must be a file, '/none\.pt' can't be read"):
        driver._digest_of_weights(Settings(weights="/none.pt"))


@pytest.mark.slow
def test_ctrl_c_ends_a_job_that_goes_on_later(streets, whole, tmp_path, capsys):
    out = tmp_path / "out"
    with started(streets, out, tmp_path / "patch", SLOW.format(seconds=0.3, more="")) as process:
        until(lambda: files_of(out))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "not all is done: run the same command again" in process.stderr.read()
    some = contents(out)
    assert 0 < len(some) < len(whole)
    assert job(capsys, streets, out)[0] == 1
    assert contents(out) == whole


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(streets, whole, tmp_path):
    out = tmp_path / "out"
    with started(streets, out, tmp_path / "patch", SLOW.format(seconds=0.2, more="")) as process:
        until(lambda: files_of(out))
        (worker,) = workers_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        assert process.wait(120) == 1, process.stderr.read()
    assert contents(out) == whole
    assert not list(out.rglob("*.partial*"))


@pytest.mark.slow
def test_a_driver_that_is_killed_takes_its_workers_along_and_goes_on_later(streets, whole, tmp_path, capsys):
    out = tmp_path / "out"
    with started(streets, out, tmp_path / "patch", SLOW.format(seconds=0.2, more="")) as process:
        until(lambda: files_of(out))
        (worker,) = workers_of(process.pid)
        process.kill()
        process.wait()
    until(lambda: not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_bytes())
    assert len(contents_without_plan(out)) < len(whole)
    assert job(capsys, streets, out)[0] == 1
    assert contents(out) == whole


def contents_without_plan(out):
    return [path.stem for path in files_of(out) if path.suffix == ".parquet"]


@pytest.mark.slow
def test_a_segment_that_kills_its_process_is_given_up_and_the_others_are_not(streets, tmp_path):
    folder, out = tmp_path / "streets", tmp_path / "out"
    folder.mkdir()
    for name, number in {"0": 0, "1": 1, "2": 2, "killer": 3, "x": 4, "y": 6}.items():
        (folder / f"{name}.png").write_bytes((streets / f"{number}.png").read_bytes())
    with started(
        folder, out, tmp_path / "patch", SLOW.format(seconds=0.0, more=KILLS), "--segment-images", "1", "--json"
    ) as process:
        assert process.wait(180) == 1, process.stderr.read()
    lines = [json.loads(line) for line in (out / "failures.jsonl").read_text().splitlines()]
    assert [(line["what"], line["reason"]) for line in lines] == [
        (str(folder / "killer.png"), "its process on cpu died (signal 9)")
    ]
    assert len(contents_without_plan(out)) == 5


@pytest.mark.slow
def test_a_full_disk_ends_the_job_and_leaves_no_partial_file(streets, tmp_path):
    out = tmp_path / "out"
    with started(streets, out, tmp_path / "patch", FULL) as process:
        assert process.wait(60) == 2
        err = process.stderr.read()
    assert "No space left on device" in err
    assert "Traceback" not in err
    assert files_of(out) == []


def test_a_second_driver_says_so_and_stops(streets, tmp_path, capsys):
    with locked(LocalFolder(str(tmp_path))):
        code, _, err = job(capsys, streets, tmp_path)
    assert code == 2
    assert f"process {os.getpid()} on" in err


def test_damaged_parts_are_found_and_done_anew(streets, whole, tmp_path, capsys):
    assert job(capsys, streets, tmp_path)[0] == 1
    victim, *_ = files_of(tmp_path)
    victim.write_bytes(victim.read_bytes()[:-20])
    code, _, err = job(capsys, streets, tmp_path)
    assert (code, "was damaged" in err) == (1, False)  # nobody asked
    code, told, err = job(capsys, streets, tmp_path, "--verify", "--json")
    told = json.loads(told)
    assert (code, told["done"]) == (1, 1)
    assert [part for part, _ in told["damaged"]] == [victim.stem]
    assert f"part {victim.stem} was damaged and is done anew" in err
    assert contents(tmp_path) == whole


def test_what_a_killed_run_left_is_removed(streets, tmp_path, capsys):
    left = tmp_path / "parts" / "ab" / f"{'ab' * 16}.partial.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert job(capsys, streets, tmp_path)[0] == 1
    assert not left.exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--every", "0"], 2, "--every must be at least 1, got 0"),
        (["--segment-seconds", "0"], 2, "--segment-seconds must be more than 0, got 0.0"),
        (["--segment-images", "0"], 2, "--segment-images must be at least 1, got 0"),
        (["--rows", "mask"], 2, '--rows must be "frame" or "detection", got \'mask\''),
        (["--streams", "0"], 2, "--streams must be at least 1, got 0"),
        (["--devices", "gpu"], 2, "--devices must be all, or cpu, cuda or cuda:N"),
        (["--model", "demmo"], 2, "did you mean 'demo'"),
        (["--weights", "nowhere.pt"], 3, "nowhere.pt' can't be read: No such file"),
        (["--threshold", "2"], 2, "--threshold must be 0..1, got 2.0"),
        (["--threshold", "cow=0.5"], 2, "cow"),
    ],
)
def test_bad_options_are_told_before_any_work(streets, tmp_path, capsys, options, code, message):
    told, _, err = job(capsys, streets, tmp_path, *options)
    assert (told, files_of(tmp_path)) == (code, [])
    assert message in err
    assert "Traceback" not in err


def test_a_gpu_has_room_for_some_streams(streets, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(devices, "_count_gpus", lambda: 1)
    told, _, err = job(capsys, streets, tmp_path, "--devices", "all", "--streams", "9")
    assert (told, files_of(tmp_path)) == (2, [])
    assert "--streams must be at most 8 on a GPU, got 9" in err


def test_a_missing_source_is_told_before_any_work(tmp_path, capsys):
    code, _, err = job(capsys, tmp_path / "nowhere", tmp_path / "out")
    assert (code, files_of(tmp_path / "out")) == (3, [])
    assert "does not" in err


def test_errors_and_outcomes_cross_processes_as_they_are():
    for error in (SourceError("a"), CheckpointError("b"), DeviceError("c", index=0)):
        again = error_of({"error": type(error).__name__, "text": str(error)})
        assert (type(again), str(again)) == (type(error), str(error))
    outcome = Outcome("a" * 32, 3, 7, (("a.png", "broken"),))
    assert Outcome.from_dict(json.loads(json.dumps(outcome.as_dict()))) == outcome
    assert Segment.from_dict(json.loads(json.dumps(Segment((), is_video=False).as_dict()))) == Segment(
        (), is_video=False
    )

"""`maskjet run --processes`: the same results from several processes, of which one may die."""

import json
import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from maskjet import traffic
from tests.cli.test_signals import start, wait_for_lines
from tests.sources.rtsp import RtspCamera
from tests.waiting import until

RUN = "run a.mp4 b.mp4 c.mp4 --side-by-side --track --device cpu --threshold 0.3"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        traffic.write_video(tmp_path / f"{name}.mp4", size_hw=(96, 160), frames=5, seed=number)
    return tmp_path


def by_source(path):
    found = defaultdict(list)
    for text in path.read_text().splitlines(keepends=True):
        if text.endswith("\n"):  # else it is being written
            line = json.loads(text)
            found[line["source"]].append(line)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_several_processes_write_what_one_does(folder, maskjet):
    code, out, err = maskjet(f"{RUN} -o several.jsonl -o own/{{}}.csv --processes 2 --json")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert maskjet(f"{RUN} -o one.jsonl -o alone/{{}}.csv")[0] == 0
    several, one = by_source(folder / "several.jsonl"), by_source(folder / "one.jsonl")
    for name in one:
        assert [line["index"] for line in several[name]] == [*range(5)]
        for found, expected in zip(several[name], one[name], strict=True):  # batches and threads, so roundings, differ
            pairs = [*zip(found["detections"], expected["detections"], strict=True)]
            assert all(own["track_id"] == other["track_id"] for own, other in pairs)
            assert all(own["confidence"] == pytest.approx(other["confidence"], abs=1e-3) for own, other in pairs)
        rows = [(folder / where / name).with_suffix(".csv").read_text().count("\n") for where in ("own", "alone")]
        assert rows[0] == rows[1] > 1
    assert [each["source"] for each in summary["sources"]] == ["a.mp4", "b.mp4", "c.mp4"]
    assert {each["state"] for each in summary["sources"]} == {"done"}
    assert (summary["frames"], summary["restarts"]) == (15, 0)
    assert sorted(summary["outputs"]) == ["own/a.csv", "own/b.csv", "own/c.csv", "several.jsonl"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_errors_of_processes_are_told(folder, maskjet):
    (folder / "b.mp4").write_bytes((folder / "b.mp4").read_bytes()[:50])
    code, _, err = maskjet(f"{RUN} -o all.jsonl --processes 2")
    assert (code, "b.mp4" in err.splitlines()[-1]) == (3, True)
    assert set(by_source(folder / "all.partial.jsonl")) == {"a.mp4", "c.mp4"}
    code, _, err = maskjet(f"{RUN} -o all.jsonl --processes 2 --model none.pt")
    assert code in (2, 3)
    assert "none.pt" in err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--processes 2 -o all.jsonl --show", "--show must be left out with several processes"),
        ("--processes 2 -o {}.jsonl --record", "--record must be left out with several processes"),
        ("--processes 2 -o all.csv", r"--out must contain {} or be .jsonl with several processes, got 'all.csv'"),
        ("--processes some -o all.jsonl", "--processes must be auto or a whole number 1..99, got 'some'"),
    ],
)
def test_what_several_processes_can_not_do_is_refused(more, message, folder, maskjet):
    code, _, err = maskjet(f"{RUN} {more}")
    assert (code, message in err) == (2, True), err
    code, _, err = maskjet("run a.mp4 b.mp4 -o all.jsonl --processes 2")
    assert (code, "--processes must be 1 for one source, or several that are read in turn" in err) == (2, True)
    assert {each.name for each in folder.iterdir()} == {"a.mp4", "b.mp4", "c.mp4"}


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
def test_a_process_that_dies_is_started_again_and_others_lose_nothing(tmp_path):
    with RtspCamera(fps=10) as one, RtspCamera(fps=10) as two:
        urls, options = (one.url, two.url), ("--processes", "2", "--device", "cpu", "--input-size", "80x80", "--json")
        outs = [tmp_path / name for name in ("all.jsonl", "{}.mp4")]
        process = start("run", *urls, *options, *(word for out in outs for word in ("-o", out)))
        lines = tmp_path / "all.partial.jsonl"
        wait_for_lines(process, lines)
        until(lambda: min(len(by_source(lines)[url]) for url in urls) > 20, 60)
        working, _, spare = children(process)
        for victim in (working, spare):  # the spare one has the first one's cameras by then
            seen = len(by_source(lines)[urls[0]])
            os.kill(victim, signal.SIGKILL)
            told = next(line for line in process.stderr if "started again" in line)
            assert told == "maskjet: process 0 on cpu was ended by SIGKILL, and is started again\n"
            until(lambda: len(by_source(lines)[urls[0]]) > seen + 20, 60)  # noqa: B023, called at once
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in err) == (143, False)
    summary, found = json.loads(out), by_source(tmp_path / "all.jsonl")
    assert summary["restarts"] == 2
    (dead, alive) = summary["sources"]
    assert (dead["missed"] > 0, alive["missed"], alive["state"]) == (True, 0, "stopped")
    indices = [line["index"] for line in found[urls[1]]]
    assert indices == [*range(len(indices))]
    names = {each.name for each in tmp_path.iterdir()}
    assert len([name for name in names if name.endswith(".3.mp4")]) == 1
    assert len([name for name in names if name.endswith(".partial.mp4")]) == 2

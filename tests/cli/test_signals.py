"""What ends the program from outside: whole outputs, exit code 128 + n, and no traceback."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from maskjet import traffic
from maskjet.cli import run as run_command
from maskjet.cli import signals
from maskjet.cli.main import main
from maskjet.frames import Frame, open_source
from maskjet.sinks import open_sinks
from tests.test_detections import some_detections

ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
# A background job ignores SIGINT, and so would what it starts.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom maskjet.cli.main import main; main()"
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    street = traffic.sample(seed=2, size_hw=(96, 160)).image
    with open_sinks([str(path)]) as sinks:
        for index in range(900):
            sinks.write(Frame(index, index / 30, street, "s", "s"), some_detections(0, size=(96, 160)))
    return path


def start(*arguments, program=PROGRAM):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    )


def wait_for_lines(process, path):
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size > 1000):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_whole_outputs_a_summary_and_its_exit_code(number, clip, tmp_path):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")]
    for out in outs:
        out.write_bytes(b"old")
    process = start("run", clip, "--json", *(word for out in outs for word in ("--out", out)))
    wait_for_lines(process, tmp_path / "a.partial.jsonl")
    assert [out.read_bytes() for out in outs] == [b"old"] * 3
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    summary = json.loads(out)
    assert (process.returncode, err) == (128 + number, "")
    assert summary["is_interrupted"]
    assert summary["outputs"] == list(map(str, outs))
    assert 0 < summary["frames"] < 900
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.jsonl", "a.mp4"]
    assert len(outs[1].read_text().splitlines()) == summary["frames"]
    assert len(list(open_source(outs[0]))) == summary["frames"]
    assert len(json.loads(outs[2].read_text())["images"]) == summary["frames"]


def test_kill_leaves_what_was_there_and_parts_that_can_be_read(clip, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"old")
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")]
    process = start("run", clip, *(word for out in outs for word in ("--out", out)))
    part = tmp_path / "a.partial.jsonl"
    wait_for_lines(process, part)
    while len(part.read_text().splitlines()) < 60:  # two seconds of video
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    lines = [json.loads(line) for line in part.read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert (tmp_path / "a.mp4").read_bytes() == b"old"
    assert not (tmp_path / "a.jsonl").exists()
    assert len(lines) - 45 <= len(list(open_source(tmp_path / "a.partial.mp4"))) <= len(lines) + 1
    entries = [json.loads(line) for line in (tmp_path / "a.partial-2.jsonl").read_text().splitlines()]
    assert sum("file_name" in entry for entry in entries) in (len(lines), len(lines) - 1)


@pytest.mark.parametrize("module", ["typer", "torch", "numpy", "cv2"])
def test_ctrl_c_while_modules_are_imported_is_quiet(module):
    # The signal comes when a module's import starts: the same moment on any machine.
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "from maskjet.cli.main import main; main()"
    )
    process = start("info", program=program)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")


class Results:
    """Results that a test's steps make; a step is called when its result is asked for."""

    def __init__(self, *steps):
        self.closed = False
        self.steps = steps

    def make(self):
        try:
            for step in self.steps:
                yield step()
        finally:
            self.closed = True


def stop_at(number, finished):
    def step():
        os.kill(os.getpid(), number)
        time.sleep(10)  # a camera without frames; the signal ends it
        return "never"

    with signals.stopping() as stop:
        results = Results(lambda: "a", lambda: "b", step, lambda: "c")
        found = list(stop.until(results.make(), lambda: finished.append(results.closed)))
    return found, stop.number, results.closed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_waiting_after_the_outputs_are_whole(number):
    finished = []
    started = time.monotonic()
    assert stop_at(number, finished) == (["a", "b"], number, True)
    assert finished == [False]  # before the source was asked to let go
    assert time.monotonic() - started < 9


def test_a_signal_while_something_is_written_waits_for_it():
    written = []
    with signals.stopping() as stop:
        for item in stop.until(Results(lambda: "a", lambda: "b").make(), lambda: written.append("finished")):
            os.kill(os.getpid(), signal.SIGTERM)
            written.append(item)
    assert (written, stop.number) == (["a"], signal.SIGTERM)


def test_a_second_signal_raises():
    with signals.stopping() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        with pytest.raises(signals.Ended, match="ended by SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.raising() as came, signals.stopping() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert (came, stop.number) == ([], None)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_those_from_before_and_other_threads_have_none():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def in_a_thread():
        with signals.raising(), signals.stopping():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with signals.raising(), signals.stopping():
        pass
    assert seen == [before[1]]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_stopped_before_the_first_frame_nothing_is_replaced(clip, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.jsonl").write_text("old")

    def stopped(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return 900

    monkeypatch.setattr(run_command, "_total_length", stopped)
    monkeypatch.setattr(sys, "argv", ["maskjet", "run", str(clip), "--out", str(tmp_path / "a.jsonl")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_text() == "old"
    assert capsys.readouterr().err.startswith("interrupted\n0 frames")

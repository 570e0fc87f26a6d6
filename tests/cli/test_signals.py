"""What ends the program from outside: whole outputs, exit code 128 + n, and no traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import av
import numpy as np
import pytest

from maskjet import traffic
from maskjet.cli import runs, signals
from maskjet.cli.main import main
from maskjet.media.frames import Frame, open_source
from maskjet.media.sinks import open_sinks
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


@pytest.mark.slow
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
    process = start("info", "--model", "demo", program=program)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_signal_ends_waiting_for_a_source_that_fell_silent(tmp_path):
    video = tmp_path / "v.ts"
    with av.open(str(video), "w", format="mpegts") as container:
        stream = container.add_stream(
            "libx264", rate=10, options={"g": "1", "preset": "ultrafast", "tune": "zerolatency"}
        )
        stream.width, stream.height = 160, 96
        for _ in range(30):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((96, 160, 3), np.uint8), format="rgb24")))
        container.mux(stream.encode(None))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            taken, _ = server.accept()
            taken.recv(1000)
            taken.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + video.read_bytes())
            silenced.append(taken)  # neither closed nor written to again

        silenced = []
        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v.ts"
        process = start("run", url, "--json", "--out", tmp_path / "a.jsonl", "--out", tmp_path / "a.mp4")
        wait_for_lines(process, tmp_path / "a.partial.jsonl")
        time.sleep(1)  # the frames that came are done
        sent = time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        silenced.pop().close()
    summary = json.loads(out)
    assert (process.returncode, err, summary["is_interrupted"]) == (143, "", True)
    assert time.monotonic() - sent < 9  # FFmpeg itself would wait for ten seconds
    assert 0 < summary["frames"] == len((tmp_path / "a.jsonl").read_text().splitlines())
    assert len(list(open_source(tmp_path / "a.mp4"))) == summary["frames"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_first_signal_stops_a_stream(number):
    stop = signals.Stop()
    with signals.stopping(stop):
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert stop.event.wait(5)
    assert stop.number == number


def test_a_second_signal_raises():
    stop = signals.Stop()
    with signals.stopping(stop):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        with pytest.raises(signals.Ended, match="ended by SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = signals.Stop()
        with signals.raising() as came, signals.stopping(stop):
            os.kill(os.getpid(), signal.SIGHUP)
        assert (came, stop.number) == ([], None)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_those_from_before_and_other_threads_have_none():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def in_a_thread():
        with signals.raising(), signals.stopping(signals.Stop()):
            seen.append(signal.getsignal(signal.SIGTERM))

    seen = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    with signals.raising(), signals.stopping(signals.Stop()):
        pass
    assert seen == [before[1]]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.mark.parametrize("side_by_side", [False, True])
def test_stopped_before_the_first_frame_nothing_is_replaced(side_by_side, clip, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.jsonl").write_text("old")

    bar = runs.progress_of

    def stopped(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return bar(*arguments)

    monkeypatch.setattr(runs, "progress_of", stopped)
    arguments = ["--out", str(tmp_path / "a.jsonl"), *(["--side-by-side"] if side_by_side else [])]
    monkeypatch.setattr(sys, "argv", ["maskjet", "run", str(clip), *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 143
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert (tmp_path / "a.jsonl").read_text() == "old"
    assert capsys.readouterr().err.startswith("interrupted\n0 frames")

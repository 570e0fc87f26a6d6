"""What ends the program from outside: whole outputs, exit code 128 + n, and no traceback."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from maskjet import traffic
from maskjet.cli import runs, signals
from maskjet.engine import reading
from maskjet.outputs.opening import open_sinks
from maskjet.sources.frames import Frame, open_source
from tests.detections.test_detections import some_detections
from tests.sources.clips import write_video
from tests.waiting import until

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "MASKJET_INPUT_SIZE": "80x80"}  # so that frames come fast
# A background job ignores SIGINT, and so would what it starts.
PROGRAM = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\nfrom maskjet.cli.main import main; main()"
)
FRAMES = 400


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    street = traffic.sample(seed=2, size_hw=(96, 160)).image
    with open_sinks([str(path)]) as sinks:
        for index in range(FRAMES):
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
    def are_there():
        assert process.poll() is None, process.communicate()
        return path.exists() and path.stat().st_size > 1000

    until(are_there, within_s=120)


@pytest.mark.slow
def test_ctrl_c_leaves_whole_outputs_a_summary_and_its_exit_code(long_clip, tmp_path):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl")]
    process = start("run", long_clip, "--json", *(word for out in outs for word in ("--out", out)))
    wait_for_lines(process, tmp_path / "a.partial.jsonl")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    summary = json.loads(out)
    assert (process.returncode, err) == (130, "")
    assert summary["is_interrupted"]
    assert summary["outputs"] == list(map(str, outs))
    assert 0 < summary["frames"] < FRAMES
    assert sorted(tmp_path.iterdir()) == sorted(outs)
    assert len(outs[1].read_text().splitlines()) == len(list(open_source(outs[0]))) == summary["frames"]


@pytest.mark.slow
def test_kill_leaves_what_was_there_and_parts_that_can_be_read(long_clip, tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"old")
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")]
    process = start("run", long_clip, *(word for out in outs for word in ("--out", out)))
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


@pytest.mark.parametrize(
    "module", ["typer", "torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("numpy", "cv2"))]
)
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


@pytest.mark.usefixtures("quick")
def test_a_signal_ends_waiting_for_a_source_that_fell_silent(tmp_path, monkeypatch, maskjet):
    monkeypatch.setattr(reading, "_PATIENCE_S", 0.3)
    video = write_video(tmp_path / "v.ts", frames=30, size=(96, 160), gop=1)
    lines, sent = tmp_path / "a.partial.jsonl", []

    def serve(server):
        taken, _ = server.accept()
        with taken:  # neither closed nor written to again while the command runs
            taken.recv(1000)
            taken.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: video/mp2t\r\n\r\n" + video.read_bytes())
            until(lambda: lines.exists() and lines.stat().st_size > 1000)
            time.sleep(0.3)  # the frames that came are done
            assert not has_ended.is_set()  # or the signal would end the tests
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
            has_ended.wait(60)

    has_ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=[server])
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v.ts"
        outs = ("--out", tmp_path / "a.jsonl", "--out", tmp_path / "a.mp4")
        code, out, err = maskjet("run", url, "--json", *outs)
        ended = time.monotonic()
        has_ended.set()
        thread.join(60)
    until(lambda: all(each.name != "maskjet-decode" for each in threading.enumerate()))  # which FFmpeg held
    summary = json.loads(out)
    assert (code, err, summary["is_interrupted"]) == (143, "", True)
    assert ended - sent[0] < 9  # FFmpeg itself would wait for ten seconds
    assert 0 < summary["frames"] == len((tmp_path / "a.jsonl").read_text().splitlines())
    assert len(list(open_source(tmp_path / "a.mp4"))) == summary["frames"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_first_signal_stops_a_stream_and_the_second_raises(number):
    stop = signals.Stop()
    with signals.stopping(stop):
        assert not stop.event.is_set()
        os.kill(os.getpid(), number)
        assert stop.event.wait(5)
        assert stop.number == number
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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("frames", "side_by_side"), [(0, False), (0, True), (2, False), (2, True)])
def test_what_is_stopped_is_whole_and_without_a_frame_nothing_is_replaced(
    frames, side_by_side, clip, tmp_path, monkeypatch, maskjet
):
    outs = [tmp_path / name for name in ("a.mp4", "a.jsonl", "a.json")]
    for out in outs:
        out.write_bytes(b"old")
    bar = runs.progress_of

    @contextlib.contextmanager
    def stopping(*arguments):
        """End the run before its first frame, or with one of the others."""

        def advance(_):
            assert [out.read_bytes() for out in outs] == [b"old"] * 3
            seen.append(1)
            if len(seen) == frames:
                os.kill(os.getpid(), signal.SIGTERM)

        seen = []
        if not frames:
            os.kill(os.getpid(), signal.SIGTERM)
        with bar(*arguments):
            yield advance

    monkeypatch.setattr(runs, "progress_of", stopping)
    flags = [*(flag for out in outs for flag in ("--out", out)), *(["--side-by-side"] if side_by_side else [])]
    code, _, err = maskjet("run", clip, *flags)
    assert code == 143
    assert sorted(tmp_path.iterdir()) == sorted(outs)
    assert err.startswith(f"interrupted\n{frames} frames")
    if frames:
        assert len(list(open_source(outs[0]))) == len(outs[1].read_text().splitlines()) == frames
        assert len(json.loads(outs[2].read_text())["images"]) == frames
    else:
        assert [out.read_bytes() for out in outs] == [b"old"] * 3

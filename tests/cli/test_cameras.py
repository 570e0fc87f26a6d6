"""`maskjet run` on a camera that is killed: it goes on when the camera comes back, and ends whole while it is away."""

import json
import signal
import threading

import pytest
from PIL import Image

from maskjet import traffic
from maskjet.sources.frames import open_source
from tests.cli.test_signals import start, wait_for_lines
from tests.sources.rtsp import RtspCamera
from tests.waiting import until


def count_lines(path):
    return len(path.read_text().splitlines())


@pytest.fixture
def camera():
    with RtspCamera() as camera:
        yield camera


class Punctual(RtspCamera):
    """A camera that says what it has once another one is asked, too."""

    both = threading.Barrier(2)

    def _answer(self, method, rest):
        if method == "DESCRIBE":
            self.both.wait(5)
        return super()._answer(method, rest)


@pytest.mark.slow
def test_cameras_are_opened_at_once():
    with Punctual() as one, Punctual() as other:
        process = start("run", one.url, other.url, "--drop-late", "-o", "-")
        seen = set()
        while seen != {one.url, other.url}:
            seen.add(json.loads(process.stdout.readline())["source"])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 143


@pytest.mark.slow
def test_it_goes_on_and_ends_whole_while_the_camera_is_away(camera, tmp_path):
    secret = camera.url.replace("//", "//user:hunter2@") + "?key=hunter2"
    outs = [tmp_path / name for name in ("a.jsonl", "a.mp4")]
    process = start("run", secret, "--drop-late", "--json", *(word for out in outs for word in ("-o", out)))
    lines = tmp_path / "a.partial.jsonl"
    wait_for_lines(process, lines)
    camera.kill()
    told = [process.stderr.readline()]  # that it broke off
    camera.come_back()
    before = count_lines(lines)
    until(lambda: count_lines(lines) > before + 3)
    camera.kill()
    told.append(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "")
    shown = f"{camera.url}?key=…"
    assert all(line.startswith(f"maskjet: '{shown}' broke off and is opened again: ") for line in told)

    summary = json.loads(out)
    rows = [json.loads(line) for line in outs[0].read_text().splitlines()]
    assert (summary["is_interrupted"], summary["outputs"]) == (True, list(map(str, outs)))
    assert summary["frames"] == len(rows) == len(list(open_source(outs[1])))
    (source,) = summary["sources"]
    assert (source["source"], source["state"], source["is_live"]) == (shown, "stopped", True)
    reading = source["reading"]
    assert (reading["connected"], reading["reconnects"]) == (False, 1)
    assert reading["error"]
    assert summary["dropped"] == reading["drops"]
    assert sum("missing as it was not connected" in text for text in summary["bad_frames"]) == 1
    assert "hunter" not in out + "".join(told) + outs[0].read_text()


@pytest.mark.usefixtures("quick")
def test_it_ends_when_the_camera_stays_away(camera, tmp_path, maskjet):
    out, lines = tmp_path / "a.jsonl", tmp_path / "a.partial.jsonl"

    def kill():
        until(lambda: lines.exists() and lines.stat().st_size)
        camera.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    code, _, err = maskjet("run", camera.url, "--reconnect-for", "0.2", "-o", out)
    thread.join(60)
    assert code == 3
    *_, last = err.splitlines()
    message = f"maskjet: '{camera.url}' broke off and could not be opened again for 0.2 s: Connection refused."
    assert last.startswith(message)
    assert f"\n  {camera.url}: failed after " in err
    assert not out.exists()
    assert count_lines(lines) > 0


@pytest.mark.usefixtures("quick")
def test_results_come_within_the_promised_time(camera, tmp_path, maskjet):
    out = tmp_path / "a.jsonl"
    name = camera.url.rpartition("/")[2]
    promise = ["--max-latency", "30s", "--priority", f"127_0_0_1_{name}=2", "--when-full", "refuse"]
    code, told, err = maskjet("run", camera.url, *promise, "--limit", "8", "--json", "-o", out)
    assert (code, err) == (0, "")
    summary = json.loads(told)
    assert summary["capacity"] >= 0
    assert 0 < summary["sources"][0]["reading"]["latency_s"] < 30
    assert summary["frames"] + summary["dropped"] == 8
    assert count_lines(out) == summary["frames"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-latency 60", "--max-latency must be a time, as 60ms or 0.1s, got '60'"),
        ("--max-latency 0ms", "--max-latency must be a number of seconds above 0, got 0.0"),
        (
            "--max-latency 60ms --priority gate=2",
            r"--priority must be NAME=N, with N from 1 and a name of a, got 'gate=2'",
        ),
        ("--max-latency 60ms --priority a=0", "--priority must be NAME=N, with N from 1 and a name of a, got 'a=0'"),
        ("--priority a=2", "--priority must go with --max-latency, got it alone"),
        ("--when-full slower", "--when-full must go with --max-latency, got it alone"),
        ("--max-latency 60ms --tile 64", "--max-latency must be None with tile, detect or whole_batches"),
        ("--max-latency 60ms", "--max-latency must be None for 'a.png': it is a file, whose frames wait"),
        ("b.mp4 --max-latency 60ms", "--max-latency must be None for 'a.png': it is a file, whose frames wait"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_promises_that_can_not_be_kept_are_refused(options, message, tmp_path, maskjet, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("a.png")
    traffic.write_video(tmp_path / "b.mp4", size_hw=(32, 32), frames=1)
    code, _, err = maskjet(f"run a.png {options} -o a.jsonl")
    assert code == 2
    assert message in err

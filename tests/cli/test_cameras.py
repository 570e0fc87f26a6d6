"""`maskjet run` on a camera that is killed: it goes on when the camera comes back, and ends whole while it is away."""

import json
import signal
import threading

import pytest

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

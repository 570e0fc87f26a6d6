"""Cameras that are killed, come back, fall silent or block, on loopback; all others go on."""

import http.server
import itertools
import signal
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import av
import cv2
import numpy as np
import pytest

from maskjet.engine.reading import Readers
from maskjet.errors import FrameError, SourceError
from maskjet.outputs.opening import open_sinks
from maskjet.sources import containers, live, videos
from maskjet.sources.decoding import ON_CPU
from maskjet.sources.frames import open_source
from maskjet.sources.selection import EVERYTHING
from maskjet.sources.source import Frame, Source
from maskjet.sources.videos import VideoSource
from tests.detections.test_detections import some_detections
from tests.sources.clips import picture
from tests.sources.rtsp import RtspCamera
from tests.waiting import until

PATIENCE_S = 60  # far more than anything here takes


class Camera(VideoSource):
    """A camera whose driver falls silent after some frames, in a way that FFmpeg can't interrupt."""

    is_live, frames = True, 2

    def __init__(self, url, gate):
        Source.__init__(self, url)
        self._video = SimpleNamespace(url=url, decoding=ON_CPU, close=lambda: None)
        self._selection, self._is_reading, self._gate = EVERYTHING, threading.Lock(), gate
        self.read_first()

    def _decode_next(self):
        if (index := self.frames_seen) == self.frames:
            assert self._gate.wait(PATIENCE_S)
            return None
        self.frames_seen += 1
        return Frame(index, index / 10, np.zeros((2, 2, 3), np.uint8), self.name, f"{self.name}#{index}")


class TestBlockingCameras:
    @pytest.fixture(autouse=True)
    def gate(self, monkeypatch):
        gate = threading.Event()
        monkeypatch.setattr(videos, "_open_at", lambda url, *_: Camera(url, gate))
        yield gate
        gate.set()

    def test_silence_is_noticed(self, monkeypatch):
        monkeypatch.setattr(containers, "READ_TIMEOUT_S", 0.2)
        monkeypatch.setattr(live, "_FIRST_WAIT_S", 0.01)
        with open_source(7) as source:
            frames = iter(source)
            assert [next(frames).index for _ in range(2)] == [0, 1]
            assert next(frames).index >= 2
            assert source.state.reconnects == 1

    def test_an_opening_that_blocks(self, gate, monkeypatch):
        monkeypatch.setattr(containers, "READ_TIMEOUT_S", 0.2)
        monkeypatch.setattr(videos, "_open_at", lambda *_: gate.wait(PATIENCE_S))
        with pytest.raises(SourceError, match="'/dev/video7' can't be read: nothing came for 0 s"):
            open_source("7")

    def test_closing_does_not_wait_for_it(self, gate, monkeypatch):
        monkeypatch.setattr("maskjet.engine.reading._PATIENCE_S", 0.1)
        readers = Readers(["/dev/video7"], room=4)
        assert [readers.take(1, waits=True)[0].index for _ in range(2)] == [0, 1]
        readers.close()
        assert not gate.is_set()


@pytest.fixture
def quick(monkeypatch):
    """Short waits."""
    monkeypatch.setattr(live, "_FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(live, "_LONGEST_WAIT_S", 0.2)


def check_gaps(frames, source):
    """Check that index and time go on; returns how many gaps are told before the last frame."""
    for before, after in itertools.pairwise(frames):
        assert after.index == before.index + 1
        assert before.time_s is None or after.time_s > before.time_s  # FFmpeg gives the very first none
    return sum("not connected" in why for index, why in source.bad_frames if index <= frames[-1].index)


@contextmanager
def when(condition, do):
    """Do something in another thread once a condition holds."""
    thread = threading.Thread(target=lambda: (until(condition), do()))
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


class Jpegs(http.server.BaseHTTPRequestHandler):
    """A camera that sends JPEGs in one answer, and pauses after half of them."""

    gate = threading.Event()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        self.end_headers()
        for number in range(16):
            assert number != 8 or self.gate.wait(PATIENCE_S)
            image = cv2.imencode(".jpg", picture(seed=number))[1].tobytes()
            self.wfile.write(b"--next\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image))
            self.wfile.write(image + b"\r\n")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("reconnect_for", [0, PATIENCE_S])
def test_jpegs_have_the_time_at_which_they_come(reconnect_for):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Jpegs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        Jpegs.gate.clear()
        with open_source(url, reconnect_for=reconnect_for, limit=20 if reconnect_for else 16) as source:
            frames = iter(source)
            times = [next(frames).time_s for _ in range(4)]
            time.sleep(0.5)  # FFmpeg would say that six frames take 0.24 s
            Jpegs.gate.set()
            times += [frame.time_s for frame in frames]
        server.shutdown()
    assert (source.fps, len(times)) == (None, 20 if reconnect_for else 16)
    assert times[9] - times[3] >= 0.5
    assert times == sorted(set(times))


@pytest.mark.usefixtures("quick")
class TestRtsp:
    @pytest.mark.slow
    def test_a_server_that_is_killed_and_comes_back(self, caplog):
        with RtspCamera() as camera, open_source(camera.url) as source:
            assert source.is_live
            frames = iter(source)
            seen = [next(frames) for _ in range(10)]
            for count in (1, 2):
                camera.kill()
                with when(lambda: source.state.error, camera.come_back):
                    while source.state.reconnects < count:
                        seen.append(next(frames))
                seen += [next(frames) for _ in range(10)]
            assert check_gaps(seen, source) == source.state.reconnects
        assert [frame.index for frame in seen[:10]] == list(range(10))
        assert "broke off and is opened again: " in caplog.text

    @pytest.mark.slow
    @pytest.mark.parametrize("has_sound", [True, False])
    def test_silence_is_noticed_although_the_sound_goes_on(self, has_sound, monkeypatch, caplog):
        monkeypatch.setattr(containers, "READ_TIMEOUT_S", 1.0)
        with RtspCamera(has_sound=has_sound) as camera, open_source(camera.url) as source:
            frames = iter(source)
            seen = [next(frames) for _ in range(5)]
            camera.is_silent = True
            with when(lambda: source.state.error, lambda: setattr(camera, "is_silent", False)):
                while not source.state.reconnects:
                    seen.append(next(frames))
            seen += [next(frames) for _ in range(5)]
        assert check_gaps(seen, source) >= 1
        assert "broke off and is opened again: nothing came for 1 s" in caplog.text

    def test_without_patience_it_ends(self):
        with RtspCamera() as camera, open_source(camera.url, reconnect_for=0) as source:
            frames = iter(source)
            next(frames)
            camera.kill()
            try:
                list(frames)
            except FrameError as error:
                assert "broke off" in str(error)  # noqa: PT017 - most servers end the stream in order
        assert camera.plays == 1

    @pytest.mark.slow
    def test_others_never_wait(self):
        """All frames of another source come while the camera is away."""
        away = threading.Event()

        def others():
            yield np.zeros((4, 4, 3), np.uint8)
            assert away.wait(PATIENCE_S)
            for _ in range(40):
                yield np.zeros((4, 4, 3), np.uint8)

        with RtspCamera() as camera:
            source = open_source(camera.url)
            readers = Readers([source, others()], room=2)
            seen = {0: [], 1: []}

            def take_until(condition):
                def is_done():
                    while frames := readers.take(2, waits=False):
                        for frame in frames:
                            seen[frame.stream].append(frame)
                    return condition()

                until(is_done)

            take_until(lambda: len(seen[0]) >= 5)
            camera.kill()
            take_until(lambda: source.state.error)
            away.set()
            take_until(lambda: len(seen[1]) == 41)
            assert not source.state.connected
            camera.come_back()
            before = len(seen[0])
            take_until(lambda: len(seen[0]) >= before + 5)
            readers.close()
        assert [frame.index for frame in seen[1]] == list(range(41))
        assert check_gaps(seen[0], source) >= 1

    def test_drops_are_told_and_closing_while_it_is_away(self, monkeypatch):
        with RtspCamera() as camera:
            source = open_source(camera.url)
            readers = Readers([source], room=1, drops_late=True)
            until(lambda: source.state.drops > 5)
            monkeypatch.setattr(live, "_FIRST_WAIT_S", 1000.0)
            before = set(threading.enumerate())
            camera.kill()
            until(lambda: source.state.error)
            assert source.state.drops == readers.dropped
            readers.close()
            until(lambda: before > set(threading.enumerate()))  # the reading one has ended

    def test_ctrl_c_ends_reading(self, monkeypatch):
        monkeypatch.setattr(containers, "READ_TIMEOUT_S", 2 * PATIENCE_S)
        with RtspCamera() as camera, open_source(camera.url) as source:
            camera.is_silent = True
            interrupt = threading.Timer(0.5, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
            start = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                (interrupt.start(), list(source))
            interrupt.join()
        assert time.monotonic() - start < PATIENCE_S

    def test_annotated_video_goes_on_with_another_size_and_codec(self, tmp_path):
        path, frames = str(tmp_path / "a.mp4"), []
        with RtspCamera() as camera, open_source(camera.url) as source, open_sinks([path]) as sinks:
            coming = iter(source)
            next(coming)  # which has no time
            for frame in coming:
                sinks.write(frame, some_detections(0, size=frame.image.shape[:2]))
                frames.append(frame)
                if len(frames) == 5:
                    camera.kill()
                    camera.come_back(size_hw=(96, 128), codec="mpeg4")
                if source.state.reconnects and len(frames) >= 15:
                    break
            assert {frame.image.shape for frame in frames} == {(64, 96, 3), (96, 128, 3)}
            assert source.size_hw == (96, 128)
        with av.open(path) as container:
            times = [float(picture.pts * picture.time_base) for picture in container.decode(video=0)]
        assert times == pytest.approx([frame.time_s - frames[0].time_s for frame in frames], abs=1e-3)

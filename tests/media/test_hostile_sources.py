"""Sources that are shared, silent, special files, lying or naming others: refused by name, never waited for in vain."""

import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import av
import numpy as np
import pytest
import torch

import maskjet
from maskjet import limits, process
from maskjet.engine.reading import Readers
from maskjet.errors import InputError, MaskjetError, SourceError, UnsupportedError
from maskjet.media.frames import ListSource, open_source
from tests.media.test_frames import picture, write_image, write_video
from tests.media.test_lost_frames import FORMATS, write


@pytest.fixture
def video(tmp_path):
    return write_video(tmp_path / "v.mp4", frames=30)


@pytest.fixture
def silent_server():
    """The port of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


class TestOneReader:
    def test_a_source_given_twice(self, video):
        message = r"source must be given once, '.*v\.mp4' is given twice: open it twice"
        with open_source(video) as source, maskjet.load("demo") as model, pytest.raises(InputError, match=message):
            model.stream([source, source])

    def test_two_streams_over_one_open_source(self, video):
        source = open_source(video)
        first, second = Readers([source], room=1), Readers([source], room=1)
        frames = [len(readers.take(1, waits=True)) for readers in (first, second) for _ in range(31)]
        assert sum(frames) == 30  # of the one that came first
        (refused,) = [lane.error for readers in (first, second) for lane in readers._lanes if lane.error]
        assert "source must be read once" in str(refused)
        first.close()
        second.close()

    def test_reading_again_is_no_empty_source(self, video):
        with open_source(video) as source:
            list(source)
            with pytest.raises(InputError, match=r"source must be read once, '.*v\.mp4' is or was read already"):
                list(source)

    def test_a_list_does_not_close_a_source_that_another_reads(self, video):
        source = open_source(video)
        frames = iter(source)
        with pytest.raises(InputError, match="source must be read once"):
            list(ListSource([source], "list"))
        assert len(list(frames)) == 30

    def test_closing_while_another_thread_reads(self, video):
        for _ in range(20):
            source, seen = open_source(video), []
            reader = threading.Thread(target=lambda source=source, seen=seen: seen.extend(source))
            reader.start()
            source.close()
            reader.join(10)
            assert not reader.is_alive()
            assert len(seen) <= 30


class TestSpecialFiles:
    @pytest.mark.parametrize("name", ["pipe.mp4", "pipe.png", "pipe"])
    def test_a_fifo(self, name, tmp_path):
        os.mkfifo(tmp_path / name)
        with pytest.raises(
            SourceError, match=rf"{name}' is a FIFO, socket or device: save what comes from it to a file"
        ):
            open_source(tmp_path / name)

    def test_a_socket_and_a_device(self, tmp_path):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "s.mp4"))
            for path in (tmp_path / "s.mp4", "/dev/zero"):
                with pytest.raises(SourceError, match="is a FIFO, socket or device"):
                    open_source(path)

    def test_folders_and_globs_skip_them(self, tmp_path):
        write_image(tmp_path / "a.png", picture())
        os.mkfifo(tmp_path / "b.png")
        for source in (open_source(tmp_path), open_source(f"{tmp_path}/*.png")):
            assert (len(list(source)), source.length, source.bad_frames) == (1, 1, [])

    def test_a_file_that_is_gone_when_its_turn_comes_is_a_bad_frame(self, tmp_path):
        for name in ("a.png", "b.png"):
            write_image(tmp_path / name, picture())
        source = open_source(tmp_path)
        (tmp_path / "b.png").unlink()
        assert len(list(source)) == 1
        assert "b.png" in source.bad_frames[0][1]

    @pytest.mark.parametrize("names", [("a.png", "no.png"), ("v.mp4", "no.mp4"), ("a.png", "no.mp4")])
    @pytest.mark.usefixtures("video")
    def test_a_named_file_that_is_missing_is_an_error_before_work_starts(self, names, tmp_path):
        write_image(tmp_path / "a.png", picture())
        paths = [str(tmp_path / name) for name in names]
        with pytest.raises(SourceError, match=r"source must exist, '.*no\.(png|mp4)' does not"):
            open_source(paths)
        with pytest.raises(SourceError, match=r"source must exist, '.*no\.(png|mp4)' does not"):
            list(maskjet.load("demo").stream(paths))


class TestNames:
    @pytest.mark.parametrize("name", ["2024-01-01T12:00:00.mp4", "concat:a|b.mp4", "http:x.mp4", "100%d.mp4"])
    def test_a_file_is_a_file_whatever_its_name(self, name, tmp_path, monkeypatch):
        write_video(tmp_path / "v.mp4", frames=3).rename(tmp_path / name)
        monkeypatch.chdir(tmp_path)
        assert len(list(open_source(name))) == 3
        assert len(list(open_source(f"file://{tmp_path / name}"))) == 3

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{video}\n#EXT-X-ENDLIST\n"),
            ("a.ffconcat", "ffconcat version 1.0\nfile {video}\n"),
            (
                "a.sdp",
                "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 26\n",
            ),
            ("a.m3u", "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/x.ts\n#EXT-X-ENDLIST\n"),
        ],
    )
    @pytest.mark.usefixtures("video")
    def test_playlists_read_nothing(self, name, text, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            (tmp_path / name).write_text(text.format(video="v.mp4", port=server.getsockname()[1]))
            with pytest.raises(SourceError, match=rf"{name}' can't be read"):
                open_source(tmp_path / name)
            with pytest.raises(TimeoutError):
                server.accept()

    def test_urls_read_no_files(self, video):
        for url in (f"subfile://{video}", f"concat://{video}", f"crypto+file://{video}", f"async://{video}"):
            with pytest.raises(SourceError, match="can't be read"):
                open_source(url)


class TestLyingFiles:
    def test_a_title_in_latin_1(self, tmp_path):
        with av.open(str(tmp_path / "v.avi"), "w") as container:
            container.metadata["title"] = "Strasse"
            stream = container.add_stream("mpeg4", rate=10)
            stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(), format="rgb24")))
            container.mux(stream.encode(None))
        data = (tmp_path / "v.avi").read_bytes()
        (tmp_path / "v.avi").write_bytes(data.replace(b"Strasse", "Straße!".encode("latin-1")))
        assert len(list(open_source(tmp_path / "v.avi"))) == 1

    def test_an_unknown_codec(self, video):
        video.write_bytes(video.read_bytes().replace(b"avc1", b"xxxx"))
        with pytest.raises(SourceError, match=r"v\.mp4' is of an unknown one|v\.mp4' can't be read"):
            open_source(video)

    @pytest.mark.parametrize("text", [b"12:34:56:78.901", b"no duration at!", b"-1:-1:nan      "])
    def test_a_duration_that_is_none(self, text, tmp_path):
        data = write_video(tmp_path / "v.mkv", frames=3).read_bytes()
        start = data.index(b"DURATION") + data[data.index(b"DURATION") :].index(b"00:00:")
        (tmp_path / "v.mkv").write_bytes(data[:start] + text + data[start + len(text) :])
        assert len(list(open_source(tmp_path / "v.mkv"))) == 3

    def test_frames_larger_than_the_limit(self, video, monkeypatch):
        monkeypatch.setattr(limits, "image_pixels", 1000)
        with pytest.raises(SourceError, match=r"v\.mp4' (has 3,072 pixels, the limit is 1,000|contains none|can't be)"):
            open_source(video)

    @pytest.mark.parametrize("kind", FORMATS)
    def test_a_damaged_file_is_a_video_or_an_error_of_ours(self, kind, tmp_path):
        data = write(tmp_path / f"v.{kind}", kind, 30).read_bytes()
        for seed in range(25):
            rng, damaged = random.Random(seed), bytearray(data)
            for _ in range(rng.choice([1, 5, 50])):
                damaged[rng.randrange(rng.choice([1024, len(data)]))] = rng.randrange(256)
            (tmp_path / f"d.{kind}").write_bytes(damaged)
            try:
                with open_source(tmp_path / f"d.{kind}") as source:
                    assert all(frame.image.dtype == np.uint8 for frame in source)
            except MaskjetError as error:
                assert f"d.{kind}" in str(error)  # noqa: PT017 - most are videos


class TestSilence:
    def test_a_time_out_says_so(self, silent_server, monkeypatch):
        monkeypatch.setattr("maskjet.media.containers._OPEN_TIMEOUT_S", 0.3)
        with pytest.raises(SourceError, match=r"can't be read: nothing came for \d+ s"):
            open_source(f"http://127.0.0.1:{silent_server}/v.mp4")

    def test_a_stream_ends_while_no_frame_comes(self):
        gate, stop = threading.Event(), threading.Event()

        def silent():
            yield picture()
            gate.wait(20)

        stream = maskjet.load("demo").stream(silent(), stop=stop)
        next(stream)
        threading.Timer(0.3, stop.set).start()
        before = time.monotonic()
        assert list(stream) == []
        assert time.monotonic() - before < 5
        gate.set()

    @pytest.mark.parametrize(
        "code",
        [
            "model = maskjet.load('demo'); print('ready', flush=True); list(model.stream(sys.argv[1]))",
            "from maskjet.media.frames import open_source; print('ready', flush=True); open_source(sys.argv[1])",
        ],
    )
    def test_ctrl_c_ends_it(self, code, silent_server):
        script = f"import sys, maskjet; {code}"
        running = subprocess.Popen(
            [sys.executable, "-c", script, f"http://127.0.0.1:{silent_server}/v.mp4"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert running.stdout.readline() == "ready\n"
            time.sleep(0.7)
            before = time.monotonic()
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=60)
        finally:
            running.kill()
        assert err.rstrip().endswith("KeyboardInterrupt")
        assert time.monotonic() - before < 6


def _load(answers):
    try:
        maskjet.load("demo").predict(picture())
        answers.put("ran")
    except MaskjetError as error:
        answers.put(f"{type(error).__name__}: {error}")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
class TestForks:
    def answer(self):
        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        child = context.Process(target=_load, args=(answers,))
        child.start()
        try:
            return answers.get(timeout=60)
        finally:
            child.kill()
            child.join()

    @pytest.mark.usefixtures("two_threads")
    def test_a_fork_of_pytorchs_threads_is_refused(self, monkeypatch):
        monkeypatch.setattr(process, "_PATIENCE_S", 1.0)
        torch.zeros(2**22).add_(1)
        assert "UnsupportedError: This process was forked from one in which PyTorch had run" in self.answer()
        assert "start processes with multiprocessing's 'spawn'" in self.answer()

    def test_one_thread_is_enough(self, monkeypatch):
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        monkeypatch.setattr(process, "_is_fork", True)
        process.check_fork()

    @pytest.mark.usefixtures("two_threads")
    def test_threads_that_answer(self, monkeypatch):
        monkeypatch.setattr(process, "_is_fork", True)
        monkeypatch.setattr(process, "_has_threads", lambda: True)
        process.check_fork()
        assert not process._is_fork

    @pytest.mark.usefixtures("two_threads")
    def test_threads_that_do_not(self, monkeypatch):
        monkeypatch.setattr(process, "_is_fork", True)
        monkeypatch.setattr(process, "_has_threads", lambda: False)
        with pytest.raises(UnsupportedError, match="start processes with multiprocessing's 'spawn'"):
            maskjet.load("demo")

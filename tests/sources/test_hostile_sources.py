"""Sources that are shared, silent, special files, lying or naming others: refused by name, never waited for in vain."""

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch

import maskjet
from maskjet import limits
from maskjet.engine.reading import Readers
from maskjet.errors import InputError, MaskjetError, SourceError, UnsupportedError
from maskjet.host import process
from maskjet.sources import containers, opened_video
from maskjet.sources.decoding import Decoding
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import ListSource, open_source
from maskjet.sources.opened_video import open_video
from tests.engine.test_pictures import model
from tests.sources.clips import encode, picture, read, write_image, write_video
from tests.sources.test_lost_frames import FORMATS, mutate, write

PATIENCE_S = 60  # far more than anything here takes
pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.fixture
def video(in_folder):
    return write_video(in_folder / "v.mp4", frames=30)


class TestOneReader:
    def test_two_streams_over_one_open_source(self, video):
        source = open_source(video)
        both = Readers([source], room=1), Readers([source], room=1)
        frames = [len(readers.take(1, waits=True)) for readers in both for _ in range(31)]
        assert sum(frames) == 30  # of the one that came first
        (refused,) = [queue.error for readers in both for queue in readers._queues if queue.error]
        assert "source must be read once" in str(refused)
        for readers in both:
            readers.close()

    def test_reading_again_is_no_empty_source_and_a_list_does_not_close_one_that_another_reads(self, video):
        source = open_source(video)
        frames = iter(source)
        with pytest.raises(InputError, match="source must be read once"):
            list(ListSource([source], "list"))
        assert len(list(frames)) == 30
        with pytest.raises(InputError, match=r"source must be read once, 'v\.mp4' is or was read already"):
            list(source)

    def test_closing_while_another_thread_reads(self, video):
        for _ in range(8):
            source, seen = open_source(video), []
            reader = threading.Thread(target=lambda source=source, seen=seen: seen.extend(source))
            reader.start()
            source.close()
            reader.join(PATIENCE_S)
            assert not reader.is_alive()
            assert len(seen) <= 30


class TestSpecialFiles:
    @pytest.mark.parametrize("name", ["pipe.mp4", "pipe.png", "pipe", "s.mp4", "/dev/zero"])
    def test_a_fifo_socket_or_device(self, name):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("s.mp4")
            if "pipe" in name:
                os.mkfifo(name)
            with pytest.raises(SourceError, match=rf"{name}' is a FIFO, socket or device: save what comes from it to"):
                open_source(name)

    def test_folders_and_globs_skip_them_and_a_file_that_is_gone_when_its_turn_comes_is_a_bad_frame(self):
        write_image("a.png", picture())
        os.mkfifo("b.png")
        for source, _ in (read("."), read("*.png")):
            assert (source.frames_seen, source.length, source.bad_frames) == (1, 1, [])
        write_image("c.png", picture())
        source = open_source(".")
        Path("c.png").unlink()
        assert len(list(source)) == 1
        assert "c.png" in source.bad_frames[0][1]

    @pytest.mark.parametrize("names", [("a.png", "no.png"), ("v.mp4", "no.mp4"), ("a.png", "no.mp4")])
    @pytest.mark.usefixtures("video")
    def test_a_named_file_that_is_missing_is_an_error_before_work_starts(self, names):
        write_image("a.png", picture())
        for open_them in (open_source, model().stream):
            with pytest.raises(SourceError, match=r"source must exist, 'no\.(png|mp4)' does not"):
                list(open_them(names))


class TestNames:
    @pytest.mark.parametrize(
        "name", ["2024-01-01T12:00:00.mp4", "concat:a|b.mp4", "http:x.mp4", "100%d.mp4", "é %41#?.mp4", "\udcff.mp4"]
    )
    def test_a_file_is_a_file_whatever_its_name(self, name, video):
        url = video.rename(name).absolute().as_uri()
        for given in (name, url, url.replace("file://", "FILE://LocalHost"), [url]):
            with open_source(given, limit=2) as source:
                assert [frame.index for frame in source] == [0, 1]
        (found,) = expand_sources(url)
        assert found.name == unquote(url.removeprefix("file://"), errors="surrogateescape")
        assert list(found.files) == [Path(found.name)]

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("file://tmp/v.mp4", "source must be a file of this machine, 'file://tmp/v.mp4' names 'tmp'"),
            ("file:///v%00.mp4", "source must be readable, '/v.*mp4' is not"),
        ],
    )
    def test_a_url_of_another_machines_file_or_of_none(self, url, message):
        for open_it in (open_source, expand_sources):
            with pytest.raises(SourceError, match=message):
                open_it(url)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nv.mp4\n#EXT-X-ENDLIST\n"),
            ("a.ffconcat", "ffconcat version 1.0\nfile v.mp4\n"),
            ("a.sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 26\n"),
            ("a.m3u", "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nhttp://127.0.0.1:{port}/x.ts\n#EXT-X-ENDLIST\n"),
        ],
    )
    @pytest.mark.usefixtures("video")
    def test_playlists_read_nothing(self, name, text):
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.05)
            Path(name).write_text(text.format(port=server.getsockname()[1]))
            with pytest.raises(SourceError, match=rf"{name}' can't be read"):
                open_source(name)
            with pytest.raises(TimeoutError):
                server.accept()

    def test_urls_read_no_files(self, video):
        for scheme in ("subfile", "concat", "crypto+file", "async"):
            with pytest.raises(SourceError, match="can't be read"):
                open_source(f"{scheme}://{video.absolute()}")


class TestLyingFiles:
    def test_a_title_in_latin_1(self):
        def name(stream):
            stream.container.metadata["title"] = "Strasse"

        path = encode(Path("v.avi"), [picture()], "mpeg4", prepare=name)
        data = path.read_bytes()
        assert b"Strasse" in data
        path.write_bytes(data.replace(b"Strasse", "Straße!".encode("latin-1")))
        assert len(list(open_source(path))) == 1

    def test_an_unknown_codec_and_frames_larger_than_the_limit(self, video, monkeypatch):
        Path("x.mp4").write_bytes(video.read_bytes().replace(b"avc1", b"xxxx"))
        with pytest.raises(SourceError, match=r"x\.mp4' is of an unknown one|x\.mp4' can't be read"):
            open_source("x.mp4")
        monkeypatch.setattr(limits, "image_pixels", 1000)
        with pytest.raises(SourceError, match=r"v\.mp4' (has 3,072 pixels, the limit is 1,000|contains none|can't be)"):
            open_source(video)

    @pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 12), marks=pytest.mark.slow)], ids=str)
    @pytest.mark.parametrize("kind", FORMATS)
    def test_a_damaged_file_is_a_video_or_an_error_of_ours(self, kind, seeds, tmp_path):
        data, path = write(tmp_path, kind, 15).read_bytes(), Path(f"d.{kind}")
        for seed in seeds:
            rng = random.Random(seed)
            path.write_bytes(mutate(data[:1024], rng) + data[1024:] if seed % 2 else mutate(data, rng))
            try:
                assert all(frame.image.dtype == np.uint8 for frame in read(path)[1])
            except MaskjetError as error:
                assert f"d.{kind}" in str(error)  # noqa: PT017 - most are videos


class TestSilence:
    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_a_time_out_says_so_and_is_waited_for_once(self, device, monkeypatch):
        monkeypatch.setattr(containers, "_OPEN_TIMEOUT_S", 0.2)
        monkeypatch.setattr(Decoding, "accelerated", lambda _: nullcontext())
        monkeypatch.setattr(opened_video, "PictureConverter", lambda _: None)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v.mp4"
            with pytest.raises(SourceError, match=r"can't be read: nothing came for \d+ s"):
                open_video(url, decoding=Decoding(device))
            silent.setblocking(False)
            silent.accept()[0].close()
            with pytest.raises(BlockingIOError):
                silent.accept()

    @pytest.mark.parametrize("read", [open_source, lambda url: list(model().stream(url))])
    def test_ctrl_c_ends_it(self, read, monkeypatch):
        monkeypatch.setattr(containers, "_OPEN_TIMEOUT_S", 2 * PATIENCE_S)
        monkeypatch.setattr("maskjet.engine.reading._PATIENCE_S", 0.1)
        is_over = threading.Event()

        def interrupt(main):
            with server.accept()[0]:
                if not is_over.wait(0.2):
                    signal.pthread_kill(main, signal.SIGINT)
                is_over.wait(PATIENCE_S)

        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=interrupt, args=[threading.get_ident()]).start()
            start = time.monotonic()
            try:
                with pytest.raises(KeyboardInterrupt):
                    read(f"http://127.0.0.1:{server.getsockname()[1]}/v.mp4")
            finally:
                is_over.set()
        assert time.monotonic() - start < PATIENCE_S


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
        monkeypatch.setattr(process, "_PATIENCE_S", 1)
        torch.zeros(2**22).add_(1)
        answer = self.answer()
        assert "UnsupportedError: This process was forked from one in which PyTorch had run" in answer
        assert "start processes with multiprocessing's 'spawn'" in answer

    @pytest.mark.usefixtures("two_threads")
    def test_threads_that_do_not_answer_and_threads_that_do(self, monkeypatch):
        monkeypatch.setattr(process, "_process", 0)
        monkeypatch.setattr(process, "_has_threads", lambda: False)
        with pytest.raises(UnsupportedError, match="start processes with multiprocessing's 'spawn'"):
            maskjet.load("demo")
        with monkeypatch.context() as context:
            context.setattr(torch, "get_num_threads", lambda: 1)  # which is enough
            process.check_fork()
        monkeypatch.setattr(process, "_has_threads", lambda: True)
        process.check_fork()
        assert process._process == os.getpid()

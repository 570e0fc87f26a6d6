"""Annotated video made by another process: the same file, the same errors, and nothing lost when a process ends."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from unittest.mock import Mock

import av
import pytest
import torch

from maskjet.drawing import DrawStyle, Redaction
from maskjet.errors import DeviceError, InputError, OutputError
from maskjet.outputs import drawing_process
from maskjet.outputs.drawing_process import VideoProcess
from maskjet.outputs.opening import open_sinks
from maskjet.outputs.video import AnnotatedVideo
from maskjet.sources.frames import open_source
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import frames, images, names

pytestmark = pytest.mark.usefixtures("in_folder")
_STYLE = DrawStyle()


@pytest.fixture(scope="module", autouse=True)
def _ending():
    yield
    drawing_process.end_idle()
    assert drawing_process._idle == []


def make(kind, out, items, *, source=None, style=_STYLE):
    return fill(kind(str(out), source=source, style=style, threads=2), items)


def fill(sink, items):
    with sink:
        for index, frame in enumerate(items):
            sink.write(frame, some_detections(index % 4, size=frame.size_hw))
    return sink


@pytest.mark.parametrize("style", [DrawStyle(trails=True), Redaction(replace_with="blur")], ids=["drawn", "redacted"])
def test_a_process_makes_the_same_video(style):
    def growing():
        small, large = frames(40), frames(40, size=(300, 500))
        for index in range(40):  # more than three times as many as the memory holds
            yield replace(next(large if 5 <= index < 12 else small), index=index, time_s=index / 10)

    sinks = [make(kind, f"{kind.__name__}.mp4", growing(), style=style) for kind in (AnnotatedVideo, VideoProcess)]
    assert [sink.redacts for sink in sinks] == 2 * [isinstance(style, Redaction)]
    assert [sink.paths for sink in sinks] == [("AnnotatedVideo.mp4",), ("VideoProcess.mp4",)]
    assert Path("AnnotatedVideo.mp4").read_bytes() == Path("VideoProcess.mp4").read_bytes()


def test_its_video_has_the_sources_sound_and_colours(clips, caplog):
    with open_source(clips("b3.mp4")) as source:
        make(VideoProcess, "out.webm", source, source=source)
    assert "audio of 'out.webm' is left out: webm takes no" in caplog.text
    caplog.clear()
    with open_source(clips("b3.mp4")) as source, caplog.at_level("ERROR", "maskjet"):
        make(VideoProcess, "out.webm", source, source=source)
    assert not caplog.text
    for kind in (AnnotatedVideo, VideoProcess):
        with open_source(clips("b3.mp4")) as source:
            make(kind, f"{kind.__name__}.mkv", source, source=source)
    one, other = (open_source(f"{kind.__name__}.mkv") for kind in (AnnotatedVideo, VideoProcess))
    assert all((first.image == second.image).all() for first, second in zip(one, other, strict=True))
    assert one.picture_format == other.picture_format
    assert Path("AnnotatedVideo.mkv").stat().st_size == Path("VideoProcess.mkv").stat().st_size > 0
    with av.open("VideoProcess.mkv") as container:
        assert len(container.streams.audio) == 1


def test_one_process_makes_one_video_after_the_other_wherever_the_program_is(tmp_path):
    made = set()
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        os.chdir(tmp_path / folder)
        make(VideoProcess, "out.mp4", frames(3))
        assert len(images("out.mp4")) == 3
        made.add(drawing_process._idle[-1])
    assert len(made) == 1


def test_its_errors_are_those_of_a_video():
    with pytest.raises(OutputError, match=r"out must be writable, '/dev/null/out\.mp4' is not"):
        VideoProcess("/dev/null/out.mp4", source=None, style=_STYLE)
    Path("full.mp4").symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"'full\.mp4' is not: No space left"):
        make(VideoProcess, "full.mp4", frames(40, size=(300, 500)))
    sink = VideoProcess("out.mp4", source=None, style=_STYLE)
    sink.write(next(frames(1)), some_detections(1, size=(48, 64)))
    sink.write(next(frames(1)), some_detections(1, size=(50, 64)))
    with pytest.raises(InputError, match="detections must be of the image's size") as caught:
        sink.close()
    assert type(caught.value) is InputError
    assert names() == ["full.mp4", "out.partial.mp4"]
    assert sink.paths == ("out.partial.mp4",)
    sink.close()
    with pytest.raises(InputError, match="The output is closed"):
        sink.write(next(frames(1)), some_detections(1))
    make(VideoProcess, "next.mp4", frames(3))  # by the same process
    assert len(images("next.mp4")) == 3


def test_a_frame_that_can_not_be_had_ends_its_video():
    class Lost:
        size_hw = (48, 64)

        def to_rgb(self, _):
            raise RuntimeError("The device is gone.")

    given = [replace(frame, pixels=Lost()) if frame.index == 12 else frame for frame in frames(20)]
    with pytest.raises(DeviceError, match=r"frame 12 of 'clip\.mp4'"):
        make(VideoProcess, "out.mp4", given)
    assert len(images("out.partial.mp4")) == 12


def test_detections_that_can_not_be_sent_end_their_video():
    found = replace(some_detections(1), class_names=MappingProxyType({0: "car"}))
    sink = VideoProcess("out.mp4", source=None, style=_STYLE, threads=2)
    with pytest.raises(InputError, match=r"out must be given what pickle takes, 'out\.mp4' is not: "), sink:
        sink.write(next(frames(1)), found)
    with pytest.raises(InputError, match="out must be given what pickle takes"):
        VideoProcess("out.mp4", source=None, style=lambda: None, threads=2)
    assert len(drawing_process._idle) == 1  # it is kept for the next video


def test_a_process_that_is_killed_ends_its_video_with_an_error_and_no_other():
    def killing():
        for frame in frames(30):
            if frame.index == 20:
                sink._drawer.process.kill()
            yield frame

    sink = VideoProcess("out.mp4", source=None, style=_STYLE)
    with pytest.raises(OutputError, match=r"'out\.mp4' is not whole: its process was ended by SIGKILL"):
        fill(sink, killing())
    assert names() == ["out.partial.mp4"]
    make(VideoProcess, "next.mp4", frames(3))
    assert len(images("next.mp4")) == 3


@pytest.mark.slow
def test_a_program_that_is_killed_leaves_a_playable_video():
    script = """
import os, signal
from maskjet.outputs.drawing_process import VideoProcess
from maskjet.drawing import DrawStyle
from tests.outputs.outputs import frames
from tests.detections.test_detections import some_detections
sink = VideoProcess("out.mp4", source=None, style=DrawStyle(), threads=1)
for frame in frames(40):
    sink.write(frame, some_detections(1, size=frame.size_hw))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    ended = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert ended.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not playable("out.partial.mp4"):
        time.sleep(0.1)
    assert names() == ["out.partial.mp4"]
    assert len(images("out.partial.mp4")) >= 30


def playable(path):
    """Whether a file has the index that a finished one ends with."""
    return b"moov" in Path(path).read_bytes()[-4096:]


def test_many_cores_beside_a_gpu_draw_in_processes(monkeypatch):
    def are_processes(videos):
        with open_sinks([f"{number}.mp4" for number in range(videos)]) as sinks:
            (kind,) = {type(sink) for sink in sinks._sinks}
        return kind is VideoProcess

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7))
    assert not are_processes(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert [are_processes(videos) for videos in (1, 2, 5)] == [True, True, False]
    assert len(drawing_process._idle) == 2
    drawing_process.end_idle()
    with monkeypatch.context() as failing:
        failing.setattr(drawing_process.runner, "start", Mock(side_effect=BlockingIOError))
        open_before = len(names("/proc/self/fd"))
        assert not are_processes(1)
        assert len(names("/proc/self/fd")) == open_before
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not are_processes(1)

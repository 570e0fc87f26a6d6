"""How annotated video is encoded: its quality and threads, and RGB converted to NV12."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from maskjet.errors import InputError
from maskjet.outputs import encoders, video
from maskjet.outputs.encoders import add_stream
from maskjet.outputs.nv12 import to_nv12, weights_of
from maskjet.outputs.opening import open_sinks
from maskjet.sources.colours import PictureFormat
from maskjet.sources.frames import Frame
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import frames, images, write

pytestmark = pytest.mark.usefixtures("in_folder")
SHARES = {1: (0.2126, 0.0722), 4: (0.3, 0.11), 5: (0.299, 0.114), 6: (0.299, 0.114), 7: (0.212, 0.087)}
SHARES[9] = (0.2627, 0.0593)


@pytest.mark.parametrize("is_full_range", [False, True])
@pytest.mark.parametrize("matrix", SHARES)
def test_nv12_is_the_rounded_formula_and_chroma_the_mean_of_its_own_pixels(matrix, is_full_range):
    rgb = np.random.default_rng(0).integers(0, 256, (35, 67, 3), np.uint8)
    rgb[:6, :2], rgb[:6, 2:4], rgb[:6, 4:6], rgb[:6, 6:8] = (0, 0, 255), (255, 0, 0), (255, 255, 0), 255
    nv12 = np.full((51, 66), 99, np.uint8)
    to_nv12(rgb, weights_of(PictureFormat(matrix, 1, 1, is_full_range)), 66, nv12[:34], nv12[34:])
    red, blue = SHARES[matrix]
    shares = rgb[:34, :66] / 255
    luma = shares @ [red, 1 - red - blue, blue]
    u, v = ((shares[..., c] - luma) / (2 - 2 * share) for c, share in ((2, blue), (0, red)))
    low, span, chroma_span = (0, 255, 255) if is_full_range else (16, 219, 224)
    np.testing.assert_allclose(nv12[:34], low + span * luma, atol=0.52)
    for plane, chroma in ((nv12[34:, ::2], u), (nv12[34:, 1::2], v)):
        mean = chroma.reshape(17, 2, 33, 2).mean(axis=(1, 3))
        np.testing.assert_allclose(plane, np.clip(128 + chroma_span * mean, 0, 255), atol=0.52)


def test_frames_of_one_buffer_stay_apart_in_every_thread_of_the_encoder(monkeypatch):
    monkeypatch.setattr(encoders.os, "sched_getaffinity", lambda _: range(8))
    given = [np.full((48, 64, 3), 10 * index, np.uint8) for index in range(20)]
    items = [Frame(index, index / 10, image, "s", "s") for index, image in enumerate(given)]
    write(["a.mp4", "a.webm"], items, some_detections(0, size=(48, 64)))
    for name in ("a.mp4", "a.webm"):
        np.testing.assert_allclose([image.mean() for image in images(name)], np.arange(20) * 10, atol=3)


class FakeContainer:
    """Takes a stream as PyAV's containers do."""

    def __init__(self, name="mp4"):
        self.format = SimpleNamespace(name=name)

    def add_stream(self, codec, *, rate, options):
        return SimpleNamespace(codec=codec, rate=rate, options=options, codec_context=SimpleNamespace())


def added(quality, container):
    return add_stream(FakeContainer(container), (720, 1280), Fraction(30), quality=quality, threads=2)


def test_quality_is_one_scale_whose_default_is_the_look_of_before():
    crf = {name: [float(added(each, name).options["crf"]) for each in (1, 60, 100)] for name in ("mp4", "webm")}
    assert crf == {"mp4": [51, 22, 2], "webm": [63, 32, 2]}


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_better_quality_takes_more_bytes(suffix):
    for quality in (20, 60, 90):
        write([f"{quality}{suffix}"], frames(3), quality=quality)
    sizes = [Path(f"{quality}{suffix}").stat().st_size for quality in (20, 60, 90)]
    assert sizes[0] < 0.8 * sizes[1] < 0.8 * sizes[2]


@pytest.mark.parametrize("quality", [0, 101, 60.5])
def test_what_is_no_quality_is_told(quality):
    with pytest.raises(InputError, match="quality must be a whole number from 1 to 100"):
        open_sinks(["a.mp4"], quality=quality)


@pytest.mark.parametrize(("cores", "videos", "threads"), [(1, 1, 1), (2, 1, 2), (16, 1, 8), (16, 8, 2), (2, 8, 1)])
def test_videos_side_by_side_share_the_cores(cores, videos, threads, monkeypatch):
    taken = []
    monkeypatch.setattr(encoders.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(video, "add_stream", lambda *to, **how: taken.append(add_stream(*to, **how)) or taken[-1])
    write([*(f"{number}.mp4" for number in range(videos)), "a.jsonl"], frames(1))
    assert [stream.codec_context.thread_count for stream in taken] == [threads] * videos
    assert {stream.codec_context.thread_type.name for stream in taken} == {"FRAME"}

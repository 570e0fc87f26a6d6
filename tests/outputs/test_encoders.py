"""How annotated video is encoded: the choice of the encoder, its quality and threads, and RGB converted to NV12."""

from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from maskjet.errors import InputError, UnsupportedError
from maskjet.outputs import encoders
from maskjet.outputs.encoders import Encoding
from maskjet.outputs.nv12 import to_nv12, weights_of
from maskjet.outputs.opening import check_outputs, open_sinks
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


def fake_nvenc(monkeypatch, smallest=(49, 145), error=None):
    """PyAV with an NVENC that takes frames of some size, or whose creation is an error."""

    class Context:
        def open(self):
            if (self.height, self.width) < smallest:
                raise av.error.ArgumentError(22, "Invalid argument")

    def create(codec, mode):
        assert (codec, mode) == ("h264_nvenc", "w")
        if error:
            raise error
        return Context()

    fake = SimpleNamespace(CodecContext=SimpleNamespace(create=create), error=av.error, codec=av.codec)
    monkeypatch.setattr(encoders, "av", fake)


def added(encoding, size_hw=(720, 1280), container="mp4"):
    return encoding.add_stream(FakeContainer(container), size_hw, Fraction(30), 2)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (av.codec.codec.UnknownCodecError("h264_nvenc"), "FFmpeg lacks it"),
        (av.error.PermissionError(1, "Operation not permitted"), "Operation not permitted"),
        (av.error.ExternalError(542398533, "Generic error in an external library"), "Generic error in an external"),
    ],
)
def test_without_nvenc_it_is_an_error_by_name_and_auto_takes_x264(error, reason, monkeypatch):
    fake_nvenc(monkeypatch, error=error)
    for ask in (
        lambda: Encoding("nvenc"),
        lambda: open_sinks(["a.mp4"], encoder="nvenc"),
        lambda: check_outputs(["a.mp4"], [SimpleNamespace(name="s", root=None, files=[])], encoder="nvenc"),
    ):
        with pytest.raises(UnsupportedError, match=rf"encoder='nvenc' needs .* \({reason}.*\): use 'auto' or 'x264'"):
            ask()
    assert added(Encoding("auto")).codec == "libx264"


def test_nvenc_is_taken_where_it_takes_the_frames(monkeypatch):
    fake_nvenc(monkeypatch)
    assert [added(Encoding(name)).codec for name in ("x264", "nvenc", "auto")] == [
        "libx264",
        "h264_nvenc",
        "h264_nvenc",
    ]
    assert added(Encoding("nvenc"), container="webm").codec == "libvpx-vp9"
    assert added(Encoding("auto"), (48, 64)).codec == "libx264"
    with pytest.raises(UnsupportedError, match="64x48 can't be encoded here"):
        added(Encoding("nvenc"), (48, 64))


def test_ffmpegs_nvenc_has_these_options(monkeypatch):
    fake_nvenc(monkeypatch)
    stream = added(Encoding("nvenc", 1))
    known = av.CodecContext.create("h264_nvenc", "w").supported_options
    options = {option.name: option for option in (*known.private, *known.generic)}
    for name, value in stream.options.items():
        choices = [choice.name for choice in options[name].choices]
        assert value in choices or options[name].min <= float(value) <= options[name].max
    assert stream.pix_fmt in [known.name for known in av.Codec("h264_nvenc", "w").video_formats]


def test_quality_is_one_scale_whose_default_is_the_look_of_before():
    crf = {
        name: [float(added(Encoding(quality=each), container=name).options["crf"]) for each in (1, 60, 100)]
        for name in ("mp4", "webm")
    }
    assert crf == {"mp4": [51, 22, 2], "webm": [63, 32, 2]}


@pytest.mark.parametrize("suffix", [".mp4", ".webm"])
def test_better_quality_takes_more_bytes(suffix):
    for quality in (20, 60, 90):
        write([f"{quality}{suffix}"], frames(3), quality=quality)
    sizes = [Path(f"{quality}{suffix}").stat().st_size for quality in (20, 60, 90)]
    assert sizes[0] < 0.8 * sizes[1] < 0.8 * sizes[2]


@pytest.mark.parametrize(("name", "value"), [("encoder", "h265"), ("quality", 0), ("quality", 101), ("quality", 60.5)])
def test_what_is_no_encoding_is_told(name, value):
    with pytest.raises(InputError, match=f"{name} must be .*, got "):
        open_sinks(["a.mp4"], **{name: value})


@pytest.mark.parametrize(("cores", "videos", "threads"), [(1, 1, 1), (2, 1, 2), (16, 1, 8), (16, 8, 2), (2, 8, 1)])
def test_videos_side_by_side_share_the_cores(cores, videos, threads, monkeypatch):
    taken, add_stream = [], Encoding.add_stream
    monkeypatch.setattr(encoders.os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(Encoding, "add_stream", lambda *given: taken.append(add_stream(*given)) or taken[-1])
    write([*(f"{number}.mp4" for number in range(videos)), "a.jsonl"], frames(1))
    assert [stream.codec_context.thread_count for stream in taken] == [threads] * videos
    assert {stream.codec_context.thread_type.name for stream in taken} == {"FRAME"}

"""Videos decoded by a GPU: the same frames, and the CPU where a GPU can't."""

import contextlib
import itertools
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
import torch
from av.stream import Disposition

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.drawing import Painter, draw
from maskjet.engine import pipeline
from maskjet.errors import DeviceError, InputError, UnsupportedError
from maskjet.sources import conversion
from maskjet.sources.decoding import ON_CPU, Decoding, check_decoder, choose_decoding, why_not_decoded
from maskjet.sources.frames import open_source
from maskjet.sources.picture import Picture, conversion_of
from maskjet.sources.source import Frame
from tests.detections.test_detections import some_detections
from tests.engine.test_pictures import model
from tests.outputs.outputs import lines
from tests.outputs.outputs import write as write_to
from tests.sources.clips import assert_same, encode, join, read
from tests.sources.rtsp import RtspCamera
from tests.threads import run_at_once

pytestmark = pytest.mark.usefixtures("in_folder")
FRAMES = 12


def write(
    path, size_hw=(96, 160), codec="libx264", pix_fmt="yuv420p", frames=FRAMES, rotation=(), colours=None, seed=0
):
    """A video of streets with noise in it, so that no two frames are alike."""
    rng, street = np.random.default_rng(seed), traffic.Street(seed=seed, size_hw=(96, 160))
    images = [np.resize(street.frame(index).image, (*size_hw, 3)) for index in range(frames)]
    for image in images:
        image[: size_hw[0] // 2] ^= rng.integers(0, 32, (size_hw[0] // 2, size_hw[1], 3), np.uint8)

    def prepare(stream):
        if rotation:
            stream.set_display_rotation(*rotation)
        if colours is not None:
            stream.codec_context.colorspace, stream.codec_context.color_range = colours

    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    return encode(path, images, codec, options, rate=30, pix_fmt=pix_fmt, prepare=prepare)


class Far:
    """A picture whose pixels nobody may ask for."""

    shape, size_hw = (96, 64), (64, 64)

    def to_rgb(self, _):
        raise RuntimeError("CUDA error: far away")


def test_decoders_have_names(clips):
    for decoder in ("gpu", "cuda:", "cuda:x", "CPU", 0, None):
        with pytest.raises(InputError, match=r"decoder must be 'cpu', 'cuda' or 'cuda:N', got"):
            open_source(clips("closed.mp4"), decoder=decoder)
    assert check_decoder("cpu") == ON_CPU
    assert check_decoder("cuda") == check_decoder("cuda:0") == Decoding("cuda:0")
    assert check_decoder(Decoding("cuda:3", is_automatic=True)).device == "cuda:3"


def test_a_config_on_a_cpu_decodes_there():
    assert choose_decoding(EngineConfig(device="cpu"), 32) is ON_CPU
    with pytest.raises(UnsupportedError, match="decoder='cuda' needs a model on a GPU"):
        model(device="cpu", decoder="cuda")
    with pytest.raises(InputError, match="decoder must be one of"):
        EngineConfig(decoder="nvdec")


@pytest.mark.parametrize(
    ("streams", "size", "expected"),
    [
        *((1, (1280, 720), True), (1, (1280, 718), False), (99, (640, 360), False)),
        *((3, (), True), (2, (), False)),  # not known yet
    ],
)
def test_by_itself_it_takes_what_is_faster(streams, size, expected):
    assert Decoding("cuda:0", True, streams).is_worth_it(*size) == expected
    assert Decoding("cuda:0").is_worth_it(*size)
    assert not Decoding("cpu", True, streams).is_worth_it(*size)


@pytest.mark.parametrize(
    ("video", "reason"),
    [
        ({}, None),
        ({"codec": "libx265"}, None),
        ({"codec": "libvpx-vp9"}, None),
        ({"codec": "mpeg4"}, "the codec is mpeg4, not one of h264, hevc, vp8, vp9"),
        ({"codec": "libx265", "pix_fmt": "yuv420p10le"}, "pictures are yuv420p10le, not yuv420p"),
        ({"codec": "libvpx-vp9", "size_hw": (97, 160)}, "the size is odd"),
    ],
    ids=str,
)
def test_what_a_gpu_decodes_exactly(video, reason):
    with av.open(str(write("a.mp4", **video))) as container:
        assert why_not_decoded(container.streams.video[0].codec_context) == reason


def test_a_fallback_is_counted(monkeypatch):
    monkeypatch.setattr(pipeline, "choose_decoding", lambda *_: Decoding("cuda:99"))
    paths = [write(f"{seed}.mp4", seed=seed, frames=4) for seed in range(3)]
    with model(device="cpu") as loaded:
        found = sorted((frame for frame, _ in loaded.stream(paths)), key=lambda frame: (frame.stream, frame.index))
        assert_same(found, [frame for path in paths for frame in read(path)[1]])
        ((reason, count),) = loaded.report().fallbacks.items()
        assert reason.startswith("decode: the GPU's decoder can't be opened")
        assert count == 3
    assert read(paths[0], decoder="cuda:99")[0].decoder == "cpu"


def test_a_frame_is_converted_when_it_is_asked_for():
    memory = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (96, 64), dtype=np.uint8))
    frame = Frame(3, 0.1, Picture(memory, conversion_of(1, is_full_range=False)), "a.mp4", "a.mp4#3")
    assert frame.size_hw == frame.image.shape[:2] == (64, 64)
    assert frame.image is frame.image
    np.testing.assert_array_equal(frame.image, frame.pixels.to_rgb())


@pytest.mark.parametrize("overwrites", [False, True])
@pytest.mark.parametrize("is_decoded_on_a_gpu", [False, True])
def test_a_painter_draws_into_memory_of_its_own(is_decoded_on_a_gpu, overwrites):
    found, painter, drawn = some_detections(2, size=(64, 64)), Painter(overwrites=overwrites), []
    for seed in range(3):
        memory = np.random.default_rng(seed).integers(0, 256, (96, 64), dtype=np.uint8)
        picture = Picture(torch.from_numpy(memory), conversion_of(1, is_full_range=False))
        frame = Frame(seed, 0.1, picture if is_decoded_on_a_gpu else picture.to_rgb(), "a.mp4", f"a.mp4#{seed}")
        drawn.append(painter.paint(frame, found))
        np.testing.assert_array_equal(drawn[-1], draw(frame.image, found))
        np.testing.assert_array_equal(frame.image, picture.to_rgb())  # as others see it
        assert not np.shares_memory(drawn[-1], frame.image)
    assert np.shares_memory(*drawn[:2]) == overwrites
    with pytest.raises(InputError, match="detections must be of the image's size"):
        painter.paint(frame, some_detections(2, size=(64, 62)))


def test_a_failed_device_is_named_and_makes_no_bad_source(monkeypatch):
    with pytest.raises(DeviceError, match=r"The device failed on frame 3 of 'a.mp4': CUDA error: far away") as caught:
        Frame(3, 0.1, Far(), "a.mp4", "a.mp4#3").image  # noqa: B018 - a property
    assert caught.value.index == 3
    monkeypatch.setattr(conversion, "why_not_kept", lambda _: None)
    with open_source(write("a.mp4")) as source:
        source._video.converter._copier = Mock(copy=Mock(side_effect=RuntimeError("error 700")))
        with pytest.raises(DeviceError, match=r"The device failed on frame 1 of '.*a.mp4': error 700") as caught:
            list(source)
    assert caught.value.index == 1


def test_results_need_no_image():
    write_to(["a.jsonl"], [Frame(0, 0.0, Far(), "a.mp4", "a.mp4#0")], some_detections(2, size=(64, 64)))
    assert len(lines("a.jsonl")[0]["detections"]) == 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("video", "options"),
    [
        ({"size_hw": (1080, 1920), "codec": "libx265"}, {}),
        ({"size_hw": (360, 640), "codec": "libvpx-vp9"}, {}),
        ({"size_hw": (96, 160), "colours": (5, 1)}, {}),
        ({"size_hw": (720, 1280), "colours": (9, 1)}, {}),
        ({"size_hw": (450, 1002), "colours": (1, 2)}, {}),
        ({"size_hw": (180, 320), "frames": 90}, {"start": "1.2s", "every": 3}),
        ({"size_hw": (180, 320), "frames": 90}, {"start": 40, "limit": 4}),
    ],
    ids=str,
)
def test_frames_are_those_of_the_cpu(video, options):
    path = write("a.mp4", **video)
    (source, frames), (expected, others) = read(path, decoder="cuda", **options), read(path, **options)
    assert (source.decoder, source.fallback) == ("cuda:0", None)
    assert (source.size_hw, source.fps, source.picture_format) == (
        expected.size_hw,
        expected.fps,
        expected.picture_format,
    )
    assert all(frame.pixels.memory.is_cuda for frame in frames)
    assert_same(frames, others)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("video", "reason"),
    [
        ({"rotation": (90,)}, "rotated or mirrored"),
        ({"rotation": (0, True)}, "rotated or mirrored"),
        ({"size_hw": (97, 161), "codec": "libvpx-vp9"}, "odd"),
        ({"codec": "libx265", "pix_fmt": "yuv420p10le"}, "yuv420p10le, not yuv420p"),
        ({"codec": "mjpeg", "pix_fmt": "yuvj444p"}, "the codec is mjpeg"),
    ],
    ids=str,
)
def test_what_a_gpu_does_not_serve_goes_to_the_cpu(video, reason):
    path = write("a.mp4", **video)
    source, found = read(path, decoder="cuda")
    assert source.decoder == "cpu"
    assert reason in source.fallback
    assert_same(found, read(path)[1])


@pytest.mark.gpu
def test_the_default_one_of_several_streams():
    small, large = write("small.mp4"), write("large.mp4", size_hw=(192, 320), seed=1)
    path = join("two.mp4", (small, "video", Disposition(0)), (large, "video", Disposition.default))
    source, frames = read(path, decoder="cuda")
    assert (source.decoder, source.size_hw) == ("cuda:0", (192, 320))
    assert_same(frames, read(path)[1])


@pytest.mark.gpu
def test_a_cut_file_loses_what_it_loses_on_the_cpu():
    path = write(Path("a.ts"), size_hw=(180, 320), frames=90)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 188 // 2 * 188])
    found, expected = read(path, decoder="cuda")[1], read(path)[1]
    assert abs(len(found) - len(expected)) <= 2
    assert_same(found[:-2], expected[: len(found) - 2])


@pytest.mark.gpu
def test_a_video_that_changes_its_size():
    """An odd size in the middle is converted on the CPU; the GPU goes on with what follows."""
    path, part = Path("a.h264"), Path("part.h264")
    for number, size_hw in enumerate([(180, 320), (240, 426), (181, 321), (180, 320)]):
        write(part, size_hw=size_hw, frames=5, seed=number, pix_fmt="yuv444p" if size_hw[0] % 2 else "yuv420p")
        with path.open("ab") as file:
            file.write(part.read_bytes())
    with open_source(path, decoder="cuda") as source:
        assert source.decoder == "cuda:0"
        found = list(source)
    assert {frame.image.shape for frame in found} == {(180, 320, 3), (240, 426, 3), (181, 321, 3)}
    assert_same(found, read(path)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "eager"])
def test_detections_are_those_of_frames_from_the_cpu(engine):
    paths = [write(f"{seed}.mp4", size_hw=(180, 320), seed=seed) for seed in range(4)]
    found = {}
    for decoder in ("cpu", "cuda"):
        with model(device="cuda", engine=engine, decoder=decoder, precision="fp32") as loaded:
            results = {}
            for frame, detections in loaded.stream(paths, depth=2, batch=1):
                assert isinstance(frame.pixels, Picture) == (decoder == "cuda")
                results[frame.stream, frame.index] = detections.as_dict()
            assert not loaded.report().fallbacks, loaded.report()
        found[decoder] = results
    assert len(found["cpu"]) == 4 * FRAMES
    assert found["cpu"] == found["cuda"]


@pytest.mark.gpu
@pytest.mark.slow
def test_ten_thousand_frames_under_load():
    """No surface is read before it is whole, or after it was given back, while an engine uses the GPU."""
    paths = [write(f"{seed}.mp4", size_hw=(360, 640), frames=40, seed=seed) for seed in range(16)]
    expected = []
    for path in paths:
        with open_source(path, decoder="cuda") as source:
            first = [frame.pixels.memory.cpu() for frame in source]
        with av.open(str(path)) as container:
            for frame, memory in zip(container.decode(video=0), first, strict=True):
                planar = frame.reformat(format="nv12").to_ndarray()
                np.testing.assert_array_equal(planar, memory.numpy())
        expected.append(torch.stack(first).cuda())
    stop, wrong, counts = threading.Event(), [], [0] * len(paths)

    def load():
        with model(device="cuda", engine="graph") as busy:
            noise = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8)
            for _ in busy.stream(itertools.repeat(noise), depth=4, stop=stop):
                pass

    def decode(number):
        while counts[number] < 10_000 // len(paths):
            with open_source(paths[number], decoder="cuda") as source:
                for frame in source:
                    counts[number] += 1
                    if not torch.equal(frame.pixels.memory, expected[number][frame.index]):
                        wrong.append((number, frame.index))

    loading = threading.Thread(target=load)
    loading.start()
    try:
        run_at_once(decode, range(len(paths)))
    finally:
        stop.set()
        loading.join()
    assert sum(counts) >= 10_000
    assert not wrong


@pytest.mark.gpu
def test_decoders_come_and_go_while_graphs_are_captured():
    """To make one ends a capture, and may hang: in streams that begin at other times, as a job's do."""
    path = write("a.mp4", size_hw=(720, 1280), frames=3)
    stop, errors, opened = threading.Event(), [], [0] * 4

    def open_again(number):
        try:
            while not stop.is_set():
                with open_source(path, decoder="cuda") as source:
                    assert source.decoder == "cuda:0", source.fallback
                    assert [frame.index for frame in source] == [0, 1, 2]
                opened[number] += 1
        except Exception as error:
            errors.append(error)

    with model(device="cuda") as captured:
        threads = [threading.Thread(target=open_again, args=(number,)) for number in range(len(opened))]
        for thread in threads:
            thread.start()
        try:
            for batch in range(1, 41):  # a graph each, captured with the second batch
                list(captured.stream([np.zeros((96, 160, 3), np.uint8)] * 3 * batch, depth=1, batch=batch))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert min(opened) > 0
        assert captured.report().fallbacks == {}


def test_a_decoder_is_alone_while_it_is_made_and_freed(monkeypatch):
    """Shown by one on the CPU, which needs it not."""
    times = []

    @contextlib.contextmanager
    def alone(_):
        times.append(None)
        yield

    monkeypatch.setattr(Decoding, "alone", alone)
    with open_source(write("a.mp4")) as source:
        decoder = source._video.stream.codec_context
        until_first = len(times)
        assert until_first > 0
        assert sum(1 for _ in source) == FRAMES
        assert len(times) == until_first
        held = sys.getrefcount(decoder)
    assert len(times) == until_first + 1
    assert sys.getrefcount(decoder) < held


@pytest.mark.gpu
def test_a_camera_comes_back():
    with RtspCamera(fps=25, size_hw=(180, 320)) as camera, open_source(camera.url, decoder="cuda") as source:
        seen = []
        for frame in source:
            assert isinstance(frame.pixels, Picture)
            seen.append(frame.index)
            if len(seen) == 5:
                camera.kill()
                camera.come_back(size_hw=(240, 320))
            if source.state.reconnects and len(seen) > 10:
                break
        assert frame.size_hw == (240, 320)
        assert seen == sorted(set(seen))
        assert source.decoder == "cuda:0"


_ALONE = """
import sys, torch
from maskjet.sources.frames import open_source
from maskjet.config import EngineConfig
from maskjet.model import Model
from tests.networks.test_network import tiny_network
for engine in ("eager", "graph"):
    with Model(tiny_network(), EngineConfig(device="cuda:1", engine=engine, compile=engine == "graph")) as model:
        for decoder in ("cpu", "cuda:1"):
            for _ in range(3):
                with open_source(sys.argv[1], decoder=decoder) as source:
                    assert source.decoder == decoder, source.fallback
                    for frame, found in model.stream(source):
                        frame.image, found.rle
        model.predict([frame.image] * 3)
        model.predict(torch.from_numpy(frame.image).to("cuda:1"))
        str(model.report())
assert torch._C._cuda_hasPrimaryContext(1)
assert not torch._C._cuda_hasPrimaryContext(0)
"""


@pytest.mark.gpu
@pytest.mark.slow
def test_other_gpus_are_left_alone():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    path, root = Path(write("a.mp4", size_hw=(180, 320))).absolute(), Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", _ALONE, str(path)], capture_output=True, text=True, cwd=root)
    assert ran.returncode == 0, ran.stderr

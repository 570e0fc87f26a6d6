"""The benchmark of reach: long videos and live ones are what they say, and every part is measured or noted."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import av
import numpy as np
import pytest
import torch

from benchmarks import reach, reach_speed, reach_videos
from benchmarks.reach_live import sending
from benchmarks.reach_videos import repeat, write_live
from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.errors import UnsupportedError
from maskjet.model import Model
from maskjet.sources.frames import open_source

FRAMES = 9


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    path = tmp_path_factory.mktemp("street") / "street.mp4"
    traffic.write_video(path, size_hw=(64, 96), frames=FRAMES, seed=7)
    return path


@pytest.fixture(scope="module")
def live(street):
    path = street.with_suffix(".flv")
    write_live(street, path)
    return path


def test_a_repeated_video_is_one_long_video(street, tmp_path):
    repeat(street, tmp_path / "long.mp4", 3)
    with open_source(street) as source:
        once = [frame.image for frame in source]
    with open_source(tmp_path / "long.mp4") as source:
        frames = list(source)
        assert source.bad_frames == []
    assert len(frames) == 3 * FRAMES
    for number, frame in enumerate(frames):
        assert np.array_equal(frame.image, once[number % FRAMES])
        assert frame.time_s == pytest.approx(number / traffic.FPS, abs=1e-4)


def test_a_live_video_holds_no_frame_back(live):
    with av.open(str(live)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        assert [packet.pts for packet in packets] == [packet.dts for packet in packets]
        assert len(packets) == FRAMES
        assert [len(packet.decode()) for packet in packets] == [1] * FRAMES


def test_streams_are_live_and_every_frame_has_a_stamp(live):
    with sending(live, 2, fps=200.0) as (urls, stamps):
        for number, url in enumerate(urls):
            begin = time.monotonic()
            with open_source(url, limit=3 * FRAMES) as source:
                assert source.is_live
                frames = [(frame, time.monotonic()) for frame in source]
            assert [round(frame.time_s * 200) for frame, _ in frames] == list(range(3 * FRAMES))
            for index, (_, came) in enumerate(frames):
                assert begin < stamps[number, index] < came


@pytest.fixture
def run(monkeypatch, network):
    """Measures few streams of a tiny network."""
    stream = reach.Stream("312", 2, 2, 2)
    plan = replace(
        reach.SMALL, frames={"312": (10, 400)}, files=(stream,), memory=stream, live=reach.Stream("312", 1, 1, 2)
    )
    monkeypatch.setattr(reach, "_plant", lambda *_: network)
    monkeypatch.setattr(reach, "_LIVE_FPS", 100.0)
    monkeypatch.setattr(reach, "SMALL", plan)
    monkeypatch.setattr(reach_speed, "_ROUNDS", 1)
    monkeypatch.setattr(reach_speed, "_WARM_UP", 1)
    monkeypatch.setattr(reach, "_IN_MEMORY", 5)
    # A process would import PyTorch to draw ten frames.
    monkeypatch.setattr(reach_videos, "ProcessPoolExecutor", lambda workers, **_: ThreadPoolExecutor(workers))
    return partial(reach.run, model="tiny", config=EngineConfig(device="cpu"), seconds=0.2, live_settle_s=0.1)


@pytest.mark.slow
def test_all_is_measured_and_noted(run, tmp_path):
    path = tmp_path / "reach.json"
    found = run(path, videos=tmp_path / "videos")
    assert json.loads(path.read_text()) == json.loads(json.dumps(found.as_dict()))
    assert [(m.streams, m.decoder) for m in found.measurements] == [(2, "cpu"), (2, "memory")]
    for m in found.measurements:
        assert m.speed.frames > 0
        assert 0 < m.speed.cpu_busy <= 1.1  # the clocks are read one after the other
        assert m.graphs_fps is m.pcie_fps is m.gpu_mib is None
    assert found.decoding_fps("312", 2, "cpu") > 0
    (latency,) = found.latencies
    assert 0 < latency.p50_ms <= latency.p99_ms <= latency.most_ms
    assert [note.split(" left out")[0] for note in found.notes] == [
        f"{loop.name}, {output}" for loop in reach.LOOPS for output in ("masks", "RLE")
    ]
    assert "2 × 312   cpu" in str(found)


@pytest.mark.slow
def test_what_fails_or_has_no_time_left_is_a_note(run, monkeypatch):
    found = run(limit_s=0.0, only=["streams", "border"])
    assert (len(found.measurements), len(found.decoding), len(found.notes)) == (0, 0, 4)
    assert all("left out: 0 s have passed" in note for note in found.notes)

    def fail(*_):
        raise RuntimeError("the decoder is gone\nand more")

    monkeypatch.setattr(reach, "time_decoding", fail)
    found = run(only=["streams"])
    assert found.notes == ["decoding 2 × 312, cpu left out: RuntimeError: the decoder is gone"]
    assert len(found.measurements) == 2  # it costs no other


@pytest.mark.gpu
def test_floors_of_a_gpu(network):
    pixels = torch.zeros(64, 96, 3, dtype=torch.uint8)
    with Model(network, EngineConfig(device="cuda", compile=False)) as model:
        assert reach_speed.time_graphs(model, pixels, 2, 2, 0.1) > 0
        assert reach_speed.gpu_mib(model) > torch.cuda.memory_reserved() / 2**20
    assert reach_speed.measure_pcie(torch.device("cuda", 0)) > 0
    assert reach_speed.bytes_of(pixels) == pixels.numel()
    assert reach_speed.bytes_of(pixels.cuda()) is None


def test_a_decoder_that_was_not_had_is_an_error(street):
    with pytest.raises(UnsupportedError, match=r"decoder must be 'gpu', '.*street.mp4' is decoded by 'cpu'"):
        reach_speed._check_decoder(open_source(street), "gpu")

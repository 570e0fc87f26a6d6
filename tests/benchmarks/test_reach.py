"""The benchmark of reach: long videos and live ones are what they say, and every part is measured or noted."""

import time

import av
import numpy as np
import pytest

from benchmarks import cameras, reach_speed
from benchmarks.live_sender import payloads_of
from benchmarks.reach_live import sending
from benchmarks.reach_videos import repeat, write_live
from maskjet import traffic
from maskjet.errors import UnsupportedError
from maskjet.outputs.lines import line
from maskjet.sources.frames import Frame, open_source
from tests.detections.test_detections import some_detections

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


@pytest.mark.slow
def test_lines_of_cameras_are_read_and_their_steps_timed():
    watch, image = cameras.Watch(np.zeros((2, 9)), fps=10), np.zeros((64, 96, 3), np.uint8)
    for index in (3, 5):
        frame = Frame(index, index / 10, image, "rtsp://127.0.0.1:8554/1", "a frame")
        watch.add(line(frame, some_detections(2)).encode(), counts=True)
    assert (watch.seen, watch.lost()) == ([[], [3, 5]], [0, 1])
    report = cameras.time_steps((64, 96))
    assert len(report.rows()) == 4
    assert all(0 < each.median_us <= each.p95_us for each in report.measurements)


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


@pytest.mark.parametrize("protocol", ["http", "rtsp"])
def test_streams_are_live_and_every_frame_has_a_stamp(live, protocol):
    with sending(live, 2, fps=200.0, protocol=protocol) as (urls, stamps):
        for number, url in enumerate(urls):
            begin = time.monotonic()
            with open_source(url, limit=3 * FRAMES) as source:
                assert source.is_live
                frames = [(frame, time.monotonic()) for frame in source]
            assert [round((frame.time_s or 0) * 200) for frame, _ in frames] == list(range(3 * FRAMES))
            for index, (_, came) in enumerate(frames):
                assert begin < stamps[number, index] < came


def test_nal_units_are_fragmented_as_rtp_says():
    unit = bytes([0x65, *range(256)]) * 20
    payloads = payloads_of(unit)
    assert payloads_of(unit[:900]) == [unit[:900]]
    assert {each[0] for each in payloads} == {0x60 | 28}
    assert [each[1] for each in payloads] == [0x85, *[0x05] * (len(payloads) - 2), 0x45]
    assert unit[:1] + b"".join(each[2:] for each in payloads) == unit


def test_a_decoder_that_was_not_had_is_an_error(street):
    with pytest.raises(UnsupportedError, match=r"decoder must be 'gpu', '.*street.mp4' is decoded by 'cpu'"):
        reach_speed._check_decoder(open_source(street), "gpu")

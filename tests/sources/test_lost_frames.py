"""Videos that were damaged or cut: every packet is shown or told, and so are gaps next to damage."""

import contextlib
import functools
import http.server
import random
import re
import threading
from fractions import Fraction
from itertools import pairwise

import av
import numpy as np
import pytest

from tests.sources.clips import FASTSTART, FRAGMENTED, SOUND_RATE, assert_same, encode, packets_of, read

FORMATS = {
    "mkv": ("libx264", {}),
    "webm": ("libvpx", {}),
    "ts": ("libx264", {}),
    "flv": ("libx264", {}),
    "avi": ("mpeg4", {}),
    "h264.avi": ("libx264", {}),
    "wmv": ("libx264", {}),
    "mp4": ("libx264", FASTSTART),
    "fragmented.mp4": ("libx264", FRAGMENTED),
}
CODEC_OPTIONS = {
    "libx264": {"preset": "ultrafast"},
    "libvpx": {"cpu-used": "8", "deadline": "realtime", "threads": "1"},
}
RATE = 25


@functools.cache
def blocks(index):
    return np.random.default_rng(index).integers(0, 256, (12, 20, 3), np.uint8)


def write(folder, kind, frames=60, *, b_frames=0, sound_s=0.0, rate=RATE, times=None):
    """A video of pictures that differ, shown at `times` (in frames), perhaps with sound beside."""
    codec, container_options = FORMATS[kind]
    options = {"g": "10"} | CODEC_OPTIONS.get(codec, {}) | ({} if codec == "libvpx" else {"bf": str(b_frames)})
    images = [blocks(index).repeat(8, 0).repeat(8, 1) for index in range(frames)]
    sound = np.random.default_rng(0).random(int(sound_s * SOUND_RATE), np.float32) / 9
    more = {"rate": rate, "times": times, "sound": sound, "container_options": container_options}
    return encode(folder / f"v.{kind}", images, codec, options, **more)


def zero(data, start, count):
    return data[:start] + bytes(count) + data[start + count :]


def clusters_of(data):
    """Where the clusters of a Matroska file begin."""
    return [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The path of a whole video of 60 frames, written once."""
    folders = {b_frames: tmp_path_factory.mktemp("whole") for b_frames in (0, 2)}
    return functools.cache(lambda kind, b_frames=0: write(folders[b_frames], kind, b_frames=b_frames))


@pytest.fixture
def read_bytes(tmp_path):
    """The source of a damaged video, read to its end, and its frames."""

    def read_it(kind, data):
        path = tmp_path / f"damaged.{kind}"
        path.write_bytes(data)
        return read(path)

    return read_it


STEPS = [[1, 1, 1, 1, 1, 1, 1, 30], [3, 4, 5], [1, 1, 1, 200], [1, 2]]
OPTIONS = [
    {"rate": 1, "frames": 5},
    {"rate": Fraction(30000, 1001)},
    {"rate": 120, "b_frames": 3},
    {"frames": 2},
    {"times": range(50, 80), "frames": 30},
    {"times": [*range(10), 12, 13, 40, 41, 90], "frames": 15, "b_frames": 2},
    {"times": [*range(10), *range(30, 40)], "frames": 20, "sound_s": 0.3},
]


def varying(steps, sound_s, b_frames):
    """A rate that varies: with gaps and B-frames, at the ends of fragments and between a transport stream's tables."""
    rng = random.Random(repr(steps))
    times = np.cumsum([0, *(rng.choice(steps) for _ in range(39))]).tolist()
    return {"frames": 40, "times": times, "sound_s": sound_s, "b_frames": b_frames}


@pytest.mark.parametrize(("number", "kind"), list(enumerate(FORMATS)))
def test_whole_files_are_whole(number, kind, tmp_path):
    chosen = [OPTIONS[(number + more) % 7] for more in (0, 1, 3)]
    chosen += [varying(STEPS[(number + more) % 4], 0.0, 3 * (more % 2)) for more in range(3)]
    if kind != "webm":  # which takes no AAC
        chosen += [varying(STEPS[(number + 3) % 4], 2.4, 3), OPTIONS[-1]]
    for options in chosen:
        options = {"frames": 20} | options
        source, frames = read(write(tmp_path, kind, **options))
        assert source.bad_frames == [], options
        assert [f.index for f in frames] == list(range(options["frames"]))
        assert all(after.time_s > before.time_s for before, after in pairwise(frames))


def tells_missing(source):
    """Whether a source tells that packets are missing."""
    return any("frames are missing " in why for _, why in source.bad_frames)


@pytest.mark.parametrize("number", [2, 5])
def test_a_cluster_that_can_not_be_read(number, whole, read_bytes):
    data = whole("webm").read_bytes()
    source, frames = read_bytes("webm", zero(data, clusters_of(data)[number], 512))
    assert len(frames) == source.frames_seen < 60
    assert tells_missing(source)
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert all(frame.time_s * RATE == pytest.approx(true_number(frame.image), abs=0.1) for frame in frames)


@pytest.mark.parametrize("kind", ["mkv", "flv", "avi", "mp4"])
def test_a_file_cut_between_packets(kind, whole, read_bytes):
    source, frames = read_bytes(kind, whole(kind).read_bytes()[: packets_of(whole(kind))[56][0]])
    assert (len(frames), source.frames_seen) == (56, 56)
    assert source.bad_frames[-1][0] == 56
    assert "frames are missing at the end: the video breaks off at 2.24 " in source.bad_frames[-1][1]


def test_a_server_that_closes_the_connection(whole):
    data = whole("mp4").read_bytes()

    class Closing(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) * 4 // 5])

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source, frames = read(f"http://127.0.0.1:{server.server_port}/v.mp4")
        server.shutdown()
    assert 20 < len(frames) < 60
    assert tells_missing(source)


def mutate(data, rng, first=0):
    """Overwrite, remove, insert or cut, anywhere behind a first position."""
    start = rng.randrange(first, len(data))
    what = rng.choice(["zero", "noise", "hole", "insert", "cut"])
    count = rng.choice([1, 16, 512, 4000])
    if what == "cut":
        return data[:start]
    if what == "hole":
        return data[:start] + data[start + count :]
    new = bytes(count) if what == "zero" else rng.randbytes(count)
    return (data[:start] + new + data[start + (0 if what == "insert" else count) :])[: len(data) + count]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("kind", "b_frames"),
    [*((kind, 0) for kind in FORMATS), *((kind, 2) for kind in ("mkv", "ts", "mp4", "h264.avi", "wmv"))],
)
def test_nothing_is_lost_in_silence(kind, b_frames, seeds, whole, read_bytes, tmp_path):
    """Every packet that FFmpeg finds is shown or told."""
    data = whole(kind, b_frames).read_bytes()
    for seed in seeds:
        source, frames = read_bytes(kind, mutate(data, random.Random(seed), len(data) // 8))  # behind the head
        with av.open(str(tmp_path / f"damaged.{kind}")) as container, contextlib.suppress(av.error.FFmpegError):
            packets = sum(1 for packet in container.demux(video=0) if packet.size)
        lost = [why for _, why in source.bad_frames if "frames are missing " not in why]
        assert len(frames) + len(lost) == source.frames_seen == packets, seed
        assert [frame.index for frame in frames] == sorted({frame.index for frame in frames}), seed


def true_number(image):
    """Which frame of `write` an image shows, told from its pixels; None if it is too damaged to tell."""
    means = image.reshape(12, 8, 20, 8, 3)[:, 2:6, :, 2:6].mean((1, 3))
    errors = [np.abs(means - blocks(index)).mean() for index in range(60)]
    best = int(np.argmin(errors))
    return best if errors[best] < 40 else None


def packet_starts(path):
    return sorted(position for position, _ in packets_of(path))


@pytest.mark.parametrize("kind", ["ts", "flv"])
def test_a_beginning_that_is_missing(kind, whole, read_bytes):
    """Up to a frame that is no key frame, as where a broadcast is recorded."""
    data, starts = whole(kind).read_bytes(), packet_starts(whole(kind))
    source, frames = read_bytes(kind, data[: starts[0]] + data[starts[3] :])
    assert (true_number(frames[0].image), frames[0].index, source.frames_seen) == (10, 7, 57)
    assert [index for index, _ in source.bad_frames] == list(range(7))


def test_a_transport_stream_without_one_packet(whole, read_bytes):
    data, starts = whole("ts").read_bytes(), packet_starts(whole("ts"))
    source, frames = read_bytes("ts", data[: starts[7]] + data[starts[8] :])
    assert tells_missing(source)
    assert len(frames) >= 58


@pytest.mark.parametrize("b_frames", [(2, 2), (2, 0), (0, 2)])
def test_transport_streams_that_are_joined(b_frames, whole, read_bytes, tmp_path):
    """The clock jumps back while the decoder still holds pictures."""
    source, frames = read_bytes("ts", b"".join(whole("ts", number).read_bytes() for number in b_frames))
    assert (source.bad_frames, [true_number(frame.image) for frame in frames]) == ([], [*range(60)] * 2)
    for options in ({"start": 30}, {"start": 70, "every": 7}):
        again, found = read(tmp_path / "damaged.ts", **options)
        assert again.bad_frames == []
        assert_same(found, frames[options["start"] :: options.get("every", 1)])


def test_a_matroska_block_that_goes_back_in_time(whole, read_bytes):
    data, start = whole("mkv").read_bytes(), packet_starts(whole("mkv"))[45]
    time = data.index(b"\x81", start - 1, start + 8) + 1  # behind the number of the track
    source, frames = read_bytes("mkv", zero(data, time, 2))
    assert (source.frames_seen, [frame.index for frame in frames][-1]) == (60, 59)


def test_an_avi_without_its_index(whole, read_bytes):
    source, frames = read_bytes("avi", whole("avi").read_bytes().replace(b"idx1", b"JUNK"))
    assert (len(frames), source.frames_seen, source.bad_frames) == (60, 60, [])

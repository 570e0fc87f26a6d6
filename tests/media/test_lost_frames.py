"""Videos that were damaged or cut: every frame of the file is shown or reported, at its own index."""

import functools
import http.server
import random
import re
import sys
import threading
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from maskjet.errors import SourceError
from tests.media.clips import FASTSTART, FRAGMENTED, SOUND_RATE, encode, packets_of, read

FORMATS = {
    "mkv": ("libx264", {}),
    "webm": ("libvpx", {}),
    "ts": ("libx264", {}),
    "flv": ("libx264", {}),
    "avi": ("mpeg4", {}),
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


def misplaced(frames, start_s=0.0):
    """Frames whose index is not the one of their time, though it is called exact."""
    return [(f.index, f.time_s) for f in frames if f.index_is_exact and round((f.time_s - start_s) * RATE) != f.index]


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
        assert (source.bad_frames, source.index_is_exact) == ([], True), options
        assert [(f.index, f.index_is_exact) for f in frames] == [(index, True) for index in range(options["frames"])]


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_cluster_that_can_not_be_read(number, whole, read_bytes):
    data = whole("webm").read_bytes()
    source, frames = read_bytes("webm", zero(data, clusters_of(data)[number], 512))
    assert len(frames) < 60
    assert source.frames_seen == 60
    assert misplaced(frames) == []
    assert any("missing" in reason for _, reason in source.bad_frames)


@pytest.mark.parametrize("kind", ["mkv", "flv", "avi", "mp4"])
def test_a_file_cut_between_packets(kind, whole, read_bytes):
    source, frames = read_bytes(kind, whole(kind).read_bytes()[: packets_of(whole(kind))[56][0]])
    assert (len(frames), source.frames_seen) == (56, 60)
    assert source.states_end
    assert source.bad_frames[-1][0] == 56
    assert "4 frames missing at the end: the video breaks off at 2.24 of 2." in source.bad_frames[-1][1]


def test_streams_that_state_no_end_say_so(tmp_path):
    for kind in ("ts", "fragmented.mp4"):
        assert not read(write(tmp_path, kind, 5))[0].states_end


def test_raw_streams_know_no_index(tmp_path):
    source, frames = read(encode(tmp_path / "v.h264", [blocks(0).repeat(8, 0).repeat(8, 1)] * 5))
    assert [frame.index_is_exact for frame in frames] == [False] * 5
    assert not source.states_end


def test_a_damaged_varying_rate_is_no_guess(tmp_path, read_bytes):
    data = write(tmp_path, "mkv", 60, times=[index + index // 7 * 3 for index in range(60)]).read_bytes()
    source, frames = read_bytes("mkv", zero(data, clusters_of(data)[-1] - 2000, 900))
    assert not source.index_is_exact
    assert not frames[-1].index_is_exact
    assert any(
        re.search(r"about \d+ frames? missing|unknown number of frames missing", reason)
        for _, reason in source.bad_frames
    )


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
    assert source.frames_seen == 60
    assert source.bad_frames


def mutate(data, rng):
    """Overwrite, remove, insert or cut, anywhere behind the head."""
    start = rng.randrange(len(data) // 8, len(data))
    what = rng.choice(["zero", "noise", "hole", "insert", "cut"])
    count = rng.choice([1, 16, 512, 4000])
    if what == "cut":
        return data[:start]
    if what == "hole":
        return data[:start] + data[start + count :]
    new = bytes(count) if what == "zero" else rng.randbytes(count)
    return (data[:start] + new + data[start + (0 if what == "insert" else count) :])[: len(data) + count]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(("kind", "b_frames"), [*((kind, 0) for kind in FORMATS), ("mkv", 2), ("ts", 2), ("mp4", 2)])
def test_nothing_is_lost_in_silence(kind, b_frames, seeds, whole, read_bytes):
    """Frames that came and frames reported add up, or the source says that it can't know."""
    path = whole(kind, b_frames)
    data, start_s, verdicts = path.read_bytes(), read(path)[1][0].time_s, Counter()
    for seed in seeds:
        source, frames = read_bytes(kind, mutate(data, random.Random(seed)))
        adds_up = source.frames_seen == 60 and not misplaced(frames, start_s)
        is_known = source.states_end and source.index_is_exact
        verdicts[adds_up] += 1
        assert adds_up or not is_known, (seed, len(frames), source.frames_seen, misplaced(frames, start_s))
    assert verdicts[True] > 0


def true_number(image):
    """Which frame of `write` an image shows, told from its pixels; None if it is too damaged to tell."""
    means = image.reshape(12, 8, 20, 8, 3)[:, 2:6, :, 2:6].mean((1, 3))
    errors = [np.abs(means - blocks(index)).mean() for index in range(60)]
    best = int(np.argmin(errors))
    return best if errors[best] < 40 else None


def misnumbered(frames, start_s=0.0):
    """Frames whose pixels and time both say that their index is wrong, though it is called exact."""
    wrong = {index for index, _ in misplaced(frames, start_s)}
    numbers = [(frame.index, true_number(frame.image)) for frame in frames if frame.index in wrong]
    return [(index, number) for index, number in numbers if number not in (None, index)]


def packet_starts(path):
    return sorted(position for position, _ in packets_of(path))


def cut_out(data, starts, rng):
    """Take packets out, at the beginning or later, or overwrite what stands around the start of one."""
    first = rng.randrange(len(starts) - 12)
    what = rng.choice(["out", "beginning", "overwritten beginning", "border", "inside"])
    if what == "out":
        return data[: starts[first]] + data[starts[first + rng.choice([1, 2, 5, 11])] :]
    if what == "border":
        start, count = starts[first] + rng.choice([-24, -16, -12, -8, -4, -1, 0, 1]), rng.choice([1, 2, 4, 8])
        return data[:start] + rng.randbytes(count) + data[start + count :]
    if what == "inside":
        start = rng.randrange(starts[0], len(data))
        return zero(data, start, min(rng.choice([188, 1880, 4000]), len(data) - start))
    end = starts[rng.randrange(1, 8)] + rng.choice([0, 700])
    return data[: starts[0]] + (bytes(end - starts[0]) if "over" in what else b"") + data[end:]


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 10), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    ("kind", "b_frames"), [("mkv", 0), ("ts", 0), ("flv", 0), ("fragmented.mp4", 0), ("ts", 2), ("flv", 2)]
)
def test_no_frame_has_the_index_of_another(kind, b_frames, seeds, whole, read_bytes):
    path = whole(kind, b_frames)
    data, starts, start_s = path.read_bytes(), packet_starts(path), read(path)[1][0].time_s
    for seed in seeds:
        try:
            source, frames = read_bytes(kind, cut_out(data, starts, random.Random(seed)))
        except SourceError:  # nothing is left to be shown
            continue
        assert misnumbered(frames, start_s) == [], seed
        assert source.frames_seen == 60 or source.bad_frames or not source.index_is_exact, seed


@pytest.mark.parametrize(
    ("kind", "end", "is_overwritten"), [("ts", 2, False), ("ts", 3, True), ("flv", 3, False), ("flv", 2, True)]
)
def test_a_beginning_that_is_missing(kind, end, is_overwritten, whole, read_bytes):
    """Taken out or overwritten up to a frame that is no key frame."""
    data, starts = whole(kind).read_bytes(), packet_starts(whole(kind))
    lost = bytes(starts[end] - starts[0] if is_overwritten else 0)
    source, frames = read_bytes(kind, data[: starts[0]] + lost + data[starts[end] :])
    assert (true_number(frames[0].image), source.index_is_exact) == (10, False)
    assert re.search(r"(about \d+ frames?|an unknown number of frames) missing before", source.bad_frames[0][1])
    assert source.frames_seen > 50  # those before the key frame were lost, too


@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_transport_stream_whose_first_packets_are_not_all_there(number, whole, read_bytes):
    data, starts = whole("ts").read_bytes(), packet_starts(whole("ts"))
    source, frames = read_bytes("ts", data[: starts[number]] + data[starts[number + 1] :])
    assert (len(frames), source.frames_seen, misnumbered(frames, frames[0].time_s)) == (59, 60, [])


@pytest.mark.parametrize("number", [0, 10, 31, 59])
def test_tags_of_a_flash_video_that_are_taken_out(number, whole, read_bytes):
    data, starts = whole("flv").read_bytes(), [*packet_starts(whole("flv")), sys.maxsize]
    source, frames = read_bytes("flv", data[: starts[number]] + data[starts[number + 1] :])
    assert misnumbered(frames) == []
    assert any("missing" in reason for _, reason in source.bad_frames)
    assert source.index_is_exact == (number == 59)


def test_a_flash_video_with_a_tag_that_calls_itself_another_video(whole, read_bytes):
    data, start = whole("flv").read_bytes(), packet_starts(whole("flv"))[47]
    source, frames = read_bytes("flv", data[: start + 11] + b"\x22" + data[start + 12 :])  # H.263
    assert source.frames_seen == 60
    assert misnumbered(frames) == []


def test_a_matroska_block_that_goes_back_in_time(whole, read_bytes):
    data, start = whole("mkv").read_bytes(), packet_starts(whole("mkv"))[45]
    time = data.index(b"\x81", start - 1, start + 8) + 1  # behind the number of the track
    source, frames = read_bytes("mkv", zero(data, time, 2))
    assert misnumbered(frames) == []
    assert source.bad_frames


def test_an_avi_without_its_index_knows_no_index(whole, read_bytes):
    source, frames = read_bytes("avi", whole("avi").read_bytes().replace(b"idx1", b"JUNK"))
    assert (len(frames), source.frames_seen, source.bad_frames) == (60, 60, [])
    assert [frame.index_is_exact for frame in frames] == [False] * 60

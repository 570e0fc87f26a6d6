"""Videos that were damaged or cut: every frame of the file is shown or reported, at its own index."""

import functools
import http.server
import random
import re
import threading
from collections import Counter
from fractions import Fraction

import av
import numpy as np
import pytest

from maskjet.errors import SourceError
from maskjet.media.frames import open_source

FORMATS = {
    "mkv": ("matroska", "libx264", {}),
    "webm": ("webm", "libvpx", {}),
    "ts": ("mpegts", "libx264", {}),
    "flv": ("flv", "libx264", {}),
    "avi": ("avi", "mpeg4", {}),
    "mp4": ("mp4", "libx264", {"movflags": "faststart"}),
    "fragmented.mp4": ("mp4", "libx264", {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
}
CODEC_OPTIONS = {"libx264": {"preset": "ultrafast"}, "libvpx": {"cpu-used": "8", "deadline": "realtime"}}
RATE = 25


def write(path, kind, frames=60, *, times=None, rate=RATE, b_frames=0, sound_s=0.0):
    """A video of `frames` frames, shown at `times` (in frames), perhaps with sound beside."""
    container_format, codec, options = FORMATS[kind]
    with av.open(str(path), "w", format=container_format, options=options) as container:
        codec_options = {"g": "10", "bf": str(b_frames)} | CODEC_OPTIONS.get(codec, {})
        if codec == "libvpx":
            del codec_options["bf"]
        stream = container.add_stream(codec, rate=rate, options=codec_options)
        stream.height, stream.width, stream.pix_fmt = 96, 160, "yuv420p"
        sound = container.add_stream("aac", rate=48000) if sound_s else None
        packets = []
        for index in range(frames):
            image = np.random.default_rng(index).integers(0, 256, (12, 20, 3), np.uint8).repeat(8, 0).repeat(8, 1)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = times[index] if times else index, 1 / Fraction(rate)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for start in range(0, int(sound_s * 48000), 1024):
            noise = np.random.default_rng(start).random((1, 1024), np.float32) / 9
            samples = av.AudioFrame.from_ndarray(noise, format="fltp", layout="mono")
            samples.sample_rate, samples.pts, samples.time_base = 48000, start, Fraction(1, 48000)
            packets += sound.encode(samples)
        packets += sound.encode(None) if sound else []
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return path


def read(path):
    with open_source(path) as source:
        frames = list(source)
    return source, frames


def misplaced(frames, start_s=0.0):
    """Frames whose index is not the one of their time, though it is called exact."""
    return [(f.index, f.time_s) for f in frames if f.index_is_exact and round((f.time_s - start_s) * RATE) != f.index]


def zero(data, start, count):
    return data[:start] + bytes(count) + data[start + count :]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "options",
    [
        {"rate": 1, "frames": 5},
        {"rate": Fraction(30000, 1001)},
        {"rate": 120},
        {"frames": 2},
        {"times": [index + 50 for index in range(30)], "frames": 30},
        {"times": [*range(10), 12, 13, 40, 41, 90], "frames": 15},
        {"times": [*range(10), 12, 13, 40, 41, 90], "frames": 15, "b_frames": 2},
        {"b_frames": 3},
    ],
    ids=str,
)
def test_whole_files_are_whole(kind, options, tmp_path):
    path = write(tmp_path / f"v.{kind}", kind, **{"frames": 20} | options)
    source, frames = read(path)
    assert source.bad_frames == []
    assert [frame.index for frame in frames] == list(range(({"frames": 20} | options)["frames"]))
    assert all(frame.index_is_exact for frame in frames)


@pytest.mark.parametrize("kind", ["mkv", "ts", "flv", "mp4", "fragmented.mp4"])
@pytest.mark.parametrize("sound_s", [0.3, 2.0])
def test_sound_may_be_shorter_or_longer_than_a_video_whose_rate_varies(kind, sound_s, tmp_path):
    path = write(tmp_path / f"v.{kind}", kind, 20, times=[*range(10), *range(30, 40)], sound_s=sound_s)
    source, frames = read(path)
    assert (len(frames), source.bad_frames, source.index_is_exact) == (20, [], True)


def test_a_trimmed_mp4_is_whole(tmp_path):
    """One whose edit list shows a part of it."""
    write(tmp_path / "v.mp4", "mp4", 40)
    with av.open(str(tmp_path / "v.mp4")) as whole, av.open(str(tmp_path / "part.mp4"), "w") as part:
        stream = part.add_stream_from_template(whole.streams.video[0])
        for packet in whole.demux(video=0):
            if packet.dts is not None:
                packet.pts -= 5 * packet.duration  # before zero: an edit list leaves it out
                packet.dts -= 5 * packet.duration
                packet.stream = stream
                part.mux(packet)
    source, frames = read(tmp_path / "part.mp4")
    assert source.bad_frames == []
    assert [frame.index for frame in frames] == list(range(len(frames)))


@pytest.mark.parametrize("number", [0, 2, 5])
def test_a_cluster_that_can_not_be_read(number, tmp_path):
    path = write(tmp_path / "v.webm", "webm")
    data = path.read_bytes()
    clusters = [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)]
    path.write_bytes(zero(data, clusters[number], 512))
    source, frames = read(path)
    assert len(frames) < 60
    assert source.frames_seen == 60
    assert misplaced(frames) == []
    assert any("missing" in reason for _, reason in source.bad_frames)


@pytest.mark.parametrize("kind", ["mkv", "flv", "avi", "mp4"])
def test_a_file_cut_between_packets(kind, tmp_path):
    path = write(tmp_path / f"v.{kind}", kind)
    with av.open(str(path)) as container:
        starts = [packet.pos for packet in container.demux(video=0) if packet.size]
    path.write_bytes(path.read_bytes()[: starts[56]])
    source, frames = read(path)
    assert (len(frames), source.frames_seen) == (56, 60)
    assert source.states_end
    assert source.bad_frames[-1][0] == 56
    assert "4 frames missing at the end: the video breaks off at 2.24 of 2." in source.bad_frames[-1][1]


def test_streams_that_state_no_end_say_so(tmp_path):
    for kind in ("ts", "fragmented.mp4"):
        source, _ = read(write(tmp_path / f"v.{kind}", kind, 20))
        assert not source.states_end


def test_raw_streams_know_no_index(tmp_path):
    with av.open(str(tmp_path / "v.h264"), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.height, stream.width, stream.pix_fmt = 96, 160, "yuv420p"
        for _ in range(5):
            container.mux(stream.encode(av.VideoFrame(160, 96, "yuv420p")))
        container.mux(stream.encode(None))
    source, frames = read(tmp_path / "v.h264")
    assert [frame.index_is_exact for frame in frames] == [False] * 5
    assert not source.states_end


def test_a_damaged_varying_rate_is_no_guess(tmp_path):
    path = write(tmp_path / "v.mkv", "mkv", 60, times=[index + index // 7 * 3 for index in range(60)])
    data = path.read_bytes()
    clusters = [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)]
    path.write_bytes(zero(data, clusters[-1] - 2000, 900))
    source, frames = read(path)
    assert not source.index_is_exact
    assert not frames[-1].index_is_exact
    assert any(
        re.search(r"about \d+ frames? missing|unknown number of frames missing", reason)
        for _, reason in source.bad_frames
    )


def test_a_server_that_closes_the_connection(tmp_path):
    path = write(tmp_path / "v.mp4", "mp4")

    class Closing(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            data = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) * 4 // 5])

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Closing, directory=tmp_path)) as server:
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


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_lost_in_silence(kind, b_frames, tmp_path):
    """Frames that came and frames reported add up, or the source says that it can't know."""
    data = write(tmp_path / f"v.{kind}", kind, b_frames=b_frames).read_bytes()
    start_s = read(tmp_path / f"v.{kind}")[1][0].time_s
    path, verdicts = tmp_path / f"mutated.{kind}", Counter()
    for seed in range(15):
        path.write_bytes(mutate(data, random.Random(seed)))
        source, frames = read(path)
        adds_up = source.frames_seen == 60 and not misplaced(frames, start_s)
        is_known = source.states_end and source.index_is_exact
        verdicts[adds_up] += 1
        assert adds_up or not is_known, (seed, len(frames), source.frames_seen, misplaced(frames, start_s))
    assert verdicts[True] > 2


@functools.cache
def picture(index):
    return np.random.default_rng(index).integers(0, 256, (12, 20, 3), np.uint8).astype(float)


def true_number(image):
    """Which frame of `write` an image shows, told from its pixels; None if it is too damaged to tell."""
    blocks = image.reshape(12, 8, 20, 8, 3)[:, 2:6, :, 2:6].mean((1, 3))
    errors = [float(np.abs(blocks - picture(index)).mean()) for index in range(60)]
    best = int(np.argmin(errors))
    return best if errors[best] < 40 else None


def misnumbered(frames, start_s=0.0):
    """Frames whose pixels and time both say that their index is wrong, though it is called exact."""
    wrong = misplaced(frames, start_s)
    numbers = {frame.index: true_number(frame.image) for frame in frames}
    return [(index, numbers[index]) for index, _ in wrong if numbers[index] not in (None, index)]


def packet_starts(path):
    with av.open(str(path)) as container:
        return sorted(packet.pos for packet in container.demux(video=0) if packet.size)


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


@pytest.mark.slow
@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("kind", ["mkv", "ts", "flv", "fragmented.mp4"])
def test_no_frame_has_the_index_of_another(kind, b_frames, tmp_path):
    path = write(tmp_path / f"v.{kind}", kind, b_frames=b_frames)
    data, starts, start_s = path.read_bytes(), packet_starts(path), read(path)[1][0].time_s
    for seed in range(25):
        path.write_bytes(cut_out(data, starts, random.Random(seed)))
        try:
            source, frames = read(path)
        except SourceError:  # nothing is left to be shown
            continue
        assert misnumbered(frames, start_s) == [], seed
        assert source.frames_seen == 60 or source.bad_frames or not source.index_is_exact, seed


@pytest.mark.parametrize("kind", ["ts", "flv"])
@pytest.mark.parametrize("end", [2, 3])
@pytest.mark.parametrize("is_overwritten", [False, True])
def test_a_beginning_that_is_missing(kind, end, is_overwritten, tmp_path):
    """Taken out or overwritten up to a frame that is no key frame."""
    path = write(tmp_path / f"v.{kind}", kind)
    data, starts = path.read_bytes(), packet_starts(path)
    lost = bytes(starts[end] - starts[0] if is_overwritten else 0)
    path.write_bytes(data[: starts[0]] + lost + data[starts[end] :])
    source, frames = read(path)
    assert (true_number(frames[0].image), source.index_is_exact) == (10, False)
    assert re.search(r"(about \d+ frames?|an unknown number of frames) missing before", source.bad_frames[0][1])
    assert source.frames_seen > 50  # those before the key frame were lost, too


@pytest.mark.parametrize("number", [1, 2, 7])
def test_a_transport_stream_whose_first_packets_are_not_all_there(number, tmp_path):
    path = write(tmp_path / "v.ts", "ts")
    data, starts = path.read_bytes(), packet_starts(path)
    path.write_bytes(data[: starts[number]] + data[starts[number + 1] :])
    source, frames = read(path)
    assert (len(frames), source.frames_seen, misnumbered(frames, frames[0].time_s)) == (59, 60, [])


@pytest.mark.parametrize("number", [0, 10, 31, 59])
def test_tags_of_a_flash_video_that_are_taken_out(number, tmp_path):
    path = write(tmp_path / "v.flv", "flv")
    data, starts = path.read_bytes(), [*packet_starts(path), None]
    after = b"" if starts[number + 1] is None else data[starts[number + 1] :]
    path.write_bytes(data[: starts[number]] + after)
    source, frames = read(path)
    assert misnumbered(frames) == []
    assert any("missing" in reason for _, reason in source.bad_frames)
    assert source.index_is_exact == (number == 59)


def test_a_flash_video_with_a_tag_that_calls_itself_another_video(tmp_path):
    path = write(tmp_path / "v.flv", "flv")
    data, start = path.read_bytes(), packet_starts(path)[47]
    path.write_bytes(data[: start + 11] + b"\x22" + data[start + 12 :])  # H.263
    source, frames = read(path)
    assert source.frames_seen == 60
    assert misnumbered(frames) == []


def test_a_matroska_block_that_goes_back_in_time(tmp_path):
    path = write(tmp_path / "v.mkv", "mkv")
    data, start = path.read_bytes(), packet_starts(path)[45]
    time = data.index(b"\x81", start - 1, start + 8) + 1  # behind the number of the track
    path.write_bytes(zero(data, time, 2))
    source, frames = read(path)
    assert misnumbered(frames) == []
    assert source.bad_frames


def test_an_avi_without_its_index_knows_no_index(tmp_path):
    path = write(tmp_path / "v.avi", "avi")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"idx1", b"JUNK"))
    source, frames = read(path)
    assert (len(frames), source.frames_seen, source.bad_frames) == (60, 60, [])
    assert [frame.index_is_exact for frame in frames] == [False] * 60


@pytest.mark.parametrize("steps", [[1, 1, 1, 1, 1, 1, 1, 30], [3, 4, 5], [1, 1, 1, 200], [1, 2]], ids=str)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("sound_s", [0.0, 2.4])
def test_a_whole_file_whose_rate_varies_is_no_damaged_one(kind, steps, sound_s, tmp_path):
    """Gaps and B-frames, at the ends of fragments and between tables of a transport stream, too."""
    sound_s *= kind != "webm"  # which takes no AAC
    rng = random.Random(repr(steps))
    times = np.cumsum([0, *(rng.choice(steps) for _ in range(39))]).tolist()
    for b_frames in (0, 3):
        path = write(tmp_path / f"v.{kind}", kind, 40, times=times, b_frames=b_frames, sound_s=sound_s)
        source, frames = read(path)
        assert source.bad_frames == []
        assert [(frame.index, frame.index_is_exact) for frame in frames] == [(index, True) for index in range(40)]

"""Parts of videos, cut at key frames: joined, they are the whole video, byte for byte."""

import contextlib
import functools
import hashlib
import os
import random
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from maskjet.errors import InputError, SourceError
from maskjet.media import keyframes
from maskjet.media.decoding import Decoding
from maskjet.media.frames import open_source
from maskjet.media.keyframes import CannotEnterError, Entry, VideoPart, cut_video, open_part
from tests.media.test_selection import moving

RATE = 10
ENTERED, COUNTED, ONE = "parts with entries", "parts without", "one part"
_X265 = "log-level=none:scenecut=0:bframes=4"
KINDS = {
    "closed.mp4": ("libx264", {"g": "12", "bf": "0"}, ENTERED),
    "b1.mp4": ("libx264", {"g": "12", "bf": "1"}, ENTERED),
    "b2.mov": ("libx264", {"g": "12", "bf": "2"}, ENTERED),
    "b3.mp4": ("libx264", {"g": "12", "bf": "3"}, ENTERED),
    "pyramid.mp4": ("libx264", {"g": "12", "bf": "7", "x264-params": "b-pyramid=normal:b-adapt=0"}, ENTERED),
    "open.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, ENTERED),
    "open-pyramid.mp4": ("libx264", {"g": "15", "bf": "7", "x264-params": "open-gop=1:b-adapt=0"}, ENTERED),
    "open.mkv": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, ENTERED),
    "open.ts": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, COUNTED),
    "b3.flv": ("libx264", {"g": "12", "bf": "3"}, COUNTED),
    "hevc-open.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=1:{_X265}"}, ENTERED),
    "hevc-open.mkv": ("libx265", {"g": "12", "x265-params": f"open-gop=1:{_X265}"}, ENTERED),
    "hevc-radl.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=0:radl=2:{_X265}"}, ENTERED),
    "hevc-closed.mp4": ("libx265", {"g": "12", "x265-params": f"open-gop=0:{_X265}"}, ENTERED),
    "vp9.mp4": ("libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}, ENTERED),
    "vp9.webm": ("libvpx-vp9", {"g": "12", "deadline": "good", "cpu-used": "5", "lag-in-frames": "12"}, ENTERED),
    "av1.mp4": ("libsvtav1", {"g": "12", "preset": "12"}, ENTERED),
    "vp8.webm": ("libvpx", {"g": "12", "deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "10"}, ONE),
    "all-intra.mov": ("mjpeg", {}, ENTERED),
    "mpeg4-b.mp4": ("mpeg4", {"g": "9", "bf": "2"}, ENTERED),
    "mpeg2-b.ts": ("mpeg2video", {"g": "9", "bf": "2"}, COUNTED),
    "mpeg4.avi": ("mpeg4", {"g": "9", "bf": "0"}, ONE),
    "fragmented.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, ENTERED),
    "interlaced.mp4": ("libx264", {"g": "12", "bf": "3", "flags": "+ildct+ilme", "x264-params": "tff=1"}, COUNTED),
    "endless.mp4": ("libx264", {"g": "1000", "bf": "3"}, ONE),
    "refresh.mp4": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}, ONE),
    "refresh.ts": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}, ONE),
    "raw.h264": ("libx264", {"g": "12", "bf": "0"}, ONE),
    "animation.gif": ("gif", {}, ONE),
}

# Key frames followed by pictures that are shown before them.
WITH_LEADING = ["open.mp4", "open-pyramid.mp4", "open.mkv", "hevc-open.mp4", "hevc-open.mkv"]


@contextlib.contextmanager
def scheduled_as_before():
    """Undo what SVT-AV1 does as root: the thread that encodes becomes a real-time one, which starves all others."""
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def encode(path, codec="libx264", options=None, *, frames=60, times=None, sound=False, scale=1):
    """A video of a moving picture, shown at `times`, in frames."""
    file_options = {"movflags": "frag_keyframe+empty_moov"} if path.name.startswith("fragmented") else {}
    options = ({"g": "12", "bf": "3", "sc_threshold": "0"} if codec == "libx264" else {}) | (options or {})
    with scheduled_as_before(), av.open(str(path), "w", options=file_options) as container:
        stream = container.add_stream(codec, rate=RATE, options=options)
        stream.height, stream.width = 96 * scale, 128 * scale
        stream.pix_fmt = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
        heard = container.add_stream("aac", rate=48000) if sound else None
        packets = []
        for index in range(frames):
            image = moving(index).repeat(scale, 0).repeat(scale, 1)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = times[index] if times else index, Fraction(1, RATE)
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for start in range(0, frames * 4800 if heard else 0, 1024):
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            samples.sample_rate, samples.pts, samples.time_base = 48000, start, Fraction(1, 48000)
            packets += heard.encode(samples)
        packets += heard.encode(None) if heard else []
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            container.mux(packet)
    return path


def told(frames):
    return [
        (frame.index, frame.time_s, frame.name, frame.index_is_exact, frame.image.shape, digest(frame))
        for frame in frames
    ]


def digest(frame):
    return hashlib.blake2b(frame.image.tobytes(), digest_size=16).digest()


def whole(path, every=1):
    with open_source(path, every=every) as source:
        return told(source), source.bad_frames


def read_part(path, part, every=1):
    """The part's frames and bad frames, and whether it was read from its entry."""
    source = open_part(str(path), part, every=every)
    if source is None:
        return [], []
    with source:
        return told(source), source.bad_frames


def joined(path, parts, every=1):
    """The frames and bad frames of all parts, and how many could not be read from their entry."""
    frames, bad_frames, refused = [], [], 0
    for part in parts:
        try:
            found = read_part(path, part, every)
        except CannotEnterError:
            refused += 1
            found = read_part(path, VideoPart(part.first, part.count, None), every)
        frames += found[0]
        bad_frames += found[1]
    return (frames, bad_frames), refused


def assert_whole(path, parts, every=1):
    """Check that the parts joined are the whole, and return how many could not be read from their entry."""
    assert parts[0].first == 0
    assert parts[-1].count is None
    assert [part.first + part.count for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert all(part.entry is None or part.entry.index == part.first for part in parts)
    found, refused = joined(path, parts, every)
    assert found == whole(path, every)
    return refused


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Each kind of clip, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("clips")
    return functools.cache(lambda name: encode(folder / name, *KINDS[name][:2], sound=name in ("b3.mp4", "open.ts")))


def kind_of(parts):
    if len(parts) == 1:
        assert parts == [VideoPart(0, None, None)]
        return ONE
    has_entries = {part.entry is not None for part in parts[1:]}
    assert len(has_entries) == 1
    return ENTERED if has_entries.pop() else COUNTED


@pytest.mark.parametrize("name", KINDS)
def test_parts_joined_are_the_whole(name, clips):
    path = clips(name)
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == KINDS[name][2]
    if name in WITH_LEADING:
        assert any(part.entry.index > part.entry.packets for part in parts[1:])
    for every in (1, 3, 7):
        assert assert_whole(path, parts, every) == 0


def test_200_random_segmentations_are_the_whole(clips):
    path, rng = clips("open.mp4"), random.Random(21)
    entries = [part.entry for part in cut_video(str(path), seconds=0.1)[1:]]
    expected, made = whole(path), {}
    for _ in range(200):
        cuts = sorted(rng.sample(entries, rng.randint(1, len(entries))), key=lambda entry: entry.index)
        firsts = [0, *(entry.index for entry in cuts), None]
        frames, bad_frames = [], []
        for entry, first, end in zip([None, *cuts], firsts, firsts[1:], strict=False):
            part = VideoPart(first, None if end is None else end - first, entry if rng.random() < 0.9 else None)
            if part not in made:
                made[part] = read_part(path, part)
            frames += made[part][0]
            bad_frames += made[part][1]
        assert (frames, bad_frames) == expected
    assert len(made) > 15


@pytest.mark.parametrize("seconds", [0.5, 2, 3.0, 100])
def test_parts_are_at_least_as_long_as_asked(seconds, clips):
    parts = cut_video(str(clips("b3.mp4")), seconds=seconds)
    lengths = [part.count / RATE for part in parts[:-1]]
    assert all(seconds <= length < seconds + 1.2 for length in lengths)
    assert_whole(clips("b3.mp4"), parts)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_files_with_hundreds_of_key_frames(suffix, tmp_path):
    path = encode(tmp_path / f"v.{suffix}", options={"g": "2", "bf": "0"}, frames=120)
    parts = cut_video(str(path), seconds=0.1)
    assert len(parts) == {"mp4": 60, "mkv": 59, "ts": 15}[suffix]
    assert_whole(path, parts[:16] if suffix == "ts" else [*parts[:10], replace(parts[10], count=None)])


def test_a_listed_video_is_not_read(tmp_path, monkeypatch):
    """Nor is it decoded; only its header and some packets around each cut are."""
    path = tmp_path / "v.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"g": "10", "qp": "1", "preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = 240, 320, "yuv420p"
        for seed in range(200):
            noise = np.random.default_rng(seed).integers(0, 256, (240, 320, 3), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode(None))
    monkeypatch.setattr(keyframes, "_read_keys", None)
    before = bytes_read()
    parts = cut_video(str(path), seconds=9)
    assert [part.first for part in parts] == [0, 90, 180]
    assert bytes_read() - before < path.stat().st_size / 2


def bytes_read():
    """Bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("b_frames", [0, 3])
def test_a_varying_rate(suffix, b_frames, tmp_path):
    """Packets that no list names can't be counted if the rate varies: some may be missing."""
    times = [index + index // 3 * 2 for index in range(60)]
    path = encode(tmp_path / f"v.{suffix}", options={"bf": str(b_frames)}, times=times)
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == (ENTERED if suffix == "mp4" else ONE)
    for every in (1, 7):
        assert assert_whole(path, parts, every) == 0


@pytest.mark.parametrize("first", [-7, 50, 100_000])
def test_times_that_begin_anywhere(first, tmp_path):
    path = encode(tmp_path / "v.mp4", times=range(first, first + 60))
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == ENTERED
    assert assert_whole(path, parts) == 0


def trim(path, source, frames):
    """Write a video again without its first frames: an edit list cuts them away, but for whole groups of pictures."""
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.pts -= frames * packet.duration
                packet.dts -= frames * packet.duration
                packet.stream = stream
                written.mux(packet)
    return path


@pytest.mark.parametrize("name", ["closed.mp4", "b3.mp4", "open.mp4", "open-pyramid.mp4", "hevc-open.mp4"])
@pytest.mark.parametrize("frames", [1, 2, 5, 13, 20])
def test_a_beginning_cut_away_by_an_edit_list(name, frames, clips, tmp_path):
    path = trim(tmp_path / name, clips(name), frames)
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == ENTERED
    assert assert_whole(path, parts) == 0


def box_at(data, path, start=0):
    """Where a box of an MP4 begins, by its types from the outermost one on; the second of a type as "trak2"."""
    at = start
    while True:
        size, kind = struct.unpack_from(">I4s", data, at)
        if kind == path[0].encode():
            return at if len(path) == 1 else box_at(data, path[1:], at + 8)
        at += size


def with_edits(path, source, edits):
    """Write an MP4 anew with other edits: (duration in ms, first time in ticks of the video; -1 for nothing)."""
    data = bytearray(source.read_bytes())
    at = box_at(data, ["moov", "trak", "edts", "elst"])
    old = struct.unpack_from(">I", data, at)[0]
    entries = b"".join(struct.pack(">IiHH", *edit, 1, 0) for edit in edits)
    box = struct.pack(">I4sII", 16 + len(entries), b"elst", 0, len(edits)) + entries
    for outer in (["moov"], ["moov", "trak"], ["moov", "trak", "edts"]):  # behind the data, which stay where they are
        begin = box_at(data, outer)
        struct.pack_into(">I", data, begin, struct.unpack_from(">I", data, begin)[0] + len(box) - old)
    data[at : at + old] = box
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["closed.mp4", "b3.mp4", "open.mp4"])
@pytest.mark.parametrize(
    "edits",
    [
        [(3000, 2048)],
        [(1500, 20 * 1024), (2000, 40 * 1024)],
        [(2000, 40 * 1024), (2000, 0)],
        [(3000, 2048), (3000, 2048)],
        [(2000, -1), (3000, 10 * 1024)],
        [(60_000, 7 * 1024)],
        [(500, 2048), (1, 30 * 1024), (10, 3 * 1024), (2**32 - 1, 0)],
    ],
    ids=str,
)
def test_any_edit_list(name, edits, clips, tmp_path):
    path = with_edits(tmp_path / name, clips(name), edits)
    assert_whole(path, cut_video(str(path), seconds=0.1))


@pytest.mark.parametrize("name", ["open.mp4", "open-pyramid.mp4", "hevc-open.mp4"])
def test_rotation(name, clips, tmp_path):
    data = bytearray(clips(name).read_bytes())
    matrix = box_at(data, ["moov", "trak", "tkhd"]) + 8 + 40
    struct.pack_into(">9i", data, matrix, 0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30)  # a quarter turn
    path = tmp_path / name
    path.write_bytes(data)
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == ENTERED
    assert assert_whole(path, parts, every=3) == 0
    with open_part(str(path), parts[2]) as source:
        assert source.size_hw == (128, 96)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "avi"])
@pytest.mark.parametrize("frames", [1, 2])
def test_a_short_video(suffix, frames, tmp_path):
    path = encode(tmp_path / f"v.{suffix}", frames=frames)
    assert cut_video(str(path), seconds=0.01) == [VideoPart(0, None, None)]
    assert_whole(path, cut_video(str(path)))


def packets_of(path):
    """(position, size) of each packet of the video, in the order of the file."""
    with av.open(str(path)) as container:
        return [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("damaged", [12, 27, 36, 59])
@pytest.mark.parametrize("every", [1, 7])
def test_damage_inside_of_a_part(suffix, damaged, every, tmp_path):
    """Frames predicted from a damaged one show traces, which depend on what is decoded before; all others are equal."""
    path = encode(tmp_path / f"v.{suffix}", options={"bf": "0"})
    data = bytearray(path.read_bytes())
    position, size = packets_of(path)[damaged]
    data[position + 5 : position + size] = np.random.default_rng(0).bytes(size - 5)
    path.write_bytes(data)
    parts = cut_video(str(path), seconds=0.1)
    found, refused = joined(path, parts, every)
    expected = whole(path, every)
    assert found[1] == expected[1]
    assert [frame[:5] for frame in found[0]] == [frame[:5] for frame in expected[0]]
    spoilt = range(damaged, damaged // 12 * 12 + 12)
    if suffix != "ts":
        assert (refused, found[1][0][0]) == (damaged >= parts[1].first, damaged)
        assert {index for index, _ in found[1]} <= set(spoilt)
    assert [frame for frame in found[0] if frame[0] not in spoilt] == [
        frame for frame in expected[0] if frame[0] not in spoilt
    ]


@pytest.mark.parametrize("kind", ["mp4", "faststart.mp4", "mkv", "ts", "fragmented.mp4"])
@pytest.mark.parametrize("share", [0.35, 0.6, 0.97])
def test_a_truncated_file(kind, share, clips, tmp_path):
    source = clips({"fragmented.mp4": kind, "faststart.mp4": "open.mp4"}.get(kind, f"open.{kind}"))
    if kind == "faststart.mp4":
        with (
            av.open(str(source)) as read,
            av.open(str(tmp_path / "f.mp4"), "w", options={"movflags": "faststart"}) as to,
        ):
            stream = to.add_stream_from_template(read.streams.video[0])
            for packet in read.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    to.mux(packet)
        source = tmp_path / "f.mp4"
    path = tmp_path / f"v.{kind}"
    path.write_bytes(source.read_bytes()[: int(source.stat().st_size * share)])
    if kind == "mp4":  # its list is at the end
        with pytest.raises(SourceError, match="can't be read"):
            cut_video(str(path))
        return
    assert_whole(path, cut_video(str(path), seconds=0.1))


def without_pictures(path, source, numbers):
    """Write MPEG-4 video again, with packets that say "not coded" in the place of some."""
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for number, packet in enumerate(read.demux(video=0)):
            if packet.dts is None:
                continue
            new = av.Packet(b"\0\0\1\xb6\x51\x9e\x1f" if number in numbers else bytes(packet))
            new.pts, new.dts, new.duration, new.time_base = packet.dts, packet.dts, packet.duration, packet.time_base
            new.is_keyframe, new.stream = packet.is_keyframe, stream
            written.mux(new)
    return path


class TestDoubt:
    """Entries and files that can't be trusted."""

    @pytest.fixture
    def parts(self, clips):
        return cut_video(str(clips("open.mp4")), seconds=0.1)

    @pytest.mark.parametrize(
        ("change", "cause"),
        [
            ({"pts": 14337}, "its packet is not found"),
            ({"pts": 3072}, "its packet is not found"),
            ({"pts": -(2**62)}, "its packet is not found"),
            ({"pts": 2**62}, "its packet is not found"),
            ({"pts": 2**70}, "seeking to it fails"),
        ],
    )
    def test_an_entry_of_another_file(self, change, cause, parts, clips):
        part = replace(parts[1], entry=replace(parts[1].entry, **change))
        with pytest.raises(
            CannotEnterError, match=rf"entry must be the key frame {part.first} of '.*open\.mp4'.*{cause}"
        ):
            open_part(str(clips("open.mp4")), part)

    def test_a_part_that_is_longer_than_the_file(self, parts, clips):
        path = clips("open.mp4")
        with (
            open_part(str(path), replace(parts[-1], count=100)) as source,
            pytest.raises(CannotEnterError, match="the video ends at frame 60"),
        ):
            list(source)
        frames, bad_frames = read_part(path, replace(parts[-1], count=100, entry=None))
        assert ([frame[0] for frame in frames], bad_frames) == (list(range(parts[-1].first, 60)), [])

    def test_frames_that_are_refreshed_bit_by_bit_are_no_entry(self, clips):
        path = clips("refresh.mp4")
        with av.open(str(path)) as container:
            key = [packet for packet in container.demux(video=0) if packet.is_keyframe][2]
        entry = Entry(24, key.pts, 24)
        with pytest.raises(CannotEnterError, match="its picture is another, or refers to others"):
            open_part(str(path), VideoPart(24, 12, entry))

    @pytest.mark.parametrize("suffix", ["mp4", "mkv"])
    def test_packets_without_a_picture(self, suffix, tmp_path):
        """Such as DivX and Xvid write where nothing moves."""
        source = encode(tmp_path / "v.avi", "mpeg4", {"g": "12", "bf": "0"})
        path = without_pictures(tmp_path / f"v.{suffix}", source, (5, 30))
        frames, bad_frames = whole(path)
        assert (len(frames), bad_frames) == (58, [])
        assert_whole(path, cut_video(str(path), seconds=0.1))
        with open_source(path, start=40) as late:
            assert told(late) == frames[40:]
        key = frames[23]  # packet 24
        pts = round(key[1] * {"mp4": 10240, "mkv": 1000}[suffix])
        with (
            open_part(str(path), VideoPart(23, None, Entry(23, pts, 24))) as part,
            pytest.raises(CannotEnterError, match="a packet gives no picture"),
        ):
            list(part)

    @pytest.mark.parametrize("box", ["stsz", "stts", "ctts", "stss", "stsc", "stco"])
    def test_a_list_that_is_wrong(self, box, clips, tmp_path):
        """Numbers in the header are changed at random: what is cut, joins."""
        data = clips("open.mp4").read_bytes()
        at = box_at(data, ["moov", "trak", "mdia", "minf", "stbl", box])
        size = struct.unpack_from(">I", data, at)[0]
        path = tmp_path / "v.mp4"
        cut = 0
        for seed in range(12):
            rng = random.Random(seed)
            changed = bytearray(data)
            position = rng.randrange(at + 12, at + size - 3)
            struct.pack_into(">I", changed, position, rng.choice([0, 1, 2**16, 2**31, 2**32 - 1, rng.randrange(2**32)]))
            path.write_bytes(changed)
            try:
                expected = whole(path)
            except SourceError:
                continue
            parts = cut_video(str(path), seconds=0.1)
            cut += len(parts) > 1
            found, _ = joined(path, parts)
            if box not in ("ctts", "stco"):  # pictures of which no one knows when they are shown, or no pictures
                assert [frame[:5] for frame in found[0]] == [frame[:5] for frame in expected[0]]
                assert found[1] == expected[1]
        assert cut > 0 or box == "stsc"

    def test_an_absurd_number_of_packets(self, clips, monkeypatch):
        monkeypatch.setattr(keyframes, "_MOST_LISTED", 59)
        assert cut_video(str(clips("open.mp4"))) == [VideoPart(0, None, None)]


class TestWrongArguments:
    @pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "10", None])
    def test_a_wrong_length(self, seconds):
        with pytest.raises(InputError, match="seconds must be a positive number, got"):
            cut_video("v.mp4", seconds=seconds)

    @pytest.mark.parametrize("name", ["rtsp://camera/1", "/dev/video0"])
    def test_a_live_source(self, name):
        with pytest.raises(
            InputError, match=r"name must be the path of a video, got .*: cameras and URLs can't be cut"
        ):
            cut_video(name)

    def test_a_pipe(self, tmp_path):
        os.mkfifo(tmp_path / "v.mp4")
        with pytest.raises(SourceError, match=r"name must be the path of a video, '.*v\.mp4' is no file"):
            cut_video(str(tmp_path / "v.mp4"))

    def test_a_file_that_is_no_video(self, tmp_path):
        (tmp_path / "v.mp4").write_bytes(b"no video")
        with pytest.raises(SourceError, match=r"v\.mp4' can't be read"):
            cut_video(str(tmp_path / "v.mp4"))

    @pytest.mark.parametrize(
        "part",
        [
            VideoPart(-1, None, None),
            VideoPart(0, 0, None),
            VideoPart(5, 5, Entry(6, 0, 0)),
            VideoPart(5, 5, Entry(5, 0, -1)),
        ],
    )
    def test_a_wrong_part(self, part):
        with pytest.raises(InputError, match=r"part must be one of cut_video's, got VideoPart\(first="):
            open_part("v.mp4", part)

    def test_a_wrong_every(self):
        with pytest.raises(InputError, match="every must be a whole number of at least 1, got 0"):
            open_part("v.mp4", VideoPart(0, None, None), every=0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["b3.mp4", "open.mp4", "open-pyramid.mp4", "open.mkv", "hevc-open.mp4", "hevc-radl.mp4", "vp9.mp4"]
)
def test_parts_decoded_by_a_gpu(name, tmp_path):
    path = encode(tmp_path / name, *KINDS[name][:2], scale=2)
    parts = cut_video(str(path), seconds=0.1)
    assert kind_of(parts) == ENTERED
    frames = []
    for part in [*parts, *(replace(part, entry=None) for part in parts[1:])]:
        with open_part(str(path), part, every=3, decoding=Decoding("cuda:0")) as source:
            frames.append(told(source))
            assert (source.decoder, source.fallback, source.bad_frames) == ("cuda:0", None, [])
    entered, counted = frames[: len(parts)], frames[len(parts) :]
    assert [frame for part in entered for frame in part] == whole(path, every=3)[0]
    assert counted == entered[1:]


def test_every_is_counted_in_the_whole_file(clips):
    path = str(clips("closed.mp4"))
    with open_part(path, VideoPart(24, 12, None), every=10) as source:
        assert source.length == 1
        assert source.fps == 1
        assert [frame.index for frame in source] == [30]
    assert open_part(path, VideoPart(31, 9, None), every=10) is None
    with open_part(path, VideoPart(51, None, None), every=10) as source:  # its end is not known
        assert list(source) == []

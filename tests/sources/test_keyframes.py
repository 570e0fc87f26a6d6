"""Parts of videos, cut at key frames: joined, they are the whole video, byte for byte."""

import hashlib
import random
import struct
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from maskjet.errors import InputError, SourceError
from maskjet.sources import video_index
from maskjet.sources.decoding import Decoding
from maskjet.sources.frames import open_source
from maskjet.sources.keyframes import CannotEnterError, Entry, VideoPart, cut_video, open_part
from tests.sources.clips import CLIPS, damage, encode, moving, read, remux, write_clip

RATE = 10
VARYING, LATE = [index + index // 3 * 2 for index in range(40)], range(100_000, 100_040)  # in frames
IN_ONE_PART = {"vp8.webm", "endless.mp4", "refresh.mp4", "refresh.ts", "raw.h264", "b3.avi"}
QUICK = {"open.mp4", "open.mkv", "open.ts", "b3.flv", "hevc-open.mp4", "vp9.mp4", "mpeg4.avi", "interlaced.mp4"}
# Key frames followed by pictures that are shown before them.
WITH_LEADING = ["open.mp4", "open-pyramid.mp4", "open.mkv", "hevc-open.mp4", "hevc-open.mkv"]


def write(path, *, frames=60, times=None, **options):
    """A clip of H.264 with closed groups of pictures."""
    given = {"g": "12", "bf": "3", "sc_threshold": "0"} | options
    return encode(path, [moving(index) for index in range(frames)], options=given, times=times)


def told(frames):
    """Index, time, name, size and pixels of frames."""
    facts = ((frame.index, frame.time_s, frame.name, frame.image) for frame in frames)
    return [(*some, image.shape, hashlib.blake2b(image.tobytes()).digest()) for *some, image in facts]


def whole(path, every=1):
    source, frames = read(path, every=every)
    return told(frames), source.bad_frames


def read_part(path, part, every=1):
    """The part's frames and bad frames."""
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


def assert_whole(path, parts, *everies):
    """Check that the parts joined are the whole, and return how many could not be read from their entry."""
    assert parts[0].first == 0
    assert parts[-1].count is None
    assert [part.first + part.count for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert all(part.entry is None or part.entry.index == part.first for part in parts)
    frames, bad_frames = whole(path)
    all_refused = 0
    for every in everies or [1]:
        found, refused = joined(path, parts, every)
        assert found == ([frame for frame in frames if frame[0] % every == 0], bad_frames)
        all_refused += refused
    return all_refused


def is_cut(parts):
    """Whether there are several parts, all with entries; else there is one."""
    assert parts[0].entry is None
    assert all(part.entry is not None for part in parts[1:])
    return len(parts) > 1


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CLIPS]
)
def test_parts_joined_are_the_whole(name, clips):
    path = clips(name)
    parts = cut_video(str(path), seconds=0.1)
    assert is_cut(parts) != (name in IN_ONE_PART)
    if name in WITH_LEADING:
        assert any(part.entry.index > part.entry.packets for part in parts[1:])
    assert assert_whole(path, parts, 1, 7) == 0


def test_any_parts_are_the_frames_between_their_ends(clips):
    path = clips("open.mp4")
    entries = [part.entry for part in cut_video(str(path), seconds=0.1)[1:]]
    frames, _ = whole(path)
    ends = [*(entry.index for entry in entries), None]
    for number, entry in enumerate(entries):
        for end in ends[number + 1 :]:
            for given in (entry, None):
                part = VideoPart(entry.index, end and end - entry.index, given)
                assert read_part(path, part) == (frames[entry.index : end], [])


@pytest.mark.parametrize("seconds", [0.5, 2, 3.0, 100])
def test_parts_are_at_least_as_long_as_asked(seconds, clips):
    parts = cut_video(str(clips("b3.mp4")), seconds=seconds)
    lengths = [part.count / RATE for part in parts[:-1]]
    assert all(seconds <= length < seconds + 1.2 for length in lengths)
    if seconds == 2:
        assert_whole(clips("b3.mp4"), parts)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_files_with_many_key_frames(suffix, tmp_path):
    path = write(tmp_path / f"v.{suffix}", g="2", bf="0", frames=80)
    parts = cut_video(str(path), seconds=0.1)
    assert len(parts) == {"mp4": 40, "mkv": 40, "ts": 14}[suffix]
    assert_whole(path, parts if suffix == "ts" else [*parts[:5], replace(parts[5], count=None)])


def test_a_listed_video_is_not_read(tmp_path, monkeypatch):
    """Nor is it decoded; only its header and some packets around each cut are."""

    def bytes_read():
        return int(Path("/proc/self/io").read_text().split()[1])

    noise = [np.random.default_rng(seed).integers(0, 256, (240, 320, 3), np.uint8) for seed in range(10)]
    path = encode(tmp_path / "v.mp4", noise * 20, options={"g": "10", "qp": "1", "preset": "ultrafast"})
    monkeypatch.setattr(video_index._Index, "_read_keys", None)
    read_before, parts, read_after = bytes_read(), cut_video(str(path), seconds=9), bytes_read()
    assert [part.first for part in parts] == [0, 90, 180]
    assert read_after - read_before < path.stat().st_size / 2


@pytest.mark.parametrize(
    ("suffix", "times"),
    [*((suffix, VARYING) for suffix in ("mp4", "mkv", "ts")), ("mp4", range(-7, 33)), ("mp4", LATE)],
)
@pytest.mark.parametrize("b_frames", [0, 3])
def test_a_rate_that_varies_and_times_that_begin_anywhere(suffix, times, b_frames, tmp_path):
    path = write(tmp_path / f"v.{suffix}", bf=str(b_frames), times=times, frames=40)
    parts = cut_video(str(path), seconds=0.1)
    assert is_cut(parts)
    assert assert_whole(path, parts, 1, 7) == 0


@pytest.mark.parametrize("name", ["closed.mp4", "b3.mp4", "open.mp4", "open-pyramid.mp4", "hevc-open.mp4"])
def test_a_beginning_cut_away_by_an_edit_list(name, clips, tmp_path):
    for frames in (1, 5, 13, 20):
        path = remux(tmp_path / name, clips(name), earlier=frames)
        shown, bad_frames = whole(path)
        assert ([frame[0] for frame in shown], bad_frames) == (list(range(len(shown))), [])
        parts = cut_video(str(path), seconds=0.1)
        assert is_cut(parts)
        assert assert_whole(path, parts) == 0


def box_at(data, path, at=0):
    """Where a box of an MP4 begins, by its types from the outermost one on."""
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


@pytest.mark.parametrize(
    ("name", "edits"),
    [
        ("open.mp4", [(3000, 2048)]),
        ("b3.mp4", [(1500, 20 * 1024), (2000, 40 * 1024)]),
        ("open.mp4", [(2000, 40 * 1024), (2000, 0)]),
        ("closed.mp4", [(3000, 2048), (3000, 2048)]),
        ("open.mp4", [(2000, -1), (3000, 10 * 1024)]),
        ("b3.mp4", [(60_000, 7 * 1024)]),
        ("open.mp4", [(500, 2048), (1, 30 * 1024), (10, 3 * 1024), (2**32 - 1, 0)]),
    ],
)
def test_any_edit_list(name, edits, clips, tmp_path):
    path = with_edits(tmp_path / name, clips(name), edits)
    assert_whole(path, cut_video(str(path), seconds=0.1))


@pytest.mark.parametrize(("suffix", "frames"), [("mp4", 1), ("mp4", 2), ("mkv", 2), ("ts", 1), ("avi", 2)])
def test_a_short_video(suffix, frames, tmp_path):
    path = write(tmp_path / f"v.{suffix}", frames=frames)
    assert cut_video(str(path), seconds=0.01) == [VideoPart(0, None, None)]
    assert_whole(path, cut_video(str(path)))


@pytest.mark.parametrize(("damaged", "every"), [(12, 1), (27, 7), (36, 1), (59, 7)])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_damage_inside_of_a_part(suffix, damaged, every, tmp_path):
    """Frames predicted from a damaged one show traces, which depend on what is decoded before; all others are equal."""
    path = write(tmp_path / f"v.{suffix}", bf="0")
    damage(path, damaged)
    parts = cut_video(str(path), seconds=0.1)
    found, refused = joined(path, parts, every)
    expected = whole(path, every)
    assert found[1] == expected[1]
    assert [frame[:4] for frame in found[0]] == [frame[:4] for frame in expected[0]]
    spoilt = range(damaged, damaged // 12 * 12 + 12)
    if suffix != "ts":
        assert (refused, found[1][0][0]) == (damaged >= parts[1].first, damaged)
        assert {index for index, _ in found[1]} <= set(spoilt)
    unspoilt = [[frame for frame in frames if frame[0] not in spoilt] for frames, _ in (found, expected)]
    assert unspoilt[0] == unspoilt[1]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *(("open.mp4", 0.97), ("faststart.mp4", 0.35), ("faststart.mp4", 0.97), ("open.mkv", 0.35), ("open.mkv", 0.97)),
        *(("open.ts", 0.35), ("open.ts", 0.6), ("open.ts", 0.97), ("fragmented.mp4", 0.35), ("fragmented.mp4", 0.6)),
    ],
)
def test_a_truncated_file(name, share, clips, tmp_path):
    path, data = tmp_path / name, clips(name).read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    if name == "open.mp4":  # its list is at the end
        with pytest.raises(SourceError, match="can't be read"):
            cut_video(str(path))
    else:
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

    @pytest.mark.parametrize("pts", [14337, 3072, -(2**62), 2**70])
    def test_an_entry_of_another_file(self, pts, parts, clips):
        part = replace(parts[1], entry=replace(parts[1].entry, pts=pts))
        with pytest.raises(
            CannotEnterError, match=rf"entry must be the key frame {part.first} of '.*open\.mp4', at {pts} "
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
        pictures = [moving(index) for index in range(60)]
        source = encode(tmp_path / "v.avi", pictures, "mpeg4", {"g": "12", "bf": "0"})
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
            pytest.raises(CannotEnterError, match="a packet gives no whole picture"),
        ):
            list(part)

    @pytest.mark.parametrize("seeds", [(3, 4, 5, 7), pytest.param(range(12), marks=pytest.mark.slow)], ids=str)
    @pytest.mark.parametrize("box", ["stsz", "stts", "ctts", "stss", "stsc", "stco"])
    def test_a_list_that_is_wrong(self, box, seeds, clips, tmp_path):
        """Numbers in the header are changed at random: what is cut, joins."""
        data = clips("open.mp4").read_bytes()
        at = box_at(data, ["moov", "trak", "mdia", "minf", "stbl", box])
        size = struct.unpack_from(">I", data, at)[0]
        path = tmp_path / "v.mp4"
        cut = 0
        for seed in seeds:
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
                assert [frame[:4] for frame in found[0]] == [frame[:4] for frame in expected[0]]
                assert found[1] == expected[1]
        assert cut > 0 or box == "stsc"

    def test_an_absurd_number_of_packets(self, clips, monkeypatch):
        monkeypatch.setattr(video_index, "_MOST_PACKETS", 59)
        assert cut_video(str(clips("open.mp4"))) == [VideoPart(0, None, None)]


def test_wrong_arguments(tmp_path):
    (tmp_path / "v.mp4").write_bytes(b"no video")
    with pytest.raises(SourceError, match=r"v\.mp4' can't be read"):
        cut_video(str(tmp_path / "v.mp4"))
    for part in ((-1, None, None), (0, 0, None), (5, 5, Entry(6, 0, 0)), (5, 5, Entry(5, 0, -1))):
        with pytest.raises(InputError, match=r"part must be one of cut_video's, got VideoPart\(first="):
            open_part("v.mp4", VideoPart(*part))
    with pytest.raises(InputError, match="every must be a whole number of at least 1, got 0"):
        open_part("v.mp4", VideoPart(0, None, None), every=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["b3.mp4", "open-pyramid.mp4", "open.mkv", "hevc-open.mp4", "vp9.mp4"])
def test_parts_decoded_by_a_gpu(name, tmp_path):
    path = write_clip(tmp_path / name, scale=2)
    parts = cut_video(str(path), seconds=0.1)
    assert is_cut(parts)
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

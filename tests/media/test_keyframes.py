"""Parts of videos, cut at key frames: joined, they are the whole video, byte for byte."""

import functools
import hashlib
import random
from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest

from maskjet.media import keyframes
from maskjet.media.frames import open_source
from maskjet.media.keyframes import CannotEnterError, VideoPart, cut_video, open_part
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
    "mpeg4-b.mp4": ("mpeg4", {"g": "9", "bf": "2"}, COUNTED),
    "mpeg2-b.ts": ("mpeg2video", {"g": "9", "bf": "2"}, COUNTED),
    "mpeg4.avi": ("mpeg4", {"g": "9", "bf": "0"}, ONE),
    "fragmented.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1"}, ENTERED),
    "endless.mp4": ("libx264", {"g": "1000", "bf": "3"}, ONE),
    "refresh.mp4": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}, ONE),
    "refresh.ts": ("libx264", {"g": "12", "bf": "0", "intra-refresh": "1"}, ONE),
    "raw.h264": ("libx264", {"g": "12", "bf": "0"}, ONE),
    "animation.gif": ("gif", {}, ONE),
}


def encode(path, codec="libx264", options=None, *, frames=60, times=None, sound=False):
    """A video of a moving picture, shown at `times`, in frames."""
    file_options = {"movflags": "frag_keyframe+empty_moov"} if path.name.startswith("fragmented") else {}
    options = ({"g": "12", "bf": "3", "sc_threshold": "0"} if codec == "libx264" else {}) | (options or {})
    with av.open(str(path), "w", options=file_options) as container:
        stream = container.add_stream(codec, rate=RATE, options=options)
        stream.height, stream.width = 96, 128
        stream.pix_fmt = {"mjpeg": "yuvj420p", "gif": "rgb8"}.get(codec, "yuv420p")
        heard = container.add_stream("aac", rate=48000) if sound else None
        packets = []
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(moving(index), format="rgb24")
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


def test_a_listed_video_is_not_read(clips, monkeypatch):
    path = clips("closed.mp4")
    read = []
    seek = keyframes._seek
    monkeypatch.setattr(keyframes, "_seek", lambda *args, **more: read.append(args) or seek(*args, **more))
    assert len(cut_video(str(path), seconds=3.5)) == 2
    assert len(read) == 3

"""Annotated video's sound: copied, in sync, and never at the cost of a frame."""

import functools
import logging
import re
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from maskjet.errors import OutputError
from maskjet.outputs import audio
from maskjet.outputs.video import AnnotatedVideo
from maskjet.sources.frames import open_source
from tests.detections.test_detections import some_detections
from tests.outputs import outputs
from tests.outputs.outputs import names
from tests.sources.clips import SOUND_RATE, encode, join, packets_of, picture, read, write_video

pytestmark = pytest.mark.usefixtures("in_folder")
CLICK_S = 2.0


def write_with_sound(path, *, codec="aac", sound_s=4.0):
    """Video of 4 s at 10 frames/s with a click at 2 s."""
    sound = np.zeros(round(sound_s * SOUND_RATE), np.float32)
    sound[round(CLICK_S * SOUND_RATE) : round((CLICK_S + 0.02) * SOUND_RATE)] = 0.9
    images = [picture(seed=index) for index in range(40)]
    return encode(path, images, options={"g": "5", "bf": "0"}, sound=sound, sound_codec=codec)


@pytest.fixture(scope="module")
def heard_video(tmp_path_factory):
    """Such a video by its name and codec, written once."""
    return functools.cache(
        lambda name="v.mp4", **options: write_with_sound(tmp_path_factory.mktemp("heard") / name, **options)
    )


def annotate(source, out, **options):
    count = outputs.annotate(source, out, **options)
    shown, frames = read(out)
    assert (len(frames), shown.bad_frames) == (count, [])
    return count


def heard(path, track=0):
    """The samples of a video's sound, from time 0 on."""
    samples = np.zeros(10 * SOUND_RATE, np.float32)
    with av.open(str(path)) as container:
        for frame in container.decode(audio=track):
            at = round(frame.time * SOUND_RATE)
            piece = frame.to_ndarray().astype(np.float32).reshape(-1)
            piece = piece / 32768 if frame.format.name.startswith("s16") else piece
            begin = max(-at, 0)
            samples[at + begin : at + len(piece)] = piece[begin:]
    return samples


def click_s(path, track=0):
    return int(np.argmax(np.abs(heard(path, track)) > 0.2)) / SOUND_RATE


def end_s(path):
    with av.open(str(path)) as container:
        return max(float((p.pts + p.duration) * p.time_base) for p in container.demux(audio=0) if p.size)


def has_sound(path):
    with av.open(str(path)) as container:
        return bool(container.streams.audio)


@pytest.mark.parametrize(
    ("name", "codec", "out"),
    [
        ("v.mp4", "aac", "out.mp4"),
        ("v.mov", "pcm_s16le", "out.mov"),
        ("v.mkv", "libopus", "out.webm"),
        ("v.mkv", "libopus", "out.mp4"),
        ("v.mkv", "flac", "out.mkv"),
        ("v.mp4", "libmp3lame", "out.mov"),
    ],
)
def test_sound_is_copied_in_sync(name, codec, out, heard_video):
    source = heard_video(name, codec=codec)
    assert annotate(source, out) == 40
    assert click_s(source) == pytest.approx(CLICK_S, abs=0.03)
    assert click_s(out) == pytest.approx(click_s(source), abs=0.03)
    with av.open(str(source)) as old, av.open(str(out)) as new:
        assert old.streams.audio[0].codec.canonical_name == new.streams.audio[0].codec.canonical_name
        assert new.streams.video[0].codec.canonical_name == ("vp9" if "webm" in out else "h264")
    assert end_s(out) == pytest.approx(4.0, abs=0.08)
    assert names() == [out]


@pytest.mark.parametrize(
    ("options", "click", "end"),
    [
        ({"start": 15}, 0.5, 2.5),
        ({"start": "1.5s", "limit": 10}, 0.5, 1.0),
        ({"every": 4}, 2.0, 4.0),
        ({"every": 5, "start": 10, "limit": 4}, 1.0, 2.0),
    ],
)
def test_part_of_a_video_has_its_part_of_the_sound(options, click, end, heard_video):
    annotate(heard_video(), "out.mp4", **options)
    assert click_s("out.mp4") == pytest.approx(click, abs=0.04)
    assert end_s("out.mp4") == pytest.approx(end, abs=0.08)
    (_, shown), (_, given) = read("out.mp4"), read(heard_video(), **options)
    times = [frame.time_s for frame in given]
    np.testing.assert_allclose([frame.time_s for frame in shown], np.array(times) - times[0], atol=2e-3)


@pytest.mark.parametrize(("out", "kept"), [("out.mp4", [0, 1]), ("out.mkv", [0, 1]), ("out.webm", [1])])
def test_all_tracks_are_copied(out, kept, heard_video, caplog):
    german, english = heard_video(), heard_video("v.mkv", codec="libopus")
    kinds = [Disposition(0), Disposition.default]
    source = join("v.mkv", (german, "video", kinds[1]), (german, "audio", kinds[0]), (english, "audio", kinds[1]))
    with caplog.at_level(logging.WARNING):
        annotate(source, out, start=10)
    with av.open(str(source)) as old, av.open(out) as new:
        before, after = old.streams.audio, new.streams.audio
        assert [each.codec.canonical_name for each in after] == [before[track].codec.canonical_name for track in kept]
        assert [each.disposition for each in after] == [kinds[track] for track in kept]
        assert [each.language for each in after] == [("deu", "eng")[track] for track in kept]
    for track in range(len(kept)):
        assert click_s(out, track) == pytest.approx(CLICK_S - 1, abs=0.04)
    lost = ["audio of 'out.webm' track 0 is left out: webm takes no aac, .mkv does"]
    assert caplog.messages == lost * (2 - len(kept))


def test_a_container_that_does_not_take_the_codec_goes_without(heard_video, caplog):
    with caplog.at_level(logging.WARNING):
        annotate(heard_video(), "out.webm", limit=12)
    assert not has_sound("out.webm")
    assert re.fullmatch(r"audio of '.*out\.webm' is left out: webm takes no aac, \.mkv does", caplog.messages[0])


def test_a_silent_source_is_no_warning(caplog):
    annotate(write_video("s.mp4", frames=3), "out.mp4")
    assert not has_sound("out.mp4")
    assert caplog.messages == []


@pytest.mark.parametrize(("suffix", "sound_s"), [("mp4", 0.5), ("mkv", 0.5), ("mkv", 3.0)])
def test_sound_that_ends_early(suffix, sound_s, heard_video):
    assert annotate(heard_video("v.mkv", sound_s=sound_s), f"out.{suffix}") == 40
    assert end_s(f"out.{suffix}") == pytest.approx(sound_s, abs=0.08)


def test_sound_that_ended_before_the_first_frame(heard_video):
    assert annotate(heard_video("v.mkv", sound_s=0.5), "out.mp4", start=20) == 20
    assert not has_sound("out.mp4")


@pytest.mark.parametrize(("suffix", "count"), [("mp4", 1), ("mp4", 21), ("mkv", 21), ("mkv", 41)])
def test_damaged_sound_costs_no_frame(suffix, count, heard_video):
    whole, source, random = heard_video(f"v.{suffix}"), Path(f"damaged.{suffix}"), np.random.default_rng(count)
    data = bytearray(whole.read_bytes())
    for position, size in random.permutation(packets_of(whole, audio=0))[:count]:
        data[position + 10 : position + size] = random.bytes(max(int(size) - 10, 0))  # behind a Matroska block's header
    source.write_bytes(data)
    assert annotate(source, f"out.{suffix}") == 40


def test_sound_with_times_out_of_order_costs_no_frame(heard_video, monkeypatch):
    random, packets = np.random.default_rng(0), audio._packets

    def shuffled(*args):
        for packet in packets(*args):
            if packet.pts is not None and random.random() < 0.3:
                packet.pts, packet.dts = packet.pts + int(random.integers(-900, 900)), None
            yield packet

    monkeypatch.setattr(audio, "_packets", shuffled)
    assert annotate(heard_video("v.mkv"), "out.mp4") == 40


def test_a_run_that_breaks_off_leaves_a_playable_file_with_sound(heard_video):
    with open_source(heard_video()) as opened:
        sink = AnnotatedVideo("out.mp4", source=opened)
        for frame in opened:
            sink.write(frame, some_detections(1))
        sink.abandon()
    assert click_s("out.partial.mp4") == pytest.approx(CLICK_S, abs=0.03)
    assert len(list(open_source("out.partial.mp4"))) == 40


@pytest.mark.parametrize(("codec", "suffix"), [("aac", "mp4"), ("aac", "mkv"), ("mp2", "mp4")])
def test_a_transport_streams_sound(codec, suffix, heard_video):
    assert annotate(heard_video("v.ts", codec=codec), f"out.{suffix}") == 40
    assert click_s(f"out.{suffix}") == pytest.approx(CLICK_S, abs=0.05)


def test_a_disk_that_is_full_while_sound_is_written_is_an_error(heard_video, monkeypatch):
    def full(*_):
        raise av.error.OSError(28, "No space left on device")

    with open_source(heard_video()) as opened:
        sink = AnnotatedVideo("out.mp4", source=opened)
        for frame in opened:
            sink.write(frame, some_detections(1))
        monkeypatch.setattr(audio.AudioTrack, "mux_until", full)
        with pytest.raises(OutputError, match=r"'.*out\.mp4' is not: No space left on device"):
            sink.close()
        sink.abandon()
    assert names() == ["out.partial.mp4"]

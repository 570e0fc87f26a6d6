"""Annotated video's sound: copied, in sync, and never at the cost of a frame."""

import logging
import re

import av
import numpy as np
import pytest

from maskjet.errors import OutputError
from maskjet.media.expansion import expand_sources
from maskjet.media.frames import open_source
from maskjet.media.sinks import AnnotatedVideo, check_outputs
from maskjet.media.sinks.audio import AudioTrack
from tests.media.test_frames import picture, write_video
from tests.test_detections import some_detections

RATE = 48_000
CLICK_S = 2.0


def write_with_sound(path, *, codec="aac", frames=40, sound_s=4.0, video="libx264"):
    """Video at 10 frames/s with a click at 2 s."""
    sound = np.zeros(round(sound_s * RATE), np.float32)
    sound[round(CLICK_S * RATE) : round((CLICK_S + 0.02) * RATE)] = 0.9
    with av.open(str(path), "w") as container:
        stream = container.add_stream(video, rate=10, options={"g": "5", "bf": "0"} if video == "libx264" else {})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        track = container.add_stream(codec, rate=RATE, layout="mono", options={"strict": "-2"})
        context = track.codec_context
        resampler = av.AudioResampler(format=context.format, layout=context.layout, rate=RATE, frame_size=0)
        for index in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(seed=index), format="rgb24")))
            piece = sound[index * RATE // 10 : (index + 1) * RATE // 10]
            if len(piece):
                heard = av.AudioFrame.from_ndarray(piece[None], format="flt", layout="mono")
                heard.sample_rate, heard.pts = RATE, index * RATE // 10
                for one in resampler.resample(heard):
                    container.mux(track.encode(one))
        container.mux(track.encode(None))
        container.mux(stream.encode(None))
    return path


def annotate(source, out, **options):
    with open_source(source, **options) as opened, check_outputs([str(out)], [opened]).open() as sinks:
        count = 0
        for frame in opened:
            sinks.write(frame, some_detections(1))
            count += 1
    with open_source(out) as shown:
        assert len(list(shown)) == count
        assert shown.bad_frames == []
    return count


def heard(path):
    """The samples of a video's sound, from time 0 on."""
    samples = np.zeros(10 * RATE, np.float32)
    with av.open(str(path)) as container:
        for frame in container.decode(audio=0):
            at = round(frame.time * RATE)
            piece = frame.to_ndarray().astype(np.float32).reshape(-1)
            piece = piece / 32768 if frame.format.name.startswith("s16") else piece
            begin = max(-at, 0)
            samples[at + begin : at + len(piece)] = piece[begin:]
    return samples


def click_s(path):
    return int(np.argmax(np.abs(heard(path)) > 0.2)) / RATE


def end_s(path):
    with av.open(str(path)) as container:
        return max(float((p.pts + p.duration) * p.time_base) for p in container.demux(audio=0) if p.size)


def has_sound(path):
    with av.open(str(path)) as container:
        return bool(container.streams.audio)


@pytest.mark.parametrize("with_audio", [True, False])
def test_a_source_that_is_opened_in_its_turn_has_sound(with_audio, tmp_path):
    found = expand_sources(str(write_with_sound(tmp_path / "a.mp4")))
    outputs = check_outputs([str(tmp_path / "o.mp4")], found, with_audio=with_audio)
    with outputs.open_in_turn() as sinks, found[0].open() as opened:
        sinks.begin(0, opened)
        for frame in opened:
            sinks.write(frame, some_detections(1))
    assert has_sound(tmp_path / "o.mp4") == with_audio


@pytest.mark.parametrize(
    ("source", "codec", "out"),
    [
        ("v.mp4", "aac", "out.mp4"),
        ("v.mp4", "aac", "out.mkv"),
        ("v.mov", "pcm_s16le", "out.mov"),
        ("v.mkv", "libopus", "out.webm"),
        ("v.mkv", "libopus", "out.mp4"),
        ("v.mkv", "flac", "out.mkv"),
        ("v.mp4", "libmp3lame", "out.mov"),
    ],
)
def test_sound_is_copied_in_sync(source, codec, out, tmp_path):
    write_with_sound(tmp_path / source, codec=codec)
    assert annotate(tmp_path / source, tmp_path / out) == 40
    assert click_s(tmp_path / source) == pytest.approx(CLICK_S, abs=0.03)
    assert click_s(tmp_path / out) == pytest.approx(click_s(tmp_path / source), abs=0.03)
    with av.open(str(tmp_path / source)) as old, av.open(str(tmp_path / out)) as new:
        assert old.streams.audio[0].codec.canonical_name == new.streams.audio[0].codec.canonical_name
    assert end_s(tmp_path / out) == pytest.approx(4.0, abs=0.08)
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize(
    ("options", "click", "end"),
    [
        ({"start": 15}, 0.5, 2.5),
        ({"start": "1.5s", "limit": 10}, 0.5, 1.0),
        ({"every": 4}, 2.0, 4.0),
        ({"every": 5, "start": 10, "limit": 4}, 1.0, 2.0),
    ],
)
def test_part_of_a_video_has_its_part_of_the_sound(options, click, end, tmp_path):
    source = write_with_sound(tmp_path / "v.mp4")
    annotate(source, tmp_path / "out.mp4", **options)
    assert click_s(tmp_path / "out.mp4") == pytest.approx(click, abs=0.04)
    assert end_s(tmp_path / "out.mp4") == pytest.approx(end, abs=0.08)
    with open_source(tmp_path / "out.mp4") as shown, open_source(source, **options) as given:
        times = [frame.time_s for frame in given]
        np.testing.assert_allclose([frame.time_s for frame in shown], np.array(times) - times[0], atol=2e-3)


def test_a_container_that_does_not_take_the_codec_goes_without(tmp_path, caplog):
    source = write_with_sound(tmp_path / "v.mp4", codec="aac")
    with caplog.at_level(logging.WARNING):
        annotate(source, tmp_path / "out.webm")
    assert not has_sound(tmp_path / "out.webm")
    assert re.fullmatch(r"audio of '.*out\.webm' is left out: webm takes no aac, \.mkv does", caplog.messages[0])


def test_sound_can_be_left_out_and_a_silent_source_is_no_warning(tmp_path, caplog):
    source = write_with_sound(tmp_path / "v.mp4")
    silent = write_video(tmp_path / "s.mp4", frames=3)
    with (
        open_source(source) as opened,
        AnnotatedVideo(str(tmp_path / "o.mp4"), source=opened, with_audio=False) as sink,
    ):
        sink.write(next(iter(opened)), some_detections(1))
    annotate(silent, tmp_path / "out.mp4")
    assert not has_sound(tmp_path / "o.mp4")
    assert not has_sound(tmp_path / "out.mp4")
    assert caplog.messages == []


@pytest.mark.parametrize("sound_s", [0.5, 3.0])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_sound_that_ends_early(suffix, sound_s, tmp_path):
    source = write_with_sound(tmp_path / "v.mkv", sound_s=sound_s)
    assert annotate(source, tmp_path / f"out.{suffix}") == 40
    assert end_s(tmp_path / f"out.{suffix}") == pytest.approx(sound_s, abs=0.08)


def test_sound_that_ended_before_the_first_frame(tmp_path):
    source = write_with_sound(tmp_path / "v.mkv", sound_s=0.5)
    assert annotate(source, tmp_path / "out.mp4", start=20) == 20
    assert not has_sound(tmp_path / "out.mp4")


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("seed", range(6))
def test_damaged_sound_costs_no_frame(suffix, seed, tmp_path):
    source = write_with_sound(tmp_path / f"v.{suffix}")
    with av.open(str(source)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(audio=0) if packet.size]
    data, random = bytearray(source.read_bytes()), np.random.default_rng(seed)
    for position, size in random.permutation(packets)[: 1 + 20 * (seed % 3)]:
        data[position + 10 : position + size] = random.bytes(max(int(size) - 10, 0))  # behind a Matroska block's header
    source.write_bytes(data)
    assert annotate(source, tmp_path / f"out.{suffix}") == 40


def test_sound_with_times_out_of_order_costs_no_frame(tmp_path, monkeypatch):
    source = write_with_sound(tmp_path / "v.mkv")
    random = np.random.default_rng(0)
    import maskjet.media.sinks.audio as audio

    packets = audio._packets

    def shuffled(*args):
        for packet in packets(*args):
            if packet.pts is not None and random.random() < 0.3:
                packet.pts, packet.dts = packet.pts + int(random.integers(-900, 900)), None
            yield packet

    monkeypatch.setattr(audio, "_packets", shuffled)
    assert annotate(source, tmp_path / "out.mp4") == 40


def test_a_run_that_breaks_off_leaves_a_playable_file_with_sound(tmp_path):
    source = write_with_sound(tmp_path / "v.mp4")
    with open_source(source) as opened:
        sink = AnnotatedVideo(str(tmp_path / "out.mp4"), source=opened)
        for frame in opened:
            sink.write(frame, some_detections(1))
        sink.abandon()
    assert click_s(tmp_path / "out.partial.mp4") == pytest.approx(CLICK_S, abs=0.03)
    with open_source(tmp_path / "out.partial.mp4") as shown:
        assert len(list(shown)) == 40


@pytest.mark.parametrize("codec", ["aac", "mp2"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_transport_streams_sound(codec, suffix, tmp_path):
    source = write_with_sound(tmp_path / "v.ts", codec=codec)
    assert annotate(source, tmp_path / f"out.{suffix}") == 40
    assert has_sound(tmp_path / f"out.{suffix}")
    assert click_s(tmp_path / f"out.{suffix}") == pytest.approx(CLICK_S, abs=0.05)


@pytest.mark.parametrize("name", ["v.mp4", "v.webm"])
def test_webm(name, tmp_path):
    codec, video = ("libopus", "libvpx-vp9") if name == "v.webm" else ("aac", "libx264")
    source = write_with_sound(tmp_path / name, codec=codec, video=video, frames=12)
    assert annotate(source, tmp_path / "out.webm") == 12
    with av.open(str(tmp_path / "out.webm")) as container:
        assert container.format.name == "matroska,webm"
        assert container.streams.video[0].codec.canonical_name == "vp9"
        assert bool(container.streams.audio) == (name == "v.webm")


def test_a_disk_that_is_full_while_sound_is_written_is_an_error(tmp_path, monkeypatch):
    source = write_with_sound(tmp_path / "v.mp4")

    def full(*_):
        raise av.error.OSError(28, "No space left on device")

    with open_source(source) as opened:
        sink = AnnotatedVideo(str(tmp_path / "out.mp4"), source=opened)
        for frame in opened:
            sink.write(frame, some_detections(1))
        monkeypatch.setattr(AudioTrack, "mux_until", full)
        with pytest.raises(OutputError, match=r"'.*out\.mp4' is not: No space left on device"):
            sink.close()
        sink.abandon()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.partial.mp4", "v.mp4"]

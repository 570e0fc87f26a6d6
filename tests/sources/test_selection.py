"""Every Nth frame, from a start, up to a limit: the frames are those of the whole source, bit for bit."""

import functools

import numpy as np
import pytest
from PIL import Image as PILImage

from maskjet.errors import InputError, SourceError
from maskjet.sources import conversion
from maskjet.sources.frames import ListSource, open_source
from maskjet.sources.selection import BeyondEndError, select_frames
from maskjet.sources.video_decoder import VideoDecoder
from tests.sources.clips import assert_same, damage, encode, moving, packets_of, picture, read, write_image, write_video

COUNT = 60
# Bidirectional frames, open groups of pictures, gradual refresh without key frames: each starts late in its own way.
SKIPS = {
    **dict.fromkeys(["b3.mp4", "open.mp4", "open.mkv", "open.ts", "hevc-open.mp4", "mpeg4-b.mp4", "mpeg2-b.ts"], True),
    "refresh.mp4": None,
    "endless.mp4": False,
    "mpeg4.avi": None,
    "b3.avi": False,
    "vp9.mp4": True,
    "vp8.webm": False,
}


@pytest.fixture(scope="module")
def whole(clips):
    """A clip, and the frames that decoding all of it gives."""
    return functools.cache(lambda name: (clips(name), list(open_source(clips(name)))))


@pytest.mark.parametrize(("name", "skips"), SKIPS.items())
def test_starting_late_equals_decoding_all(name, skips, whole, monkeypatch):
    path, frames = whole(name)
    assert len(frames) == COUNT
    decoded, decode = [], VideoDecoder._decode
    monkeypatch.setattr(VideoDecoder, "_decode", lambda *given: decoded.append(given) or decode(*given))
    for start in (1, 30, 37, 48, 59):
        decoded.clear()
        source, found = read(path, start=start)
        assert_same(found, frames[start:])
        assert (source.bad_frames, source.frames_seen) == ([], COUNT)
        if skips is not None and start >= 37:
            assert (len(decoded) < COUNT - 5) == skips


def test_a_start_behind_an_entry_that_gives_no_picture_is_found_from_the_beginning(tmp_path):
    options = {"x264-params": "intra-refresh=1:keyint=12"}
    path = encode(tmp_path / "a.mp4", [moving(index) for index in range(52)], "libx264", options)
    frames = list(open_source(path))
    for start in (38, 39, 45, 51):
        assert_same(read(path, start=start)[1], frames[start:])


@pytest.mark.parametrize("name", ["open.mp4", "open.ts", "vp9.mp4", "mpeg4.avi", "b3.avi"])
def test_a_start_in_seconds_is_after_the_first_frame(name, whole):
    path, frames = whole(name)
    for start in ("3.7s", "0:03.65", "00:00:03.61"):
        source, found = read(path, start=start, limit=5)
        assert_same(found, frames[37:42])
        assert source.length == 5


def test_every_start_and_limit(whole):
    path, frames = whole("b3.mp4")
    for every, start, limit in [(1, 0, 4), (7, 0, None), (7, 3, None), (10, 25, 3), (100, 2, 9)]:
        source, found = read(path, every=every, start=start, limit=limit)
        expected = frames[start::every][:limit]
        assert_same(found, expected)
        assert (source.length, source.fps) == (len(expected), 10 / every)


def test_frames_left_out_are_not_converted(clips, monkeypatch):
    converted, guess = [], conversion.guess_matrix
    monkeypatch.setattr(conversion, "guess_matrix", lambda picture: converted.append(1) or guess(picture))
    assert len(list(open_source(clips("endless.mp4"), every=20, start=5))) == len(converted) == 3


def test_a_varying_rate(tmp_path):
    times = [index + index // 3 * 2 for index in range(40)]
    path = encode(tmp_path / "v.mp4", [moving(index) for index in range(40)], options={"g": "5"}, times=times)
    frames = list(open_source(path))
    for start in (33, f"{frames[33].time_s}s"):
        assert_same(list(open_source(path, start=start)), frames[33:])


@pytest.mark.parametrize(("suffix", "damaged"), [("mp4", 3), ("mp4", 31), ("mkv", 31), ("ts", 3)])
def test_damage_before_the_start_shifts_no_index(suffix, damaged, tmp_path):
    path = write_video(tmp_path / f"v.{suffix}", frames=50, size=(96, 128))
    damage(path, damaged)
    frames = [frame for frame in open_source(path) if frame.index >= 40]
    source, found = read(path, start=40)
    assert_same(found, frames)
    assert source.bad_frames == []


def test_packets_missing_before_the_start_are_counted(tmp_path):
    path = write_video(tmp_path / "v.mkv", frames=50, size=(96, 128))
    packets, data = packets_of(path), path.read_bytes()
    path.write_bytes(data[: packets[12][0]] + bytes(packets[14][0] - packets[12][0]) + data[packets[14][0] :])
    frames = [frame for frame in open_source(path) if frame.index >= 40]
    assert_same(list(open_source(path, start=40)), frames)


class TestLists:
    def test_images_left_out_are_not_read_and_a_bad_one_on_the_way_is_told(self, tmp_path):
        for number in range(10):
            write_image(tmp_path / f"{number}.png", picture(seed=number))
        (tmp_path / "4.png").write_bytes(b"no image")
        frames = list(open_source(tmp_path))
        source, found = read(tmp_path, every=3, start=2)
        assert_same(found, [frame for frame in frames if frame.index in (2, 5, 8)])
        assert (source.length, source.bad_frames, source.frames_seen) == (3, [], 10)
        source, found = read(tmp_path, every=2, limit=2, start=2)
        assert [frame.index for frame in found] == [2, 6]
        assert [index for index, _ in source.bad_frames] == [4]

    def test_a_list_of_everything(self, tmp_path):
        # Written once: libx264 does not write the same bytes each time.
        first, second = (write_video(tmp_path / name, frames=12) for name in ("a.mp4", "b.mp4"))
        image = write_image(tmp_path / "a.png", picture())

        def items():
            opened = open_source([picture(seed=1), picture(seed=2)])
            return [PILImage.fromarray(picture()), first, opened, second, image, [picture()] * 3]

        frames = list(open_source(items()))
        assert [frame.index for frame in frames] == list(range(31))
        assert [frame.time_s for frame in frames[:3]] == [None, 0.0, 0.1]
        names = [frame.name for frame in frames]
        for every, start, limit in [(3, 0, None), (3, 4, None), (5, 14, 3), (2, 1, 4), (1, 29, 1)]:
            found = list(open_source(items(), every=every, start=start, limit=limit))
            of_videos = [frame for frame in found if "mp4" in frame.name]
            assert [names.index(frame.name) for frame in of_videos] == [frame.index for frame in of_videos]
            for frame, expected in zip(found, frames[start::every][:limit], strict=True):
                assert frame.index == expected.index
                np.testing.assert_array_equal(frame.image, expected.image)

    def test_a_generator_is_asked_for_no_more_than_the_limit(self):
        asked = []

        def images():
            for seed in range(100):
                asked.append(seed)
                yield picture(seed=seed)

        assert [frame.index for frame in open_source(images(), every=2, limit=3)] == [0, 2, 4]
        assert asked == list(range(5))


class TestWrongArguments:
    @pytest.mark.parametrize("start", [-1, 1.5, True, "x", "1:60", "1:75:00", "-1s", "s", "", "٣", None, "1e3s", "1 s"])
    def test_a_wrong_start(self, start):
        with pytest.raises(InputError, match=r"start must be a frame's index from 0, or a time like '12\.5s', '1:02'"):
            select_frames(start=start)

    def test_a_wrong_number(self):
        for name, value in (("every", 0), ("every", "3"), ("limit", 0), ("limit", True)):
            with pytest.raises(InputError) as caught:
                open_source(picture(), **{name: value})
            assert caught.value.argument == name

    @pytest.mark.parametrize(
        ("text", "seconds"), [("12.5s", 12.5), (".5s", 0.5), ("1:02", 62), ("1:02:03.5", 3723.5), ("90:00", 5400)]
    )
    def test_times(self, text, seconds):
        assert select_frames(start=text).start_s == seconds

    def test_a_start_beyond_the_end(self, clips, tmp_path):
        for start in (60, 1000, "6s", "1:00:00"):
            with pytest.raises(BeyondEndError, match=r"start must be before the end of '.*', which has 60 frames, got"):
                open_source(clips("b3.mp4"), start=start)
        for source in (write_image(tmp_path / "a.png", picture()), tmp_path, picture()):
            with pytest.raises(SourceError, match="which has 1 frame, got 1"):
                open_source(source, start=1)
        with pytest.raises(SourceError, match="which has 2 frames, got 7"):
            list(open_source(iter([picture()] * 2), start=7))

    def test_of_what_is_nothing_selected(self):
        with pytest.raises(InputError, match="every, start and limit must be given when 'none' is opened"):
            open_source(ListSource([], "none"), every=2)
        with pytest.raises(InputError, match="start must be a number of frames for 'list'"):
            open_source([picture()], start="1s")

    def test_a_live_source_has_no_start(self, tmp_path, monkeypatch):
        path = write_video(tmp_path / "v.mp4", frames=6)
        monkeypatch.setattr("maskjet.sources.opened_video.is_camera", lambda _: True)
        with pytest.raises(InputError, match=r"start must be 0 for '.*v\.mp4', which is live, got 3"):
            open_source(path, start=3)
        assert [frame.index for frame in open_source(path, every=2, limit=2)] == [0, 2]

"""Every Nth frame, from a start, up to a limit: the frames are those of the whole source, bit for bit."""

from fractions import Fraction

import av
import numpy as np
import pytest

from maskjet.errors import InputError, SourceError
from maskjet.media import videos as videos_module
from maskjet.media.frames import ListSource, VideoSource, open_source
from maskjet.media.selection import BeyondEndError, select_frames
from tests.media.test_frames import picture, write_image, write_video

COUNT = 60
# Bidirectional frames, open groups of pictures, gradual refresh without key frames: each starts late in its own way.
KINDS = {
    "h264-b.mp4": ("libx264", {"g": "12", "bf": "3", "sc_threshold": "0"}, True),
    "h264-open.mp4": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}, True),
    "h264-open.mkv": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}, True),
    "h264-open.ts": ("libx264", {"g": "12", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}, True),
    "h264-refresh.mp4": ("libx264", {"g": "12", "intra-refresh": "1", "bf": "0"}, None),
    "h264-endless.mp4": ("libx264", {"g": "1000", "bf": "3"}, False),
    "hevc-open.mp4": ("libx265", {"g": "12", "x265-params": "open-gop=1:scenecut=0:log-level=none:bframes=4"}, True),
    "mpeg4-b.mp4": ("mpeg4", {"g": "9", "bf": "2"}, True),
    "mpeg4.avi": ("mpeg4", {"g": "9", "bf": "0"}, None),
    "mpeg2-b.ts": ("mpeg2video", {"g": "9", "bf": "2"}, True),
    "vp9.webm": ("libvpx-vp9", {"g": "12", "deadline": "realtime", "cpu-used": "8"}, True),
    "vp8.webm": ("libvpx", {"g": "12", "deadline": "good", "auto-alt-ref": "1", "lag-in-frames": "10"}, False),
}


def moving(index):
    """A picture that moves, so that a frame predicted from a wrong one differs."""
    y, x = np.mgrid[0:96, 0:128]
    image = np.stack([x + 3 * index, y * 2 + index, (x ^ y) + 5 * index], axis=-1) % 256
    image[20:40, (4 * index) % 100 : (4 * index) % 100 + 20] = (250, 240, 30)
    return image.astype(np.uint8)


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Each kind of clip, made when it is first asked for, with the frames that decoding all of it gives."""
    made, folder = {}, tmp_path_factory.mktemp("clips")

    def clip(name):
        if name not in made:
            codec, options, _ = KINDS[name]
            with av.open(str(folder / name), "w") as container:
                stream = container.add_stream(codec, rate=10, options=options)
                stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
                for index in range(COUNT):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(moving(index), format="rgb24")))
                container.mux(stream.encode(None))
            made[name] = folder / name, list(open_source(folder / name))
        return made[name]

    return clip


def assert_equal(actual, expected):
    assert [(frame.index, frame.time_s, frame.name) for frame in actual] == [
        (frame.index, frame.time_s, frame.name) for frame in expected
    ]
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one.image, other.image)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("start", [1, 30, 37, 48, 59])
def test_starting_late_equals_decoding_all(name, start, clips, monkeypatch):
    path, frames = clips(name)
    assert len(frames) == COUNT
    decoded = []
    decode = VideoSource._decode
    monkeypatch.setattr(
        VideoSource, "_decode", lambda self, packet: decoded.append(packet.size) or decode(self, packet)
    )
    with open_source(path, start=start) as source:
        assert_equal(list(source), frames[start:])
    assert (source.bad_frames, source.index_is_exact, source.frames_seen) == ([], True, COUNT)
    skips = KINDS[name][2]
    if skips is not None and start >= 37:
        assert (len(decoded) < COUNT - 5) == skips


@pytest.mark.parametrize("name", ["h264-open.mp4", "h264-open.ts", "vp9.webm", "mpeg4.avi"])
@pytest.mark.parametrize("start", ["3.7s", "0:03.65", "00:00:03.61"])
def test_a_start_in_seconds_is_after_the_first_frame(name, start, clips):
    path, frames = clips(name)
    with open_source(path, start=start, limit=5) as source:
        found = list(source)
    assert_equal(found, frames[37:42])
    assert source.length == 5


@pytest.mark.parametrize(("every", "start", "limit"), [(1, 0, 4), (7, 0, None), (7, 3, None), (10, 25, 3), (100, 2, 9)])
def test_every_start_and_limit(every, start, limit, clips):
    path, frames = clips("h264-b.mp4")
    with open_source(path, every=every, start=start, limit=limit) as source:
        found = list(source)
    expected = frames[start::every][:limit]
    assert_equal(found, expected)
    assert (source.length, source.fps) == (len(expected), 10 / every)


def test_frames_left_out_are_not_converted(clips, monkeypatch):
    path, _ = clips("h264-endless.mp4")
    converted = []

    guess = videos_module.guess_matrix
    monkeypatch.setattr(videos_module, "guess_matrix", lambda picture: converted.append(1) or guess(picture))
    assert len(list(open_source(path, every=20, start=5))) == len(converted) == 3


def test_a_varying_rate(tmp_path):
    with av.open(str(tmp_path / "v.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "5"})
        stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
        for index in range(40):
            frame = av.VideoFrame.from_ndarray(moving(index), format="rgb24")
            frame.pts, frame.time_base = index + index // 3 * 2, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    frames = list(open_source(tmp_path / "v.mp4"))
    assert_equal(list(open_source(tmp_path / "v.mp4", start=33)), frames[33:])
    assert_equal(list(open_source(tmp_path / "v.mp4", start=f"{frames[33].time_s}s")), frames[33:])


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize("damaged", [3, 31])
def test_damage_before_the_start_shifts_no_index(suffix, damaged, tmp_path):
    path = write_video(tmp_path / f"v.{suffix}", frames=50, size=(96, 128))
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    position, size = packets[damaged]
    data[position + 5 : position + size] = np.random.default_rng(0).bytes(size - 5)
    path.write_bytes(data)
    frames = [frame for frame in open_source(path) if frame.index >= 40]
    with open_source(path, start=40) as source:
        assert_equal(list(source), frames)
    assert source.bad_frames == []


def test_packets_missing_before_the_start_are_counted(tmp_path):
    path = write_video(tmp_path / "v.mkv", frames=50, size=(96, 128))
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = path.read_bytes()
    path.write_bytes(data[: packets[12][0]] + bytes(packets[14][0] - packets[12][0]) + data[packets[14][0] :])
    frames = [frame for frame in open_source(path) if frame.index >= 40]
    with open_source(path, start=40) as source:
        assert_equal(list(source), frames)


class TestLists:
    def test_images_left_out_are_not_read(self, tmp_path):
        for number in range(10):
            write_image(tmp_path / f"{number}.png", picture(seed=number))
        (tmp_path / "4.png").write_bytes(b"no image")
        frames = list(open_source(tmp_path))
        with open_source(tmp_path, every=3, start=2) as source:
            found = list(source)
        assert_equal(found, [frame for frame in frames if frame.index in (2, 5, 8)])
        assert (source.length, source.bad_frames, source.frames_seen) == (3, [], 10)

    def test_a_bad_image_on_the_way_is_told(self, tmp_path):
        for number in range(6):
            write_image(tmp_path / f"{number}.png", picture(seed=number))
        (tmp_path / "4.png").write_bytes(b"no image")
        with open_source(tmp_path, every=2, limit=2, start=2) as source:
            assert [frame.index for frame in source] == [2]
        assert [index for index, _ in source.bad_frames] == [4]

    @pytest.mark.parametrize(
        ("every", "start", "limit"), [(3, 0, None), (3, 4, None), (5, 14, 3), (2, 1, 4), (1, 29, 1)]
    )
    def test_a_list_of_everything(self, every, start, limit, tmp_path):
        # Written once: libx264 does not write the same bytes each time.
        first, second = (write_video(tmp_path / name, frames=12) for name in ("a.mp4", "b.mp4"))

        def items():
            return [
                picture(),
                first,
                open_source([picture(seed=1), picture(seed=2)]),
                second,
                picture(),
                [picture()] * 3,
            ]

        frames = list(open_source(items()))
        assert len(frames) == 31
        with open_source(items(), every=every, start=start, limit=limit) as source:
            found = list(source)
        names = [frame.name for frame in frames]
        assert [names.index(frame.name) for frame in found if "mp4" in frame.name] == [
            frame.index for frame in found if "mp4" in frame.name
        ]
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

    def test_an_opened_source_is_selected_from_no_more(self):
        with pytest.raises(InputError, match="every, start and limit must be given when 'none' is opened"):
            open_source(ListSource([], "none"), every=2)


class TestWrongArguments:
    @pytest.mark.parametrize("start", [-1, 1.5, True, "x", "1:60", "1:75:00", "-1s", "s", "", "٣", None, "1e3s", "1 s"])
    def test_a_wrong_start(self, start):
        with pytest.raises(InputError, match=r"start must be a frame's index from 0, or a time like '12\.5s', '1:02'"):
            select_frames(start=start)

    @pytest.mark.parametrize("name", ["every", "limit"])
    @pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
    def test_a_wrong_number(self, name, value):
        with pytest.raises(InputError, match=rf"{name} must be a whole number of at least 1, got {value!r}"):
            open_source(picture(), **{name: value})

    @pytest.mark.parametrize(
        ("text", "seconds"), [("12.5s", 12.5), (".5s", 0.5), ("1:02", 62), ("1:02:03.5", 3723.5), ("90:00", 5400)]
    )
    def test_times(self, text, seconds):
        assert select_frames(start=text).start_s == seconds

    @pytest.mark.parametrize("start", [60, 1000, "6s", "1:00:00"])
    def test_a_start_beyond_the_end(self, start, clips):
        path, _ = clips("h264-b.mp4")
        with pytest.raises(BeyondEndError, match=r"start must be before the end of '.*', which has 60 frames, got"):
            open_source(path, start=start)

    def test_a_start_beyond_the_end_of_images(self, tmp_path):
        path = write_image(tmp_path / "a.png", picture())
        for source in (path, tmp_path, picture()):
            with pytest.raises(SourceError, match="which has 1 frame, got 1"):
                open_source(source, start=1)
        with pytest.raises(SourceError, match="which has 2 frames, got 7"):
            list(open_source(iter([picture()] * 2), start=7))

    def test_images_have_no_times(self):
        with pytest.raises(InputError, match="start must be a number of frames for 'list'"):
            open_source([picture()], start="1s")

    def test_a_live_source_has_no_start(self, tmp_path, monkeypatch):
        path = write_video(tmp_path / "v.mp4", frames=6)
        monkeypatch.setattr("maskjet.media.videos.is_camera", lambda _: True)
        with pytest.raises(InputError, match=r"start must be 0 for '.*v\.mp4', which is live, got 3"):
            open_source(path, start=3)
        assert [frame.index for frame in open_source(path, every=2, limit=2)] == [0, 2]

"""Sources: every kind that opens, and what is said of the ones that don't."""

import gc
import os
import struct
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from av.stream import Disposition
from PIL import Image as PILImage

from maskjet.errors import InputError, SourceError
from maskjet.sources import opened_video
from maskjet.sources.conversion import HeldPicture
from maskjet.sources.frames import open_source, split_sources
from maskjet.sources.images import read_image, to_image
from maskjet.sources.keyframes import cut_video, open_part
from maskjet.sources.pillow_images import turn
from tests.sources.clips import (
    SOUND_RATE,
    assert_same,
    close_to,
    damage,
    encode,
    join,
    moving,
    picture,
    read,
    write_clip,
    write_image,
    write_video,
)

pytestmark = pytest.mark.usefixtures("in_folder")


def read_held(path):
    with open_source(path) as source:
        source.keeps_yuv = True
        return source, list(source)


class TestImages:
    @pytest.mark.parametrize("size", [(48, 64), (1, 1)])
    def test_a_file(self, size):
        path = write_image("a.png", picture(*size))
        source, (frame,) = read(path)
        np.testing.assert_array_equal(frame.image, picture(*size))
        assert (frame.index, frame.time_s, frame.name, source.length) == (0, None, path, 1)

    def test_grey_and_alpha(self):
        grey = picture()[..., 0]
        for value in (grey, grey[..., None], write_image("grey.png", grey)):
            np.testing.assert_array_equal(to_image(value, "image"), np.dstack([grey] * 3))
        rgba = np.dstack([picture(), np.arange(48 * 64).reshape(48, 64).astype(np.uint8)])
        PILImage.fromarray(rgba).save("rgba.png")
        for value in (rgba, PILImage.fromarray(rgba), "rgba.png"):
            np.testing.assert_array_equal(to_image(value, "image"), picture())

    def test_files_of_sixteen_bits_are_scaled(self):
        deep = picture().astype(np.uint16) * 257
        write_image("deep.png", deep)
        np.testing.assert_array_equal(read_image(Path("deep.png")), picture())
        PILImage.fromarray(deep[..., 0]).save("deep_grey.png")
        grey = to_image(PILImage.open("deep_grey.png"), "image")
        np.testing.assert_array_equal(grey[..., 0], picture()[..., 0])

    def test_arrays_are_shared_where_they_can_be(self):
        array = picture()
        for shared in (array, array[:, 5:20], torch.from_numpy(array)):
            assert np.shares_memory(to_image(shared, "image"), array)
        flipped = array[:, ::-1]
        np.testing.assert_array_equal(to_image(flipped, "image"), flipped)

    def test_a_jpeg_may_hold_a_thumbnail_and_be_followed_by_a_film(self):
        whole, thumbnail = (cv2.imencode(".jpg", picture(*size))[1].tobytes() for size in ((60, 80), (6, 8)))
        exif = b"\xff\xe1" + (len(thumbnail) + 8).to_bytes(2, "big") + b"Exif\0\0" + thumbnail
        film = b"ftyp" + bytes(range(256)) * 9 + b"\xff\xda\xff\xd8 and no end"
        path = Path("motion.jpg")
        path.write_bytes(whole[:2] + exif + whole[2:] + film)
        np.testing.assert_array_equal(read_image(path), cv2.imdecode(np.frombuffer(whole, np.uint8), 1)[..., ::-1])
        path.write_bytes(whole[:2] + exif + whole[2:-40])
        with pytest.raises(SourceError, match=r"motion\.jpg' is empty, cut off or damaged"):
            read_image(path)


@pytest.mark.gpu
def test_tensors_on_a_gpu_stay_there_finished():
    """Others, as grey ones, become arrays."""
    images = [torch.from_numpy(picture(seed=seed)) for seed in range(3)]

    def make():
        with torch.cuda.stream(torch.cuda.Stream()):
            for image in images:
                torch.cuda._sleep(10_000_000)
                yield image.cuda(non_blocking=True)

    for frame, image in zip(open_source(make()), images, strict=True):
        assert frame.pixels.is_cuda
        with torch.cuda.stream(torch.cuda.Stream()):
            assert torch.equal(frame.pixels.cpu(), image)
        np.testing.assert_array_equal(frame.image, image)
    for tensor in (images[0][..., 0], images[0].movedim(-1, 0) / 255):
        (frame,) = open_source([tensor.cuda()])
        np.testing.assert_array_equal(frame.image, to_image(tensor, "image"))


class TestLists:
    def test_a_generator_is_read_as_it_comes_and_one_array_is_one_frame(self):
        source = open_source(picture(seed=seed) for seed in range(3))
        assert source.length is None
        assert len(list(source)) == 3
        source = open_source(picture())
        assert open_source(source) is source
        assert len(list(source)) == 1

    def test_nothing_to_read(self):
        for name in (".", "*.png", "nothing.mp4", 1.5, bytearray(b"image")):
            with pytest.raises(InputError) as caught:
                open_source(name)
            assert caught.value.argument == "source"


class TestVideos:
    def test_frames_times_and_facts(self):
        source, frames = read(write_video("v.mp4"))
        assert (source.length, source.fps, source.is_live, source.bad_frames) == (20, 10.0, False, [])
        assert [frame.index for frame in frames] == list(range(20))
        np.testing.assert_allclose([frame.time_s for frame in frames], np.arange(20) / 10)
        assert frames[3].name == "v.mp4#3"
        for seed, frame in enumerate(frames):
            assert close_to(frame.image, picture(seed=seed))
        source.close()  # again

    def test_odd_sizes(self):
        (frame,) = open_source(encode("odd.mkv", [picture(31, 17)], "ffv1", pix_fmt="bgr0"))
        np.testing.assert_array_equal(frame.image, picture(31, 17))

    @pytest.mark.parametrize("down", [(0, 1), (1, 0), (0, -1), (-1, 0)])  # in the stored picture's rows
    @pytest.mark.parametrize("is_mirrored", [False, True])
    def test_a_phones_rotation_and_mirroring_are_applied(self, down, is_mirrored):
        (c, d), sign = down, -1 if is_mirrored else 1
        a, b = sign * d, -sign * c
        stored, path = picture(), write_video(Path("v.mp4"), frames=2)
        data = bytearray(path.read_bytes())
        matrix = (each << 16 for each in (a, b, 0, c, d, 0, 0, 0, 2**14))
        struct.pack_into(">9i", data, data.find(b"tkhd") + 44, *matrix)
        path.write_bytes(data)
        y, x = np.mgrid[: stored.shape[0], : stored.shape[1]]
        right, below = a * x + c * y, b * x + d * y  # as ISO 14496-12 defines the matrix
        expected = np.zeros((below.max() - below.min() + 1, right.max() - right.min() + 1, 3), np.uint8)
        expected[below - below.min(), right - right.min()] = stored
        source, frames = read(path)
        assert close_to(frames[0].image, expected)
        assert source.size_hw == frames[0].size_hw == expected.shape[:2]
        source, held = read_held(path)
        assert source.size_hw == held[0].size_hw == held[0].pixels.luma.shape == expected.shape[:2]
        assert_same(held, frames)

    @pytest.mark.parametrize(
        ("codec", "pix_fmt", "is_held"),
        [
            ("libx264", "yuv420p", True),
            ("libx264", "yuv444p", True),
            ("libx264", "nv12", True),
            ("mjpeg", "yuvj420p", True),
            ("libx264", "yuv420p10le", False),
            ("ffv1", "gray", False),
            ("rawvideo", "yuyv422", False),
            ("ffv1", "bgr0", False),
        ],
    )
    def test_pictures_become_rgb_when_that_is_asked_for(self, codec, pix_fmt, is_held):
        path = encode("v.mkv", [picture(34, 62, seed) for seed in range(3)], codec, pix_fmt=pix_fmt)
        (_, frames), (_, held) = read(path), read_held(path)
        assert [isinstance(frame.pixels, HeldPicture) for frame in held] == [is_held] * 3
        for frame, other in zip(held, frames, strict=True):
            out = np.empty_like(other.image)
            frame.copy_to(out)
            np.testing.assert_array_equal(out, other.image)
            if is_held:
                assert "image" not in vars(frame)
                luma = cv2.cvtColor(other.image, cv2.COLOR_RGB2GRAY).astype(int)
                scaled = luma if pix_fmt == "yuvj420p" else 16 + luma * 219 / 255
                assert np.abs(frame.pixels.luma - scaled).mean() < 2
        assert_same(held, frames)

    @pytest.mark.parametrize("exif_orientation", [1, 3, 6, 8])
    def test_rotation_beside_data_that_pyav_18_does_not_know(self, exif_orientation):
        exif = PILImage.Exif()
        exif[0x0112] = exif_orientation
        PILImage.fromarray(picture()).save("a.jpg", exif=exif)
        Path("v.mjpeg").write_bytes(2 * Path("a.jpg").read_bytes())
        for frame in open_source("v.mjpeg"):
            assert close_to(frame.image, turn(picture(), exif_orientation))

    @pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov"])
    @pytest.mark.parametrize("default", [0, 1])
    def test_of_several_streams_the_default_one_is_read(self, suffix, default):
        paths = [write_clip(Path("b3.mp4")), write_video(Path("other.mp4"), frames=30, gop=6)]
        kinds = [Disposition.default if number == default else Disposition(0) for number in range(2)]
        cover = encode("cover.mp4", [picture(24, 24)], "mjpeg")
        several = [(path, "video", kind) for path, kind in zip(paths, kinds, strict=True)]
        if suffix == "mp4":  # FFmpeg writes covers as streams into no other one
            several.insert(0, (cover, "video", Disposition.attached_pic))
        path = join(f"several.{suffix}", *several)
        for start in (0, 20):
            expected = read(paths[default], start=start)[1]
            source, frames = read(path, start=start)
            assert source.bad_frames == []
            for frame, other in zip(frames, expected, strict=True):
                np.testing.assert_array_equal(frame.image, other.image)
        parts = cut_video(path, seconds=0.5)
        assert len(parts) > 1
        frames = [frame for part in parts for frame in open_part(path, part)]
        for frame, other in zip(frames, read(paths[default])[1], strict=True):
            np.testing.assert_array_equal(frame.image, other.image)

    def test_a_cover_is_no_video(self):
        cover = encode("cover.mp4", [picture(24, 24)], "mjpeg")
        song = write_video(Path("v.mp4"), frames=2, sound=np.zeros(SOUND_RATE))
        join("song.mp4", (song, "audio", Disposition.default), (cover, "video", Disposition.attached_pic))
        with pytest.raises(SourceError, match=r"source must contain video, 'song\.mp4' contains none"):
            open_source("song.mp4")

    @pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
    def test_the_last_frames_come_where_the_video_is_not_the_first_stream(self, suffix):
        clip = write_clip(Path("b3.mp4"), sound=np.zeros(2 * SOUND_RATE))
        path = join(f"v.{suffix}", (clip, "audio", Disposition.default), (clip, "video", Disposition.default))
        source, frames = read(path)
        assert ([frame.index for frame in frames], source.bad_frames) == (list(range(60)), [])

    @pytest.mark.parametrize("name", ["v.mkv", "v.ts", "v.mp4", "v.webm"])
    def test_the_length_of_a_video_that_begins_late(self, name):
        codec = "libvpx" if name == "v.webm" else "libx264"
        source, frames = read(encode(name, list(map(moving, range(6))), codec, times=range(50, 56)))
        assert source.length == len(frames) == 6

    @pytest.mark.parametrize(
        ("threads", "damaged"), [(1, [20]), (1, [4, 39]), (16, [37]), (16, [4, 39]), (16, [35, 36])]
    )
    def test_every_frame_is_shown_or_counted_at_its_own_index(self, threads, damaged, monkeypatch):
        path = write_video(Path("v.mp4"), frames=40, size=(96, 128), sound=np.zeros(4 * SOUND_RATE))
        damage(path, *damaged)
        opened = opened_video.open_container

        def with_threads(*args, **options):
            container = opened(*args, **options)
            container.streams.video[0].codec_context.thread_count = threads
            return container

        monkeypatch.setattr(opened_video, "open_container", with_threads)
        source, frames = read(path)
        shown, bad = [frame.index for frame in frames], [index for index, _ in source.bad_frames]
        assert sorted(shown + bad) == list(range(40))
        assert 1 <= len(bad) <= 5 * len(damaged)  # at most to the next key frame
        assert "v.mp4" in source.bad_frames[0][1]
        np.testing.assert_allclose([frame.time_s for frame in frames], np.array(shown) / 10)
        spoilt = {later for index in damaged for later in range(index, (index // 5 + 1) * 5)}
        for frame in (frame for frame in frames if frame.index not in spoilt):
            assert close_to(frame.image, picture(96, 128, seed=frame.index))

    def test_not_a_video(self):
        for name, data in (("noise.mp4", os.urandom(2000)), ("empty.mp4", b""), ("text.txt", b"hello\n" * 50)):
            Path(name).write_bytes(data)
            with pytest.raises(SourceError, match=name.replace(".", r"\.")):
                read(name)
        with av.open("sound.mp4", "w") as container:
            stream = container.add_stream("aac", rate=8000)
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            sound.sample_rate = 8000
            container.mux(stream.encode(sound) + stream.encode(None))
        with pytest.raises(SourceError, match=r"source must contain video, 'sound\.mp4' contains none"):
            open_source("sound.mp4")
        for camera in (97, "97"):
            with pytest.raises(SourceError, match="'/dev/video97' can't be read"):
                open_source(camera)


def test_pictures_are_freed_without_the_garbage_collector(tmp_path):
    def pictures():
        return sum(type(each) is av.VideoFrame for each in gc.get_objects())

    path = write_video(tmp_path / "a.mp4", frames=20)
    gc.collect()
    before = pictures()
    gc.disable()
    try:
        with open_source(path) as source:
            assert len(list(source)) == 20
        assert pictures() < before + 5
    finally:
        gc.enable()


def test_a_glob_in_a_list_is_as_many_images_as_it_matches(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for number in range(3):
            write_image(tmp_path / folder / f"{number}.png", np.full((4, 4, 3), number, np.uint8))
    write_image(tmp_path / "c[1].png", np.zeros((4, 4, 3), np.uint8))
    given = [str(tmp_path / "a" / "*.png"), str(tmp_path / "b" / "*.png"), str(tmp_path / "c[1].png")]
    source = open_source(given, every=2)
    assert (source.length, [frame.index for frame in source]) == (None, [0, 2, 4, 6])
    assert open_source(given[2:]).length == 1
    assert open_source([f"file://{given[2]}"]).length == 1
    assert [frame.index for frame in open_source(given, start=4)] == [4, 5, 6]
    assert len(split_sources(given[:2])) == 2

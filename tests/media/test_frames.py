"""Sources: every kind that opens, and what is said of the ones that don't."""

import functools
import http.server
import os
import threading
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PILImage

from maskjet.errors import InputError, SourceError
from maskjet.media import videos as videos_module
from maskjet.media.frames import ListSource, VideoSource, open_source
from maskjet.media.images import read_image, to_image


def picture(height=48, width=64, seed=0):
    """A gradient with a seed-dependent tint: survives lossy codecs."""
    y, x = np.mgrid[0:height, 0:width]
    tint = np.random.default_rng(seed).integers(0, 120, 3)
    return np.stack([y * 2 + tint[0], x + tint[1], (x + y) + tint[2]], axis=-1).clip(0, 255).astype(np.uint8)


def write_video(path, frames=20, *, size=(48, 64), times=None, codec="libx264", gop=5):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            codec, rate=10, options={"g": str(gop), "bf": "0", "sc_threshold": "0"} if codec == "libx264" else {}
        )
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(picture(*size, seed=index), format="rgb24")
            if times:
                frame.pts, frame.time_base = times[index], stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def close_to(actual, expected):
    return np.abs(actual.astype(int) - expected.astype(int)).mean() < 6


def write_image(path, image):
    assert cv2.imwrite(str(path), image[..., ::-1] if image.ndim == 3 else image)
    return path


class TestImages:
    def test_a_file(self, tmp_path):
        path = write_image(tmp_path / "a.png", picture())
        source = open_source(path)
        (frame,) = source
        np.testing.assert_array_equal(frame.image, picture())
        assert (frame.index, frame.time_s, frame.name, source.length) == (0, None, str(path), 1)

    def test_grey(self, tmp_path):
        grey = picture()[..., 0]
        for value in (grey, grey[..., None], str(write_image(tmp_path / "grey.png", grey))):
            image = to_image(value, "image")
            assert image.shape == (48, 64, 3)
            for channel in range(3):
                np.testing.assert_array_equal(image[..., channel], grey)

    def test_alpha_is_dropped(self, tmp_path):
        rgba = np.dstack([picture(), np.arange(48 * 64).reshape(48, 64).astype(np.uint8)])
        PILImage.fromarray(rgba).save(tmp_path / "rgba.png")
        for value in (rgba, PILImage.fromarray(rgba), tmp_path / "rgba.png"):
            np.testing.assert_array_equal(to_image(value, "image"), picture())

    def test_files_of_sixteen_bits_are_scaled(self, tmp_path):
        deep = picture().astype(np.uint16) * 257
        assert cv2.imwrite(str(tmp_path / "deep.png"), deep[..., ::-1])
        PILImage.fromarray(deep[..., 0]).save(tmp_path / "deep_grey.png")
        np.testing.assert_array_equal(read_image(tmp_path / "deep.png"), picture())
        np.testing.assert_array_equal(
            to_image(PILImage.open(tmp_path / "deep_grey.png"), "image")[..., 0], picture()[..., 0]
        )

    @pytest.mark.parametrize("pack", [np.asarray, torch.from_numpy, PILImage.fromarray])
    def test_arrays_of_sixteen_bits_are_refused_with_the_cure(self, pack):
        twelve_bits = picture()[..., 0].astype(np.uint16) << 4
        with pytest.raises(InputError, match=r"image must be uint8, got uint16 .* for 12 bits with \(image >> 4\)"):
            to_image(pack(twelve_bits), "image")

    def test_exif_rotation_is_applied(self, tmp_path):
        exif = PILImage.Exif()
        exif[0x0112] = 6  # turn by 90° clockwise to show it
        PILImage.fromarray(picture()).save(tmp_path / "turned.jpg", exif=exif, quality=95)
        upright = np.rot90(picture(), -1)
        for value in (tmp_path / "turned.jpg", PILImage.open(tmp_path / "turned.jpg")):
            image = to_image(value, "image")
            assert image.shape == (64, 48, 3)
            assert close_to(image, upright)

    def test_one_pixel(self, tmp_path):
        path = write_image(tmp_path / "one.png", np.full((1, 1, 3), 9, np.uint8))
        assert read_image(path).tolist() == [[[9, 9, 9]]]

    def test_palette_and_animation_give_the_first_image(self, tmp_path):
        first, second = (PILImage.fromarray(np.full((8, 8, 3), value, np.uint8)) for value in (40, 200))
        first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
        with PILImage.open(tmp_path / "a.gif") as animation:
            images = [to_image(animation, "image"), read_image(tmp_path / "a.gif")]
        assert [abs(int(image[0, 0, 0]) - 40) < 3 for image in images] == [True, True]

    def test_arrays_are_shared_where_they_can_be(self):
        array = picture()
        assert np.shares_memory(to_image(array, "image"), array)
        assert np.shares_memory(to_image(array[:, 5:20], "image"), array)
        assert np.shares_memory(to_image(torch.from_numpy(array), "image"), array)
        flipped = array[:, ::-1]
        np.testing.assert_array_equal(to_image(flipped, "image"), flipped)

    @pytest.mark.parametrize("suffix", [".jpg", ".png"])
    def test_a_file_cut_off(self, suffix, tmp_path):
        path = write_image(tmp_path / f"cut{suffix}", picture(200, 300))
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
        with pytest.raises(SourceError, match=rf"image must be whole, '.*cut\{suffix}' is empty, cut off or damaged"):
            list(open_source(path))

    def test_a_jpeg_may_hold_a_thumbnail_and_be_followed_by_a_film(self, tmp_path):
        whole = cv2.imencode(".jpg", picture(60, 80))[1].tobytes()
        thumbnail = cv2.imencode(".jpg", picture(6, 8))[1].tobytes()
        exif = b"\xff\xe1" + (len(thumbnail) + 8).to_bytes(2, "big") + b"Exif\0\0" + thumbnail
        film = b"ftyp" + bytes(range(256)) * 9 + b"\xff\xda\xff\xd8 and no end"
        path = tmp_path / "motion.jpg"
        path.write_bytes(whole[:2] + exif + whole[2:] + film)
        np.testing.assert_array_equal(read_image(path), cv2.imdecode(np.frombuffer(whole, np.uint8), 1)[..., ::-1])
        path.write_bytes(whole[:2] + exif + whole[2:-40])
        with pytest.raises(SourceError, match=r"motion\.jpg' is empty, cut off or damaged"):
            read_image(path)

    def test_a_header_that_asks_for_too_much(self, tmp_path):
        data = bytearray(cv2.imencode(".bmp", picture(8, 8))[1].tobytes())
        data[18:26] = (60_000).to_bytes(4, "little") * 2
        (tmp_path / "huge.bmp").write_bytes(data)
        with pytest.raises(SourceError, match=r"huge\.bmp' has 3,600,000,000 pixels, the limit is"):
            read_image(tmp_path / "huge.bmp")

    def test_corrupt_and_empty_files(self, tmp_path):
        (tmp_path / "noise.webp").write_bytes(os.urandom(500))
        with pytest.raises(SourceError, match=r"image must be decodable, '.*noise\.webp' is corrupt"):
            list(open_source(tmp_path / "noise.webp"))
        (tmp_path / "empty.jpg").touch()
        with pytest.raises(SourceError, match=r"image must be whole, '.*empty\.jpg'"):
            list(open_source(tmp_path / "empty.jpg"))

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (
                np.zeros((3, 8, 9), np.uint8),
                r"image must be \[H, W, 3\], got uint8 \[3, 8, 9\], which looks like \[C, H, W\]",
            ),
            (np.zeros((8, 9, 3)), r"image must be uint8 \[H, W, 3\] RGB in 0\.\.255, got float64 \[8, 9, 3\]"),
            (torch.zeros(8, 9, 3), r"image must be uint8 .* got float32 \[8, 9, 3\]"),
            (np.zeros((8, 9, 2), np.uint8), r"of at least one pixel, got uint8 \[8, 9, 2\]"),
            (np.zeros((0, 9, 3), np.uint8), r"of at least one pixel, got uint8 \[0, 9, 3\]"),
            (PILImage.fromarray(np.zeros((4, 4), np.float32)), "got a PIL image of mode 'F'"),
            (7, "image must be an array, tensor, PIL image or path, got int"),
        ],
    )
    def test_what_is_no_image_is_named(self, value, message):
        with pytest.raises(InputError, match=message):
            to_image(value, "image")


class TestLists:
    def test_a_folder_in_natural_order(self, tmp_path):
        for number in (10, 2, 1):
            write_image(tmp_path / f"frame{number}.png", picture(seed=number))
        (tmp_path / "notes.txt").write_text("not an image")
        source = open_source(tmp_path)
        frames = list(source)
        assert source.length == 3
        assert [Path(frame.name).name for frame in frames] == ["frame1.png", "frame2.png", "frame10.png"]
        np.testing.assert_array_equal(frames[2].image, picture(seed=10))

    def test_a_glob(self, tmp_path):
        for name in ("a1.png", "a2.png", "b1.png"):
            write_image(tmp_path / name, picture())
        assert open_source(f"{tmp_path}/a*.png").length == 2

    def test_a_bad_image_costs_itself_alone(self, tmp_path):
        for number in range(4):
            write_image(tmp_path / f"{number}.jpg", picture(seed=number))
        (tmp_path / "1.jpg").write_bytes(b"\xff\xd8 no more")
        source = open_source(tmp_path)
        assert [frame.index for frame in source] == [0, 2, 3]
        ((index, reason),) = source.bad_frames
        assert index == 1
        assert "1.jpg" in reason

    def test_a_list_of_everything(self, tmp_path):
        video = write_video(tmp_path / "v.mp4", frames=3)
        image = write_image(tmp_path / "i.png", picture())
        frames = list(open_source([picture(), image, str(video), PILImage.fromarray(picture())]))
        assert [frame.index for frame in frames] == list(range(6))
        assert [frame.time_s for frame in frames] == [None, None, 0.0, 0.1, 0.2, None]

    def test_a_generator_is_read_as_it_comes(self):
        source = open_source(picture(seed=seed) for seed in range(3))
        assert source.length is None
        assert len(list(source)) == 3

    def test_one_array_is_one_frame(self):
        assert len(list(open_source(picture()))) == 1

    def test_a_source_is_itself(self):
        source = ListSource([], name="none")
        assert open_source(source) is source

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda folder: folder, "source must be a folder with images, .* has none"),
            (lambda folder: folder / "*.png", "source must be a glob that matches files, .* has none"),
            (lambda folder: folder / "nothing.mp4", r"source must exist, .*nothing\.mp4' does not"),
        ],
    )
    def test_nothing_to_read(self, make, message, tmp_path):
        with pytest.raises(SourceError, match=message):
            open_source(str(make(tmp_path)))

    def test_what_is_no_source_is_named(self):
        with pytest.raises(
            InputError, match="source must be a path, URL, camera, image or an iterable of these, got float"
        ):
            open_source(1.5)


class TestVideos:
    def test_frames_times_and_facts(self, tmp_path):
        path = write_video(tmp_path / "v.mp4")
        with open_source(path) as source:
            frames = list(source)
        assert (source.length, source.fps, source.is_live, source.bad_frames) == (20, 10.0, False, [])
        assert [frame.index for frame in frames] == list(range(20))
        np.testing.assert_allclose([frame.time_s for frame in frames], np.arange(20) / 10)
        assert frames[3].name == f"{path}#3"
        for seed, frame in enumerate(frames):
            assert close_to(frame.image, picture(seed=seed))
        source.close()

    def test_odd_sizes(self, tmp_path):
        path = tmp_path / "odd.mkv"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("ffv1", rate=5)
            stream.height, stream.width, stream.pix_fmt = 31, 17, "bgr0"
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(31, 17), format="rgb24")))
            container.mux(stream.encode(None))
        (frame,) = open_source(path)
        np.testing.assert_array_equal(frame.image, picture(31, 17))

    @pytest.mark.parametrize("quarter_turns", [1, 2, 3])
    def test_a_phones_rotation_is_applied(self, quarter_turns, tmp_path):
        path = write_video(tmp_path / "v.mp4", frames=2)
        data = bytearray(path.read_bytes())
        matrix = data.index(b"tkhd") + 44  # ISO 14496-12: the track header's 3 × 3 matrix in 16.16
        a, b = {1: (0, 1), 2: (-1, 0), 3: (0, -1)}[quarter_turns]  # clockwise
        for offset, value in ((0, a), (4, b), (12, -b), (16, a)):
            data[matrix + offset : matrix + offset + 4] = (value * 65536).to_bytes(4, "big", signed=True)
        path.write_bytes(data)
        frames = list(open_source(path))
        assert close_to(frames[0].image, np.rot90(picture(), -quarter_turns))

    def test_a_damaged_packet_costs_few_frames_and_is_counted(self, tmp_path):
        path = write_video(tmp_path / "v.mp4", frames=40, size=(96, 128))
        packets = []
        with av.open(str(path)) as container:
            packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
        data = bytearray(path.read_bytes())
        position, size = packets[17]
        data[position + 5 : position + size] = np.random.default_rng(0).bytes(size - 5)
        path.write_bytes(data)
        with open_source(path) as source:
            frames = list(source)
        assert 1 <= len(source.bad_frames) <= 5  # at most to the next key frame
        assert len(frames) + len(source.bad_frames) == 40
        assert frames[-1].index == 39
        assert close_to(frames[-1].image, picture(96, 128, seed=39))
        assert "v.mp4" in source.bad_frames[0][1]

    @pytest.mark.parametrize("threads", [1, 16])
    @pytest.mark.parametrize("damaged", [[37], [20], [4, 39], [35, 36]])
    def test_every_frame_is_shown_or_counted_at_its_own_index(self, threads, damaged, tmp_path, monkeypatch):
        path = write_video(tmp_path / "v.mp4", frames=40, size=(96, 128))
        with av.open(str(path)) as container:
            packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
        data = bytearray(path.read_bytes())
        for position, size in (packets[index] for index in damaged):
            data[position + 5 : position + size] = np.random.default_rng(0).bytes(size - 5)
        path.write_bytes(data)
        opened = videos_module.open_container

        def with_threads(name):
            container = opened(name)
            container.streams.video[0].codec_context.thread_count = threads
            return container

        monkeypatch.setattr(videos_module, "open_container", with_threads)
        with open_source(path) as source:
            frames = list(source)
        shown, bad = [frame.index for frame in frames], [index for index, _ in source.bad_frames]
        assert sorted(shown + bad) == list(range(40))
        assert bad
        np.testing.assert_allclose([frame.time_s for frame in frames], np.array(shown) / 10)
        spoilt = {later for index in damaged for later in range(index, (index // 5 + 1) * 5)}  # to the next key frame
        for frame in (frame for frame in frames if frame.index not in spoilt):
            assert close_to(frame.image, picture(96, 128, seed=frame.index))

    def test_a_truncated_file_gives_what_it_has(self, tmp_path):
        path = write_video(tmp_path / "v.mkv", frames=40, size=(96, 128))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with open_source(path) as source:
            frames = list(source)
        assert 5 < len(frames) < 40

    def test_a_truncated_mp4_announces_more_than_it_has(self, tmp_path):
        path = tmp_path / "v.mp4"
        with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
            stream = container.add_stream("libx264", rate=10)
            stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
            for index in range(40):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(96, 128, seed=index), format="rgb24")))
            container.mux(stream.encode(None))
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
        with open_source(path) as source:
            frames = list(source)
        assert 0 < len(frames) < 40
        assert "breaks off at" in source.bad_frames[-1][1]

    def test_not_a_video(self, tmp_path):
        for name, data in (("noise.mp4", os.urandom(2000)), ("empty.mp4", b""), ("text.txt", b"hello\n" * 50)):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(SourceError, match=name.replace(".", r"\.")):
                list(open_source(tmp_path / name))

    def test_sound_alone(self, tmp_path):
        path = tmp_path / "sound.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", rate=8000)
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            sound.sample_rate = 8000
            container.mux(stream.encode(sound))
            container.mux(stream.encode(None))
        with pytest.raises(SourceError, match=r"source must contain video, '.*sound\.mp4' contains none"):
            open_source(path)

    def test_over_http(self, tmp_path):
        write_video(tmp_path / "v.mp4", frames=4)
        handler = functools.partial(_Quiet, directory=tmp_path)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with open_source(f"http://127.0.0.1:{server.server_port}/v.mp4") as source:
                assert len(list(source)) == 4
            server.shutdown()

    def test_an_unreachable_url_and_a_missing_camera(self):
        with pytest.raises(SourceError, match=r"'rtsp://127\.0\.0\.1:9/x' can't be read"):
            open_source("rtsp://127.0.0.1:9/x")
        for camera in (97, "97"):
            with pytest.raises(SourceError, match="'/dev/video97' can't be read"):
                open_source(camera)

    def test_closing_twice(self, tmp_path):
        source = VideoSource(str(write_video(tmp_path / "v.mp4", frames=2)))
        source.close()
        source.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

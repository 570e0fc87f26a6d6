"""Animated GIF and PNG as videos, and AVIF as images."""

from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage
from PIL import ImageOps

from maskjet import limits
from maskjet.errors import SourceError
from maskjet.media.animations import is_animated
from maskjet.media.expansion import expand_sources
from maskjet.media.frames import open_source
from maskjet.media.image_headers import stated_size_hw
from maskjet.media.images import read_image
from maskjet.media.sinks import check_outputs
from tests.media.test_frames import close_to, picture
from tests.test_detections import some_detections


def flat(count=5, size=(48, 64)):
    """Pictures of few colours, which a GIF's palette holds."""
    images = []
    for index in range(count):
        image = np.zeros((*size, 3), np.uint8)
        image[:, : 10 * (index + 1)] = (200, 40 * index, 90)
        images.append(image)
    return images


def write_animation(path, images, **options):
    first, *rest = map(PILImage.fromarray, images)
    first.save(path, save_all=True, append_images=rest, duration=100, **options)
    return path


@pytest.mark.parametrize("name", ["a.gif", "a.png", "a.apng"])
def test_an_animation_is_a_video(name, tmp_path):
    path = write_animation(tmp_path / name, flat(), loop=0, **({"format": "PNG"} if "png" in name else {}))
    assert is_animated(path)
    with open_source(path) as source:
        frames = list(source)
    assert source.kind == "video"
    assert [frame.index for frame in frames] == list(range(5))
    np.testing.assert_allclose([frame.time_s for frame in frames], np.arange(5) / 10)
    for frame, expected in zip(frames, flat(), strict=True):
        np.testing.assert_array_equal(frame.image, expected)
    assert (source.bad_frames, source.fps) == ([], 10.0)
    with open_source(path, every=2, start=1) as source:
        assert [frame.index for frame in source] == [1, 3]


def test_an_annotated_animation(tmp_path):
    path = write_animation(tmp_path / "a.gif", flat())
    with open_source(path) as source, check_outputs([f"{tmp_path}/{{}}.mp4"], [source]).open() as sinks:
        for frame in source:
            sinks.write(frame, some_detections(1))
    assert len(list(open_source(tmp_path / "a.mp4"))) == 5


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_a_still_image_is_none(name, tmp_path):
    PILImage.fromarray(flat()[0]).save(tmp_path / name)
    assert not is_animated(tmp_path / name)
    with open_source(tmp_path / name) as source:
        (frame,) = source
    assert source.kind == "image"
    np.testing.assert_array_equal(frame.image, flat()[0])


def test_in_lists_an_animation_is_an_image_and_in_expanded_folders_a_gif_is_a_video(tmp_path):
    write_animation(tmp_path / "a.gif", flat())
    PILImage.fromarray(flat()[0]).save(tmp_path / "still.gif")
    assert len(list(open_source([tmp_path / "a.gif", tmp_path / "still.gif"]))) == 2
    assert len(list(open_source(tmp_path))) == 2
    assert [[path.name for path in one.files] for one in expand_sources(tmp_path)] == [["still.gif"], ["a.gif"]]
    assert [[path.name for path in one.files] for one in expand_sources(f"{tmp_path}/*.gif")] == [
        *(["still.gif"], ["a.gif"])
    ]


@pytest.mark.parametrize("name", ["a.gif", "a.png"])
def test_any_beginning_of_an_animation_and_any_byte_is_answered(name, tmp_path):
    data = write_animation(tmp_path / name, flat(2, (8, 8))).read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / f"cut_{name}"
    for length in range(0, len(data), 3):
        path.write_bytes(data[:length])
        assert is_animated(path) in (True, False)
    for _ in range(100):
        changed = bytearray(data)
        changed[random.integers(len(data))] = random.integers(256)
        path.write_bytes(changed)
        assert is_animated(path) in (True, False)
    assert not is_animated(Path("/nowhere.gif"))


def test_a_huge_animation_is_refused_by_its_header(tmp_path, monkeypatch):
    path = write_animation(tmp_path / "a.gif", flat())
    monkeypatch.setattr(limits, "image_pixels", 48 * 64 - 1)
    with pytest.raises(SourceError, match="the limit is 3,071"):
        open_source(path)


class TestAvif:
    @pytest.fixture(autouse=True)
    def _needs_avif(self):
        if not cv2.haveImageWriter("a.avif"):
            pytest.skip("this OpenCV has no AVIF")

    def test_an_image_and_a_folder(self, tmp_path):
        for number in (2, 10):
            PILImage.fromarray(picture(seed=number)).save(tmp_path / f"{number}.avif", quality=95)
        with open_source(tmp_path) as source:
            frames = list(source)
        assert [Path(frame.name).name for frame in frames] == ["2.avif", "10.avif"]
        for frame, seed in zip(frames, (2, 10), strict=True):
            assert close_to(frame.image, picture(seed=seed))
        assert stated_size_hw((tmp_path / "2.avif").read_bytes()) == (48, 64)

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_its_rotation_is_applied(self, orientation, tmp_path):
        image = picture()
        image[:12, :20] = (250, 20, 20)
        exif = PILImage.Exif()
        exif[0x0112] = orientation
        PILImage.fromarray(image).save(tmp_path / "a.avif", exif=exif, quality=95)
        turned = PILImage.fromarray(image)
        turned.getexif()[0x0112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(turned))
        assert close_to(read_image(tmp_path / "a.avif"), expected)

    def test_a_huge_one_is_refused_by_its_header(self, tmp_path):
        PILImage.fromarray(picture()).save(tmp_path / "a.avif")
        data = bytearray((tmp_path / "a.avif").read_bytes())
        at = data.index(b"ispe") + 8
        data[at : at + 8] = (100_000).to_bytes(4, "big") * 2
        (tmp_path / "a.avif").write_bytes(data)
        with pytest.raises(SourceError, match=r"has 10,000,000,000 pixels, the limit is"):
            read_image(tmp_path / "a.avif")

    def test_damage_is_an_error_of_ours(self, tmp_path):
        PILImage.fromarray(picture()).save(tmp_path / "a.avif")
        data = (tmp_path / "a.avif").read_bytes()
        random = np.random.default_rng(0)
        for _ in range(60):
            changed = bytearray(data[: random.integers(8, len(data) + 1)])
            changed[random.integers(len(changed))] = random.integers(256)
            (tmp_path / "b.avif").write_bytes(changed)
            with suppress(SourceError):
                assert read_image(tmp_path / "b.avif").ndim == 3

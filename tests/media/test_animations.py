"""Animated GIFs as videos, and AVIF as images."""

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
from maskjet.media.images import read_image
from tests.media.clips import close_to, picture, read
from tests.media.outputs import annotate, images

pytestmark = pytest.mark.usefixtures("in_folder")


def flat(count=5, size=(48, 64)):
    """Pictures of few colours, which a GIF's palette holds."""
    pictures = np.zeros((count, *size, 3), np.uint8)
    for index in range(count):
        pictures[index, :, : 10 * (index + 1)] = (200, 40 * index, 90)
    return pictures


def write_animation(path, images, **options):
    first, *rest = map(PILImage.fromarray, images)
    first.save(path, save_all=True, append_images=rest, duration=100, **options)
    return Path(path)


@pytest.mark.parametrize("name", ["a.gif", "a.apng"])
def test_an_animation_is_a_video(name):
    path = write_animation(name, flat(), loop=0, **({"format": "PNG"} if "png" in name else {}))
    assert is_animated(path) == (name == "a.gif")  # other suffixes than images' are tried as videos anyway
    source, frames = read(path)
    assert source.kind == "video"
    assert [frame.index for frame in frames] == list(range(5))
    np.testing.assert_allclose([frame.time_s for frame in frames], np.arange(5) / 10)
    for frame, expected in zip(frames, flat(), strict=True):
        np.testing.assert_array_equal(frame.image, expected)
    assert (source.bad_frames, source.fps) == ([], 10.0)
    assert [frame.index for frame in read(path, every=2, start=1)[1]] == [1, 3]
    assert annotate(path, "out.mp4") == len(images("out.mp4")) == 5


@pytest.mark.parametrize(("name", "count"), [("a.gif", 1), ("a.png", 1), ("a.png", 5)])
def test_a_still_image_and_an_animated_png_are_none(name, count):
    write_animation(name, flat()[:count])
    assert not is_animated(Path(name))
    source, (frame,) = read(name)
    assert source.kind == "image"
    np.testing.assert_array_equal(frame.image, flat()[0])


def test_in_lists_an_animation_is_an_image_and_in_expanded_folders_a_gif_is_a_video():
    write_animation("a.gif", flat())
    PILImage.fromarray(flat()[0]).save("still.gif")
    assert len(list(open_source(["a.gif", "still.gif"]))) == 2
    assert len(list(open_source("."))) == 2
    for given in (".", "*.gif"):
        assert [[path.name for path in one.files] for one in expand_sources(given)] == [["still.gif"], ["a.gif"]]


def test_any_beginning_of_an_animation_and_any_byte_is_answered():
    data = write_animation("a.gif", flat(2, (8, 8))).read_bytes()
    random = np.random.default_rng(0)
    path = Path("cut.gif")
    for length in [*range(0, len(data), 3), *[len(data)] * 100]:
        changed = bytearray(data[:length])
        if length == len(data):
            changed[random.integers(length)] = random.integers(256)
        path.write_bytes(changed)
        assert is_animated(path) in (True, False)
    assert not is_animated(Path("/nowhere.gif"))


def test_a_huge_animation_is_refused_by_its_header(monkeypatch):
    path = write_animation("a.gif", flat())
    monkeypatch.setattr(limits, "image_pixels", 48 * 64 - 1)
    with pytest.raises(SourceError, match="the limit is 3,071"):
        open_source(path)


class TestAvif:
    def test_an_image_and_a_folder(self):
        for number in (2, 10):
            PILImage.fromarray(picture(seed=number)).save(f"{number}.avif", quality=95)
        frames = {Path(frame.name).name: frame.image for frame in open_source(".")}
        assert list(frames) == ["2.avif", "10.avif"]
        assert all(close_to(image, picture(seed=int(name[:-5]))) for name, image in frames.items())

    @pytest.mark.parametrize("has_exif", [False, True])
    @pytest.mark.parametrize("orientation", [1, 2, 5, 6, 8])
    def test_its_rotation_is_applied_once(self, orientation, has_exif):
        image = picture()
        image[:12, :20] = (250, 20, 20)
        exif = PILImage.Exif()
        exif[0x0112] = orientation
        if has_exif:
            facts = np.frombuffer(exif.tobytes()[6:], np.uint8)[None]
            written = cv2.imencodeWithMetadata(".avif", image[..., ::-1], [cv2.IMAGE_METADATA_EXIF], [facts])
            Path("a.avif").write_bytes(written[1].tobytes())
        else:  # stated by a property of the image only
            PILImage.fromarray(image).save("a.avif", exif=exif, quality=95)
        turned = PILImage.fromarray(image)
        turned.getexif()[0x0112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(turned))
        assert close_to(read_image(Path("a.avif")), expected)

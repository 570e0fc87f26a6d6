"""Animations, and AVIF as images."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image as PILImage
from PIL import ImageOps

from maskjet.errors import SourceError
from maskjet.media.expansion import expand_sources
from maskjet.media.frames import open_source
from maskjet.media.images import read_image
from tests.media.clips import close_to, picture, read

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


def test_an_animated_gif_is_refused_as_a_source_and_elsewhere_its_first_image():
    write_animation("a.gif", flat())
    write_animation("still.gif", flat()[:1])
    write_animation("a.png", flat())
    with pytest.raises(SourceError, match=r"must be an image or a video, 'a\.gif' is an animation: make an MP4 of it"):
        open_source("a.gif")
    for given in ("still.gif", "a.png"):
        source, (frame,) = read(given)
        assert source.kind == "image"
        np.testing.assert_array_equal(frame.image, flat()[0])
    for given in (["a.gif", "still.gif"], ".", "*.gif"):
        assert all(np.array_equal(frame.image, flat()[0]) for frame in open_source(given))
    (images,) = expand_sources(".")
    assert [path.name for path in images.files] == ["a.gif", "a.png", "still.gif"]


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

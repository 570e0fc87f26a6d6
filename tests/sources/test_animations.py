"""Animations as sources."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PILImage

from maskjet.errors import SourceError
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import open_source
from tests.sources.clips import read

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

"""paint: how outlines look, and what overlaps what."""

import math

import numpy as np
import pytest
import torch

from maskjet.masks import coco_rle
from maskjet.ops import paint

SIZE = (160, 160)
BLACK, WHITE = torch.zeros(*SIZE, 3, dtype=torch.uint8), torch.full((1, 3), 255, dtype=torch.uint8)
Y, X = np.mgrid[: SIZE[0], : SIZE[1]]


def outline_of(mask, line):
    """Opacity of a mask's outline, float [H, W]."""
    painted = paint(BLACK, coco_rle.encode(mask), WHITE, opacity=0, line=line)
    assert (painted == painted[..., :1]).all()
    return painted[..., 0].numpy() / 255


@pytest.mark.parametrize("line", [1, 2, 3, 4, 7, 16, 31, 32])
def test_a_straight_outline_is_as_wide_as_asked_for_and_sharp(line):
    """Centred on the border like a box's line, if odd half a pixel further in."""
    expected = np.zeros(80)
    expected[40 - (line - line // 2) : 40 + line // 2] = 1
    np.testing.assert_allclose(outline_of(X < 80, line)[80, 40:120], expected, atol=0.1)
    np.testing.assert_allclose(outline_of(Y < 80, line)[40:120, 80], expected, atol=0.1)


@pytest.mark.parametrize("line", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("degrees", [0, 10, 27, 45, 63, 80])
def test_an_outline_is_equally_wide_in_all_directions_and_has_no_steps(line, degrees):
    across, down = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    depth = across * (X - 80) + down * (Y - 80)
    shown = outline_of(depth < 0, line)
    middle = (np.abs(down * (X - 80) - across * (Y - 80)) < 20) & (np.abs(depth) < 20)
    assert shown[middle].sum() / 40 == pytest.approx(line, rel=0.07)
    off_centre = np.abs(depth + line % 2 / 2)
    assert (shown[middle & (off_centre < line / 2 - 0.9)] > 0.9).all()
    assert (shown[middle & (off_centre > line / 2 + 1.2)] == 0).all()


@pytest.mark.parametrize("line", [1, 2, 5, 32])
def test_nothing_of_a_mask_is_too_thin_for_an_outline(line):
    for where in ((45, 80), (slice(None), 80), (45, slice(None)), (0, 0), (slice(159, None), slice(159, None))):
        mask = np.zeros(SIZE, bool)
        mask[where] = True
        assert (outline_of(mask, line)[mask] == 1).all()


def test_masks_are_painted_from_the_last_to_the_first_as_if_one_by_one():
    random = np.random.default_rng(0)
    masks = np.stack([(Y - y) ** 2 + (X - x) ** 2 < 30**2 for y, x in random.integers(20, 90, (9, 2))])
    colours = torch.from_numpy(random.integers(0, 256, (9, 3), np.uint8))
    image = torch.from_numpy(random.integers(0, 256, (*SIZE, 3), np.uint8))
    rles, before = coco_rle.encode(masks), image.clone()
    painted = paint(image, rles, colours, opacity=99, line=3)
    assert torch.equal(image, before)
    for i in range(8, -1, -1):
        assert paint(image, rles[i : i + 1], colours[i : i + 1], opacity=99, line=3, out=image) is image
    assert torch.equal(painted, image)

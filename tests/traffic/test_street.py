"""The street: exact masks, the same every time, and something of everything."""

import numpy as np
import pytest

from maskjet import traffic
from maskjet.errors import InputError
from maskjet.traffic import Street, sample

SIZE = (180, 320)


def test_the_same_seed_gives_the_same_bytes_in_any_order():
    first, second = Street(3, SIZE), Street(3, SIZE)
    forwards = [first.frame(index) for index in (0, 40, 80)]
    backwards = [second.frame(index) for index in (80, 40, 0)]
    for one, other in zip(forwards, reversed(backwards), strict=True):
        for field, value in vars(one).items():
            np.testing.assert_array_equal(value, getattr(other, field))
    stills = [sample(seed, size_hw=SIZE).image for seed in (7, 8)]
    for one, other in ((Street(4, SIZE).frame(0).image, forwards[0].image), stills):
        assert (one != other).mean() > 0.5
    assert (forwards[0].image != forwards[1].image).mean() > 0.1


def test_masks_are_what_the_map_says():
    frame = Street(0, SIZE).frame(100)
    masks = frame.masks()
    count = len(frame.class_id)
    assert masks.shape == (count, *SIZE)
    assert count == len(frame.track_id) == frame.instance_map.max()
    assert masks.sum(0).max() == 1
    assert (masks.any(0) == (frame.instance_map > 0)).all()
    assert masks.sum((1, 2)).min() >= traffic.MIN_PIXELS
    for mask, (x1, y1, x2, y2) in zip(masks, frame.xyxy().astype(int), strict=True):
        assert mask[y1:y2, x1:x2].sum() == mask.sum()
        assert mask[y1].any()
        assert mask[y2 - 1].any()
        assert mask[:, x1].any()
        assert mask[:, x2 - 1].any()


def test_masks_are_exact(monkeypatch):
    """Painting one thing in a loud colour changes exactly the pixels of its mask, before the lens blurs them."""
    monkeypatch.setattr("maskjet.traffic.street.cv2.GaussianBlur", lambda image, *_: image)
    street = Street(2, SIZE)
    plain = street.frame(50)
    things = street._things(50 / traffic.FPS)
    assert len(plain.track_id) > 5
    for number, track in enumerate(plain.track_id, start=1):
        (thing,) = [thing for thing in things if thing.track == track]
        before = thing.body.colours.copy()
        thing.body.colours[:] = (255, 0, 255)
        loud = street.frame(50)
        thing.body.colours[:] = before
        changed = (loud.image != plain.image).any(-1)
        inside = plain.instance_map == number
        assert not (changed & ~inside).any()
        assert changed[inside].mean() > 0.98  # a pixel may have been as loud before


def test_tracks_move_on_and_keep_their_class():
    street = Street(1, SIZE)
    classes, places = {}, {}
    for index in range(0, 60, 5):
        frame = street.frame(index)
        assert len(set(frame.track_id.tolist())) == len(frame.track_id)
        for track, class_id, box in zip(frame.track_id.tolist(), frame.class_id, frame.xyxy(), strict=True):
            assert classes.setdefault(track, class_id) == class_id
            places.setdefault(track, []).append(box)
    moved = [np.abs(boxes[-1] - boxes[0]).max() for boxes in places.values() if len(boxes) > 6]
    assert np.median(moved) > 2


def test_every_class_and_a_wide_range_of_sizes_appear():
    heights, classes = [], set()
    for seed in range(4):
        frame = sample(seed, size_hw=(720, 1280))
        classes |= set(frame.class_id.tolist())
        boxes = frame.xyxy()
        heights += (boxes[:, 3] - boxes[:, 1]).tolist()
    assert classes == set(range(len(traffic.CLASSES)))
    assert min(heights) <= 10
    assert max(heights) >= 240


def test_an_empty_street_is_empty():
    frame = Street(5, SIZE, density=0).frame(10)
    assert frame.masks().shape == (0, *SIZE)
    assert frame.xyxy().shape == (0, 4)
    assert frame.instance_map.max() == 0
    assert frame.image.std() > 10


def test_sizes_show_the_same_scene():
    small, large = (Street(6, (180 * k, 320 * k)).frame(30) for k in (1, 2))
    shared = set(small.track_id) & set(large.track_id)
    assert len(shared) > 3
    for track in shared:
        boxes = [frame.xyxy()[list(frame.track_id).index(track)] * scale for frame, scale in ((small, 2), (large, 1))]
        np.testing.assert_allclose(*boxes, atol=12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size_hw": (15, 100)}, r"size_hw must be \(height, width\) of at least 16 pixels, got \(15, 100\)"),
        ({"density": -0.1}, r"density must be at least 0, got -0\.1"),
        ({"density": float("nan")}, "density must be at least 0, got nan"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        Street(0, **arguments)

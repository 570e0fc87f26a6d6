"""Who hides whom, and what is cut where it comes too near."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskjet.traffic import Street, sample, scenery
from maskjet.traffic.bodies import build_box
from maskjet.traffic.camera import NEAR_M, Camera
from maskjet.traffic.painter import Thing, cut_sprite, draw_bodies, order_by_depth

CAMERA = Camera((120, 160), height_m=7.0, x_m=0.0, pitch=0.5, yaw=0.0, field_of_view=0.8)
LIGHT = scenery.Light(np.array([0.0, 0.0, 1.0]), 0.6, 0.4, np.ones(3), 0.5, (200, 200, 200))


def _owners(*things):
    canvas = np.zeros((*CAMERA.size_hw, 4), dtype=np.uint8)
    draw_bodies(canvas, CAMERA, light=LIGHT, things=things)
    return canvas[..., 3]


def _box(width, length, height, x, y, *, details=()):
    return Thing(build_box((width, length, height), (90, 90, 90), details, top=(120, 120, 120)), x, y)


def test_a_long_thing_does_not_hide_what_stands_between_it_and_the_camera():
    long, short = _box(2.5, 14, 3, -2.6, 16), _box(1.5, 2, 1.5, -0.5, 20)  # its middle is nearer, its side is not
    assert order_by_depth(np.array([long.footprint, short.footprint]), CAMERA.position[:2]) == [0, 1]
    alone, together = _owners(short), _owners(long, short)
    assert (together[alone == 1] == 2).all()
    assert (together == 1).any()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=20, unique=True), st.floats(-9, 9)
)
def test_nearer_ones_are_drawn_later_on_any_grid(cells, eye_x):
    """In a row across the road the one nearer to the eye comes later; so does any in a row nearer to it."""
    corners = np.add(np.multiply(cells, (3.0, 6.0)), (-15, 4))
    order = order_by_depth(np.hstack([corners, np.add(corners, (2, 5))]), np.array([eye_x, 0.0]))
    assert sorted(order) == list(range(len(cells)))
    turn = np.argsort(order)
    for i, (column, row) in enumerate(cells):
        for j, (other_column, other_row) in enumerate(cells):
            if column == other_column and row < other_row:
                assert turn[i] > turn[j]
            if row == other_row and column < other_column and eye_x <= corners[i, 0]:
                assert turn[i] > turn[j]


def test_what_comes_too_near_is_cut_and_not_left_out():
    """A wall that runs past the camera stays whole where it is seen, and its windows lie on it."""
    plain = _box(4, 40, 6, 5, 10)
    corners = np.add(plain.body.corners, (plain.x, plain.y, 0))
    depth = CAMERA.project(corners)[1]
    assert (depth.min(axis=1) < NEAR_M).any()
    assert (depth.max(axis=1) > NEAR_M).any()
    windows = [("left", (k / 9, (k + 0.6) / 9), (0.2, 0.8), (10, 20, 30)) for k in range(9)]
    assert (_owners(plain) == 1)[:, -20:].all()
    np.testing.assert_array_equal(_owners(plain), _owners(_box(4, 40, 6, 5, 10, details=windows)))


def test_a_sprite_draws_the_same_again():
    thing = scenery.Occluder(1.0, 12.0, "sign", (200, 40, 40), 2.6, np.zeros((0, 4)))
    canvas = np.zeros((*CAMERA.size_hw, 4), dtype=np.uint8)
    scenery.draw_occluder(canvas, CAMERA, LIGHT, thing)
    drawn = canvas.copy()
    sprite = cut_sprite(canvas, (0, 0, 1, 1))
    assert drawn.any()
    assert not canvas.any()
    assert cut_sprite(canvas, (0, 0, 1, 1)) is None
    canvas[..., 3] = 7
    sprite.draw(canvas)
    np.testing.assert_array_equal(canvas[..., :3], drawn[..., :3])
    np.testing.assert_array_equal(canvas[..., 3] == 0, drawn[..., 3] > 0)


def test_hidden_things_leave_the_rest_as_it_was():
    """Without one thing, only pixels of its mask, and the ground in its shadow, look otherwise."""
    street = Street(5, (180, 320))
    whole = street.frame(90)
    things = street._things(90 / 30)
    draw_all = street._things
    checked = 0
    for number, track in enumerate(whole.track_id.tolist(), start=1):
        street._things = lambda time_s, track=track: [t for t in draw_all(time_s) if t.track != track]
        without = street.frame(90)
        mine = whole.instance_map == number
        for other, other_track in enumerate(whole.track_id.tolist(), start=1):
            if other != number:
                (now,) = np.flatnonzero(without.track_id == other_track) + 1
                grown = without.instance_map == now
                before = whole.instance_map == other
                assert (before <= grown).all()
                assert (grown & ~before <= mine).all()
        checked += 1
    assert checked > 5
    assert len(things) >= checked


@pytest.mark.parametrize("size", [(16, 16), (64, 64), (48, 200)])
def test_many_streets_can_be_drawn(size):
    for seed in range(25):
        frame = sample(seed, size_hw=size)
        assert frame.image.shape == (*size, 3)
        assert np.isin(np.arange(1, len(frame.class_id) + 1), frame.instance_map).all()

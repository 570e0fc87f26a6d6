"""Who hides whom, and what is cut where it comes too near."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskjet.traffic import sample, scenery
from maskjet.traffic.bodies import Builder
from maskjet.traffic.camera import NEAR_M, Camera
from maskjet.traffic.painter import Thing, draw_bodies, order_by_depth

CAMERA = Camera((120, 160), height_m=7.0, x_m=0.0, pitch=0.5, yaw=0.0, field_of_view=0.8)
LIGHT = scenery.Light(np.array([0.0, 0.0, 1.0]), 0.6, 0.4, np.ones(3), 0.5, (200, 200, 200))


def _owners(*things):
    canvas = np.zeros((*CAMERA.size_hw, 4), dtype=np.uint8)
    draw_bodies(canvas, CAMERA, light=LIGHT, things=things)
    return canvas[..., 3]


def _box(width, length, height, x, y, *, details=()):
    b = Builder()
    faces = b.box((width, length, height), (0, 0, 0), (90, 90, 90), faces={"top": (120, 120, 120)})
    for side, u, v, paint in details:
        b.detail(faces[side], u, v, paint)
    return Thing(b.build((width, length, height)), x, y)


def test_a_long_thing_does_not_hide_what_stands_between_it_and_the_camera():
    long, short = _box(2.5, 14, 3, -2.6, 16), _box(1.5, 2, 1.5, -0.5, 20)  # its middle is nearer, its side is not
    assert order_by_depth(np.array([long.footprint, short.footprint]), CAMERA.position[:2]) == [0, 1]
    alone, together = _owners(short), _owners(long, short)
    assert (together[alone == 1] == 2).all()
    assert (together == 1).any()


@settings(max_examples=40)
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


@pytest.mark.parametrize("size", [(16, 16), (64, 64), (31, 500), (500, 17)])
def test_many_streets_can_be_drawn(size):
    for seed in range(8):
        frame = sample(seed, size_hw=size)
        assert frame.image.shape == (*size, 3)
        assert np.isin(np.arange(1, len(frame.class_id) + 1), frame.instance_map).all()

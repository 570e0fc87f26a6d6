"""The tensor probe: ours equal their oracles, the oracles differ as they should, and every planted fault is found."""

import json
import sys
from dataclasses import replace
from functools import partial

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import probe as module
from benchmarks.probe import BUCKETS, probe, ulps_apart
from maskjet.errors import InputError, MissingDependencyError
from maskjet.ops import gpu
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD, ModelSpec

SIDE = 70
SPEC = ModelSpec("small", SIDE, patch_size=1, windows=1, decoder_layers=1, queries=1, has_masks=False)
CPU = torch.device("cpu")
CONTRACT = 4.8e-7  # of ops.preprocess, in float32
EXACT = partial(module._interpolate, spec=SPEC)

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return torch.device(request.param)


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def images_of_all_kinds():
    yield random_image(97, 133)
    yield random_image(1, 1)
    yield random_image(1, 90)
    yield random_image(SIDE, SIDE)
    yield random_image(60, 80)[::-1, ::2]
    yield random_image(50, 90)[:, 3:41, ::-1]
    unwritable = random_image(9, 8)
    unwritable.setflags(write=False)
    yield unwritable


def compare_with_exact(variant, images):
    """The measurement of a variant against what it should be."""
    (found,), scene = module._compare(images, {"planted": variant}, {"F.interpolate": EXACT}, device=CPU)
    return found, scene


def plant(off, *, image, at):
    """A variant that is `off` at one value of one image: exact otherwise."""
    seen = []

    def run(frame):
        made = EXACT(frame)
        if len(seen) == image:
            made[at] = off(made[at])
        seen.append(frame)
        return made

    return run


def next_float(value, steps):
    return value.view(torch.int32).add(steps).view(torch.float32)


def test_ours_equal_their_oracles(device):
    steps = []
    report = probe(images_of_all_kinds(), spec=SPEC, device=device, on_progress=lambda: steps.append(1))
    found = {(m.variant, m.oracle): m for m in report.measurements}
    ours = ("reference", "cpu") if device.type == "cpu" else ("reference", "triton")
    assert len(found) == len(ours) * 2 * 2 + 1
    assert len(steps) == 7
    for m in report.measurements:
        assert (m.images, m.values) == (7, 7 * 3 * SIDE * SIDE)
        assert sum(m.ulps.values()) == m.values
        assert tuple(m.ulps) == BUCKETS
        assert m.mean_difference <= m.max_difference
    for name in ours:
        assert found[name, "F.interpolate"].max_difference <= CONTRACT
        assert found[f"{name}, cv2", "cv2.resize"].max_difference <= CONTRACT
    for pair in (("reference", "F.interpolate"), ("reference, cv2", "cv2.resize")):
        assert found[pair].max_difference == 0
        assert found[pair].equal == 1
        assert found[pair].ulps["0"] == found[pair].values
        assert found[pair].largest_at is None
    yardstick = report.measurements[-1]
    assert (yardstick.variant, yardstick.oracle) == ("F.interpolate", "cv2.resize")
    assert 5e-3 < yardstick.max_difference < 2e-2
    for pair in (("reference", "cv2.resize"), ("reference, cv2", "F.interpolate")):
        assert found[pair].max_difference == pytest.approx(yardstick.max_difference, abs=CONTRACT)


def test_what_cannot_run_is_named(tmp_path):
    report = probe([random_image(9, 9)], spec=SPEC, device=CPU)
    (note,) = report.notes
    assert note.startswith("triton left out: implementation='triton' can't run ops.preprocess here: it needs tensors")
    assert str(report).endswith(note)
    report.write(tmp_path / "probe.json")
    assert json.loads((tmp_path / "probe.json").read_text()) == json.loads(json.dumps(report.as_dict()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, not interpreted")
def test_kernels_are_probed_where_they_can_run(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    gpu.why_not.cache_clear()
    report = probe([random_image(80, 90)], spec=SPEC, device=CPU)
    gpu.why_not.cache_clear()
    found = {(m.variant, m.oracle): m for m in report.measurements}
    assert report.notes == []
    assert 0 < found["triton", "F.interpolate"].equal <= 1
    assert found["triton", "F.interpolate"].max_difference <= CONTRACT
    assert found["triton, cv2", "cv2.resize"].max_difference <= CONTRACT


def test_the_oracles_are_what_they_are_called():
    """Of 10, 20, 30 and 41 floats have the mean 25.25, bytes 25."""
    spec = replace(SPEC, input_size=1)
    frame = torch.tensor([[10, 20], [30, 41]], dtype=torch.uint8)[..., None].expand(2, 2, 3)
    for oracle, value in ((module._interpolate, 25.25), (module._resize, 25)):
        expected = [(value / 255 - mean) / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]
        torch.testing.assert_close(oracle(frame, spec=spec).flatten(), torch.tensor(expected), rtol=0, atol=CONTRACT)
    yardstick = probe([frame.numpy()], spec=spec, device=CPU).measurements[-1]
    steps = 0.25 / 255 / np.array(IMAGENET_STD)
    assert yardstick.max_difference == pytest.approx(steps.max(), abs=CONTRACT)
    assert yardstick.mean_difference == pytest.approx(steps.mean(), abs=CONTRACT)
    assert (yardstick.largest_at, yardstick.equal) == ((0, 0, 0), 0)


@pytest.mark.parametrize(
    ("steps", "bucket"),
    [(1, "1"), (-2, "2"), (3, "3-4"), (4, "3-4"), (-5, "5-8"), (9, "9-16"), (1024, "513-1024"), (1025, ">1024")],
)
def test_a_value_some_ulps_off_is_counted_where_it_belongs(steps, bucket):
    images = [random_image(30 + n, 40, seed=n) for n in range(3)]
    found, _ = compare_with_exact(plant(partial(next_float, steps=steps), image=1, at=(2, 7, 11)), images)
    assert {key: count for key, count in found.ulps.items() if count} == {"0": found.values - 1, bucket: 1}
    right = EXACT(torch.from_numpy(images[1]))[2, 7, 11]
    assert found.max_difference == abs(float(next_float(right, steps)) - float(right)) > 0
    assert found.mean_difference == pytest.approx(found.max_difference / found.values)
    assert found.largest_at == (1, 7, 11)
    assert found.equal == pytest.approx(1 - 1 / (3 * 3 * SIDE * SIDE))


def test_a_pixel_one_byte_off_is_found_and_never_rounded_away():
    step = 1 / 255 / IMAGENET_STD[1]
    images = [random_image(SIDE, SIDE, seed=n) for n in range(4)]
    found, scene = compare_with_exact(plant(lambda value: value + step, image=2, at=(1, 69, 0)), images)
    assert found.max_difference == pytest.approx(step, abs=CONTRACT)
    assert found.largest_at == (2, 69, 0)
    assert found.ulps[">1024"] == 1
    assert scene.index == 2
    np.testing.assert_array_equal(scene.image, images[2])
    where = scene.maps["planted", "F.interpolate"]
    assert np.argwhere(where).tolist() == [[69, 0]]
    row = module._as_row(found)
    assert row[:4] == ("planted", "F.interpolate", "4", "1.8e-02")
    assert row[5:] == ("99.99 %", "99.99 %", "99.99 %", ">1024 ULPs")


def test_a_shifted_frame_is_found():
    image = random_image(SIDE, SIDE)
    found, _ = compare_with_exact(lambda frame: EXACT(frame.roll(1, dims=1)), [image])
    moved = np.abs(image.astype(int) - np.roll(image, 1, axis=1))
    assert found.max_difference == pytest.approx((moved / 255 / IMAGENET_STD).max(), abs=2 * CONTRACT)
    assert found.mean_difference == pytest.approx((moved / 255 / IMAGENET_STD).mean(), abs=2 * CONTRACT)
    assert found.equal == pytest.approx((moved == 0).mean())


def test_swapped_channels_are_found():
    image = np.full((20, 30, 3), (10, 77, 200), dtype=np.uint8)
    found, _ = compare_with_exact(lambda frame: EXACT(frame.flip(-1)), [image])
    red, _, blue = 190 / 255 / np.array(IMAGENET_STD)
    assert found.max_difference == pytest.approx(max(red, blue), abs=2 * CONTRACT)
    assert found.mean_difference == pytest.approx((red + blue) / 3, abs=2 * CONTRACT)
    assert found.equal == pytest.approx(1 / 3)


def test_the_two_zeros_are_no_distance_apart_but_not_equal_bit_for_bit():
    blank = torch.zeros(3, 4, 4)
    (found,), _ = module._compare(
        [random_image(4, 4)], {"negative": lambda _: -blank}, {"positive": lambda _: blank}, device=CPU
    )
    assert (found.max_difference, found.ulps["0"], found.equal) == (0, 48, 0)


def test_a_value_never_written_is_infinitely_far():
    variant = plant(lambda value: value * torch.nan, image=0, at=(0, 5, 6))
    found, _ = compare_with_exact(variant, [random_image(9, 9)])
    assert found.max_difference == found.mean_difference == np.inf
    assert (found.largest_at, found.ulps[">1024"]) == ((0, 5, 6), 1)


def test_implementations_get_an_output_full_of_nan(monkeypatch):
    """So that one that writes nothing is found."""
    idle = replace(module.RECORD, public=lambda *_args, **_options: None)
    monkeypatch.setattr(module, "RECORD", idle)
    report = probe([random_image(9, 9)], spec=SPEC, device=CPU)
    assert all(m.max_difference == np.inf for m in report.measurements[:-1])


INF, NAN = float("inf"), float("nan")
TINY = 2.0**-149  # the smallest denormal
LARGEST = (2 - 2.0**-23) * 2.0**127


@pytest.mark.parametrize(
    ("value", "other", "distance"),
    [
        (1.0, 1.0, 0),
        (0.0, -0.0, 0),
        (1.0, 1 + 2.0**-23, 1),
        (1.0, 1 - 2.0**-24, 1),
        (-1.0, -1 - 2.0**-23, 1),
        (1.0, 2.0, 2**23),
        (0.0, TINY, 1),
        (-0.0, TINY, 1),
        (TINY, -TINY, 2),
        (3 * TINY, 7 * TINY, 4),
        (2.0**-126, 2.0**-126 - TINY, 1),  # the smallest normal number, and the denormal before it
        (1.0, -1.0, 2 * 127 * 2**23),
        (LARGEST, INF, 1),
        (INF, INF, 0),
        (INF, -INF, 2 * 255 * 2**23),
        (NAN, NAN, 0),
        (NAN, -NAN, 0),
        (NAN, 1.0, 2**32),
        (-NAN, INF, 2**32),
    ],
)
def test_ulps_between_two_numbers(value, other, distance):
    numbers = torch.tensor([value, other], dtype=torch.float32)
    assert ulps_apart(numbers, numbers.flip(0)).tolist() == [distance, distance]


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(0, 5))
def test_each_next_number_is_one_ulp_further(start, steps):
    value = further = np.float32(start)
    for _ in range(steps):
        further = np.nextafter(further, np.float32(np.inf))
    assert int(ulps_apart(torch.tensor(value), torch.tensor(further))) == steps


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([], "images must hold at least one, got none"),
        ([np.zeros((4, 4, 3), np.float32)], r"images\[0\] must be uint8 \[H, W, 3\] RGB in 0..255, got float32"),
        ([random_image(4, 4), np.zeros((0, 4, 3), np.uint8)], r"images\[1\] must be .*at least one pixel, got uint8"),
    ],
)
def test_bad_images_are_named(images, message):
    with pytest.raises(InputError, match=message):
        probe(iter(images), spec=SPEC, device=CPU)


@pytest.fixture
def plan(monkeypatch):
    """Lets a test choose the variants that are probed."""
    pytest.importorskip("matplotlib")
    return lambda variants: monkeypatch.setattr(module, "_find_variants", lambda *_: (variants, []))


@pytest.mark.parametrize(
    ("source", "planted", "columns"),
    [
        ((SIDE, SIDE), lambda frame: EXACT(frame), 1),  # no pair differs
        ((SIDE, SIDE), plant(lambda value: value * torch.nan, image=0, at=(0, 5, 6)), 2),  # from both oracles alike
        ((80, 90), plant(partial(next_float, steps=1), image=0, at=(0, 5, 6)), 3),  # and the oracles do
    ],
)
def test_the_picture_has_a_map_for_all_that_differs(plan, tmp_path, source, planted, columns):
    plan({"planted": planted})
    probe([random_image(*source)], spec=SPEC, device=CPU, picture=tmp_path / "where.png")
    picture = cv2.imread(str(tmp_path / "where.png"))
    assert picture.shape[1] == pytest.approx(110 * (5 * columns + 1.8), abs=1)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 500


def test_the_picture_shows_the_planted_pixel(plan, tmp_path):
    """A map without a difference but one: grey, a ring, and in it the colour of the largest."""
    plan({"planted": plant(lambda value: value + 1, image=0, at=(0, 35, 50))})
    probe([np.zeros((8, 8, 3), np.uint8)], spec=SPEC, device=CPU, picture=tmp_path / "where.png")
    red_green_blue = cv2.imread(str(tmp_path / "where.png"))[..., ::-1]
    grey = np.argwhere((red_green_blue == 0xE4).all(axis=-1))
    ring = np.argwhere((np.abs(red_green_blue.astype(int) - (0xFF, 0x2D, 0x78)) < 20).all(axis=-1))
    top_left, bottom_right = np.quantile(grey, [0.01, 0.99], axis=0)
    ring = ring[(ring < bottom_right).all(axis=-1)]  # not that of the legend
    assert len(ring) > 20
    share = (ring.mean(axis=0) - top_left) / (bottom_right - top_left)
    np.testing.assert_allclose(share, np.array([35.5, 50.5]) / SIDE, atol=0.02)


def test_without_matplotlib_no_image_is_read(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    images = iter([random_image(4, 4)])
    with pytest.raises(MissingDependencyError, match=r'A chart needs matplotlib: pip install "maskjet\[bench\]"'):
        probe(images, spec=SPEC, device=CPU, picture=tmp_path / "where.png")
    assert next(images).shape == (4, 4, 3)
    assert not (tmp_path / "where.png").exists()

"""The tensor probe: ours equal their oracles, the oracles differ as they should, and every planted fault is found."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import probe as module
from benchmarks.probe import BUCKETS, probe, ulps_apart
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD, ModelSpec

SIDE = 70
SPEC = ModelSpec("small", SIDE, patch_size=1, windows=1, decoder_layers=1, queries=1, has_masks=False)
CPU = torch.device("cpu")
CONTRACT = 4.8e-7  # of ops.preprocess, in float32
EXACT = partial(module._interpolate, spec=SPEC)

pytestmark = pytest.mark.usefixtures("two_threads")


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


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


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)])
def test_ours_equal_their_oracles(device):
    steps = []
    images = [random_image(97, 133), random_image(1, 90), random_image(SIDE, SIDE), random_image(60, 80)[::-1, ::2]]
    report = probe(iter(images), spec=SPEC, device=device, on_progress=lambda: steps.append(1))
    found = {(m.variant, m.oracle): m for m in report.measurements}
    ours = ("reference", "cpu") if device.type == "cpu" else ("reference", "triton")
    assert len(found) == len(ours) * 2 * 2 + 1
    assert len(steps) == 4
    for m in report.measurements:
        assert (m.images, m.values) == (4, 4 * 3 * SIDE * SIDE)
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
    [(1, "1"), (-2, "2"), (4, "3-4"), (1024, "513-1024"), (1025, ">1024")],
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


def test_implementations_get_an_output_full_of_nan(monkeypatch):
    """So that a value that is never written is infinitely far."""
    idle = replace(module.RECORD, public=lambda *_args, **_options: None)
    monkeypatch.setattr(module, "RECORD", idle)
    report = probe([random_image(9, 9)], spec=SPEC, device=CPU)
    assert all(m.max_difference == np.inf for m in report.measurements[:-1])
    assert str(report).splitlines()[-1].startswith("triton left out: implementation='triton' can't run ops.preprocess")


INF, NAN = float("inf"), float("nan")
TINY = 2.0**-149  # the smallest denormal


def test_ulps_between_two_numbers():
    for value, other, distance in (
        (1.0, 1.0, 0),
        (1.0, 1 - 2.0**-24, 1),
        (-1.0, -1 - 2.0**-23, 1),
        (0.0, -0.0, 0),
        (-0.0, TINY, 1),
        (TINY, -TINY, 2),
        (2.0**-126, 2.0**-126 - TINY, 1),  # the smallest normal number, and the denormal before it
        (1.0, -1.0, 2 * 127 * 2**23),
        ((2 - 2.0**-23) * 2.0**127, INF, 1),
        (INF, -INF, 2 * 255 * 2**23),
        (NAN, -NAN, 0),
        (-NAN, INF, 2**32),
    ):
        numbers = torch.tensor([value, other], dtype=torch.float32)
        assert ulps_apart(numbers, numbers.flip(0)).tolist() == [distance, distance], (value, other)

"""preprocess: against rfdetr's own steps, OpenCV, and bad input."""

import cv2
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from maskjet import ops
from maskjet.errors import InputError
from maskjet.ops.interpolation import SMALL
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.ops.cases import CHECKS
from tests.ops.serving import on_cpu

NORMALISATION = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
IMPLEMENTATIONS = on_cpu("preprocess")


def random_frame(height, width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("height", "width"), [(176, 312), (720, 1280), (53, 37), (312, 312)])
def test_reference_equals_rfdetr_bit_for_bit(height, width):
    functional = pytest.importorskip("torchvision.transforms.functional", reason="torchvision is not installed")
    frame = random_frame(height, width)
    image = functional.resize(functional.to_tensor(frame.numpy()), [312, 312], antialias=False)
    expected = functional.normalize(image, IMAGENET_MEAN, IMAGENET_STD)
    actual = ops.preprocess(frame, size=(312, 312), **NORMALISATION, implementation="reference")
    torch.testing.assert_close(actual[0], expected, atol=0, rtol=0)


def assert_resizes_as_the_reference(source, size, order, seed, implementation):
    inputs = {"frames": random_frame(*source, seed), "size": size, "order": order, **NORMALISATION}
    expected = ops.preprocess(**inputs, implementation="reference")
    actual = ops.preprocess(**inputs, implementation=implementation)
    assert CHECKS["preprocess"].tolerance_used(inputs, expected, actual) <= 1


SOURCES = st.tuples(st.integers(1, 70), st.integers(1, 70))
ORDERS = st.sampled_from(["rgb", "bgr"])
SEEDS = st.integers(0, 2**31)


@settings(max_examples=40, deadline=None)
@given(source=SOURCES, size=st.tuples(st.integers(1, 120), st.integers(1, 120)), order=ORDERS, seed=SEEDS)
def test_implementations_agree(source, size, order, seed):
    assert_resizes_as_the_reference(source, size, order, seed, "cpu")


# ATen's kernels for small outputs on a CPU round otherwise, which the kernels for a GPU needn't follow.
@pytest.mark.skipif("triton" not in IMPLEMENTATIONS, reason="kernels are compiled here, not interpreted")
@settings(max_examples=5, deadline=None)
@given(
    source=SOURCES,
    size=st.tuples(st.integers(1, 9), st.integers(SMALL, SMALL + 30)),
    is_tall=st.booleans(),
    order=ORDERS,
    seed=SEEDS,
)
def test_interpreted_kernels_agree(source, size, is_tall, order, seed):
    assert_resizes_as_the_reference(source, size[::-1] if is_tall else size, order, seed, "triton")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_cv2_resampling_is_opencvs(implementation):
    frame = random_frame(77, 53)
    resized = cv2.resize(frame.numpy(), (40, 30), interpolation=cv2.INTER_LINEAR)
    unit = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    actual = ops.preprocess(frame, size=(30, 40), resample="cv2", **unit, implementation=implementation)
    np.testing.assert_array_equal((actual[0] * 255).round().byte().permute(1, 2, 0).numpy(), resized)


@pytest.mark.skipif("triton" not in IMPLEMENTATIONS, reason="kernels are compiled here, not interpreted")
@settings(max_examples=10, deadline=None)
@given(
    source=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 60)),
    seed=st.integers(0, 2**31),
)
def test_the_kernels_cv2_resampling_is_bit_exact(source, size, seed):
    frame = random_frame(*source, seed)
    resized = cv2.resize(frame.numpy(), size[::-1], interpolation=cv2.INTER_LINEAR)
    unit = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    actual = ops.preprocess(frame, size=size, resample="cv2", **unit, implementation="triton")
    expected = torch.from_numpy(resized).permute(2, 0, 1).float() / 255
    assert torch.equal(actual[0], expected)


@pytest.mark.gpu
def test_whole_numbers_compile_what_others_use(monkeypatch):
    from maskjet.ops.gpu import Launcher
    from maskjet.ops.preprocess import triton

    fresh = {name: Launcher(each._kernel, **each._options) for name, each in triton._launch.items()}
    monkeypatch.setattr(triton, "_launch", fresh)
    frame = random_frame(20, 30).cuda()
    for normalisation in ({"mean": (0, 0, 0), "std": (1, 1, 2)}, NORMALISATION, {"mean": (1, 0, 0), "std": (2, 1, 1)}):
        given = {"frames": frame, "size": (16, 16), **normalisation}
        expected = ops.preprocess(**given, implementation="reference")
        actual = ops.preprocess(**given, implementation="triton")
        assert CHECKS["preprocess"].tolerance_used(given, expected, actual) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        *(((720, 1280), dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        *((size, torch.float16) for size in ((1080, 1920), (176, 312), (480, 640), (53, 37), (77, 77), (2160, 3840))),
    ],
)
@pytest.mark.parametrize("resample", ["bilinear", "cv2"])
def test_real_sizes_on_a_gpu(source, resample, dtype):
    inputs = {"frames": random_frame(*source).cuda(), "size": (312, 312), "resample": resample, "dtype": dtype}
    for padding in (None, 114):
        given = {**inputs, **NORMALISATION, "letterbox": padding}
        expected = ops.preprocess(**given, implementation="reference")
        actual = ops.preprocess(**given, implementation="triton")
        assert CHECKS["preprocess"].tolerance_used(given, expected, actual) == 0


def test_a_letterbox_keeps_the_aspect_ratio():
    place = ops.Letterbox().region
    assert place((1080, 1920), (312, 312)).box == (68, 0, 176, 312)
    assert place((50, 20), (20, 20)).box == (0, 6, 20, 8)
    assert place((1, 4000), (300, 400)).box == (149, 0, 1, 400)
    assert ops.Letterbox(place="top-left").region((50, 20), (20, 20)).box == (0, 0, 20, 8)
    frame = torch.full((10, 40, 3), 200, dtype=torch.uint8)
    unit = {"mean": (0, 0, 0), "std": (1, 1, 1)}
    made = ops.preprocess(frame, size=(20, 20), letterbox=51, **unit)[0]
    expected = torch.full((3, 20, 20), 51 / 255)
    expected[:, 7:12] = 200 / 255
    torch.testing.assert_close(made, expected)
    made = ops.preprocess(frame, size=(20, 20), letterbox=ops.Letterbox((51, 0, 102), "top-left"), **unit)[0]
    expected = torch.tensor([51, 0, 102]).view(3, 1, 1).repeat(1, 20, 20) / 255
    expected[:, :5] = 200 / 255
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_writes_into_the_given_buffer_and_nowhere_else(implementation):
    margins = torch.full((3, 3, 8, 8), torch.nan)
    out = margins[1:2]
    returned = ops.preprocess(random_frame(20, 30), out, size=(8, 8), **NORMALISATION, implementation=implementation)
    assert returned is out
    assert out.isfinite().all()
    assert margins[[0, 2]].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": np.zeros((4, 4, 3), np.uint8)}, "frames must be a tensor or YUVFrames, got ndarray; torch.from"),
        ({"frames": torch.zeros(4, 4, 3)}, r"frames must be uint8 \[H, W, 3\].*got float32 \[4, 4, 3\]"),
        ({"frames": torch.zeros(3, 4, 4, dtype=torch.uint8)}, r"frames must be uint8 .*got uint8 \[3, 4, 4\]"),
        ({"frames": torch.zeros(0, 4, 3, dtype=torch.uint8)}, r"at least one pixel, got uint8 \[0, 4, 3\]"),
        ({"size": (0, 4)}, r"size must be \(height, width\) of at least 1 pixel, got \(0, 4\)"),
        ({"mean": (0, 0)}, r"mean must be 3 numbers, got \(0, 0\)"),
        ({"std": (1, 0, 1)}, r"std must be 3 numbers above 0, got \(1, 0, 1\)"),
        ({"order": "gbr"}, r"order must be one of \('rgb', 'bgr'\), got 'gbr'"),
        ({"letterbox": 256}, r"letterbox must be a Letterbox, a byte value, 0\.\.255, or None to stretch, got 256"),
        ({"letterbox": ops.Letterbox(place="left")}, "letterbox must be .*got letterbox, left, #727272"),
        ({"resample": "nearest"}, r"resample must be one of \('bilinear', 'cv2'\), got 'nearest'"),
        (
            {"frames": torch.zeros(1, 1, 3, dtype=torch.uint8).expand(1, 2**30, 3)},
            r"frames must be at most 715,827,88",
        ),
        ({"out": torch.zeros(1, 3, 4, 5)}, r"out must be .*\[1, 3, 8, 8\] on cpu, got float32 \[1, 3, 4, 5\] on cpu"),
        ({"out": torch.zeros(1, 3, 8, 8, dtype=torch.int32)}, r"out must be float32, float16 or bfloat16 .*got int32"),
    ],
)
def test_bad_input_is_named(change, message):
    inputs = {"frames": random_frame(4, 4), "size": (8, 8), **NORMALISATION}
    with pytest.raises(InputError, match=message):
        ops.preprocess(**{**inputs, **change})

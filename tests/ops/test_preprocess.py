"""preprocess: against rfdetr's own steps, and OpenCV."""

import cv2
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from maskjet import ops
from maskjet.ops import YUVFrames, yuv_conversion
from maskjet.ops.interpolation import SMALL
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD
from tests.ops.cases import CHECKS
from tests.ops.frames import NORMALISATION, UNIT, conversions, random_bytes, random_planes
from tests.ops.serving import on_cpu

IMPLEMENTATIONS = on_cpu("preprocess")
MATRICES = st.sampled_from(["bt709", "fcc", "bt601", "smpte240m", "bt2020"])
FILTERS = st.sampled_from(["bilinear", "antialias"])
YUV = YUVFrames(*random_planes(20, 30), yuv_conversion("bt709", full_range=False))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize(("height", "width"), [(176, 312), (720, 1280), (53, 37), (312, 312)])
def test_reference_equals_rfdetr_bit_for_bit(height, width, antialias):
    functional = pytest.importorskip("torchvision.transforms.functional", reason="torchvision is not installed")
    frame = random_bytes(height, width, 3)
    image = functional.resize(functional.to_tensor(frame.numpy()), [312, 312], antialias=antialias)
    expected = functional.normalize(image, IMAGENET_MEAN, IMAGENET_STD)
    options = {"resample": "antialias" if antialias else "bilinear", **NORMALISATION}
    actual = ops.preprocess(frame, size=(312, 312), **options, implementation="reference")
    torch.testing.assert_close(actual[0], expected, atol=0, rtol=0)


@st.composite
def drawn_frames(draw, most):
    """A frame of RGB or BGR, or up to `most` of YUV."""
    source, seed = (draw(st.integers(1, 70)), draw(st.integers(1, 70))), draw(st.integers(0, 2**31))
    if draw(st.booleans()):
        return {"frames": random_bytes(*source, 3, seed=seed), "order": draw(st.sampled_from(["rgb", "bgr"]))}
    colours = draw(st.lists(st.tuples(MATRICES, st.booleans()), min_size=1, max_size=most))
    return {"frames": YUVFrames(*random_planes(*source, (len(colours),), seed), conversions(*colours))}


def assert_equals_the_reference(frames, size, resample, implementation):
    inputs = {**frames, "size": size, "resample": resample, **NORMALISATION}
    expected = ops.preprocess(**inputs, implementation="reference")
    actual = ops.preprocess(**inputs, implementation=implementation)
    assert CHECKS["preprocess"].tolerance_used(inputs, expected, actual) <= 1


@settings(max_examples=60)
@given(frames=drawn_frames(most=3), size=st.tuples(st.integers(1, 120), st.integers(1, 120)), resample=FILTERS)
def test_implementations_agree(frames, size, resample):
    assert_equals_the_reference(frames, size, resample, "cpu")


# ATen's kernels for small outputs on a CPU round otherwise, which the kernels for a GPU needn't follow.
@pytest.mark.skipif("triton" not in IMPLEMENTATIONS, reason="kernels are compiled here, not interpreted")
@settings(max_examples=5)
@given(
    frames=drawn_frames(most=1),
    size=st.tuples(st.integers(1, 9), st.integers(SMALL, SMALL + 30)),
    is_tall=st.booleans(),
    resample=FILTERS,
)
def test_interpreted_kernels_agree(frames, size, is_tall, resample):
    assert_equals_the_reference(frames, size[::-1] if is_tall else size, resample, "triton")


@settings(max_examples=5)
@given(
    source=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 60)),
    seed=st.integers(0, 2**31),
)
def test_cv2_resampling_is_opencvs_bit_for_bit(source, size, seed):
    frame = random_bytes(*source, 3, seed=seed)
    resized = cv2.resize(frame.numpy(), size[::-1], interpolation=cv2.INTER_LINEAR)
    expected = torch.from_numpy(resized).permute(2, 0, 1).float() / 255
    for implementation in IMPLEMENTATIONS:
        actual = ops.preprocess(frame, size=size, resample="cv2", **UNIT, implementation=implementation)
        assert torch.equal(actual[0], expected)
        none = ops.preprocess(frame[None][:0], size=size, resample="cv2", **UNIT, implementation=implementation)
        assert none.shape == (0, 3, *size)


@pytest.mark.gpu
def test_whole_numbers_compile_what_others_use(monkeypatch):
    from maskjet.ops.gpu import Launcher
    from maskjet.ops.preprocess import triton

    fresh = {name: Launcher(each._kernel, **each._options) for name, each in triton._launch.items()}
    monkeypatch.setattr(triton, "_launch", fresh)
    frame = random_bytes(20, 30, 3).cuda()
    for normalisation in ({**UNIT, "std": (1, 1, 2)}, NORMALISATION, {"mean": (1, 0, 0), "std": (2, 1, 1)}):
        given = {"frames": frame, "size": (16, 16), **normalisation}
        expected = ops.preprocess(**given, implementation="reference")
        actual = ops.preprocess(**given, implementation="triton")
        assert CHECKS["preprocess"].tolerance_used(given, expected, actual) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        *(((720, 1280), dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
        *((size, torch.float16) for size in ((1080, 1920), (176, 312), (53, 37), (77, 77), (1, 77), (2160, 3840))),
    ],
)
@pytest.mark.parametrize("resample", ["bilinear", "cv2", "antialias"])
def test_real_sizes_on_a_gpu(source, resample, dtype):
    """RGB, and YUV of three matrices with gaps after its rows; made smaller, and larger."""
    planes = [plane.cuda() for plane in random_planes(*source, (3,), seed=sum(source))]
    yuv = YUVFrames(*planes, conversions(("bt601", False), ("bt709", True), ("bt709", False)).cuda())
    rgb = yuv.to_rgb()
    for size, padding in (((312, 312), None), ((312, 312), 114), ((800, 1333), None)):
        options = {"size": size, "letterbox": padding, "resample": resample, "dtype": dtype, **NORMALISATION}
        # ATen's own antialias kernel for GPUs is up to 4e-4 from that for CPUs, which defines it.
        given = rgb.cpu() if resample == "antialias" else rgb
        expected = ops.preprocess(given, **options, implementation="reference").cuda()
        for frames in (rgb, yuv):
            actual = ops.preprocess(frames, **options, implementation="triton")
            used = CHECKS["preprocess"].tolerance_used(options, expected, actual)
            assert used <= (resample == "antialias")


def test_a_letterbox_keeps_the_aspect_ratio():
    place = ops.Letterbox().region
    assert place((1080, 1920), (312, 312)).box == (68, 0, 176, 312)
    assert place((50, 20), (20, 20)).box == (0, 6, 20, 8)
    assert place((1, 4000), (300, 400)).box == (149, 0, 1, 400)
    assert ops.Letterbox(place="top-left").region((50, 20), (20, 20)).box == (0, 0, 20, 8)
    frame = torch.full((10, 40, 3), 200, dtype=torch.uint8)
    made = ops.preprocess(frame, size=(20, 20), letterbox=51, **UNIT)[0]
    expected = torch.full((3, 20, 20), 51 / 255)
    expected[:, 7:12] = 200 / 255
    torch.testing.assert_close(made, expected)
    made = ops.preprocess(frame, size=(20, 20), letterbox=ops.Letterbox((51, 0, 102), "top-left"), **UNIT)[0]
    expected = torch.tensor([51, 0, 102]).view(3, 1, 1).repeat(1, 20, 20) / 255
    expected[:, :5] = 200 / 255
    torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("frames", [random_bytes(20, 30, 3), YUV], ids=["rgb", "yuv"])
def test_writes_into_the_given_buffer_and_nowhere_else(frames, implementation):
    margins = torch.full((3, 3, 130, 8), torch.nan)
    out = margins[1:2]
    returned = ops.preprocess(frames, out, size=(130, 8), **NORMALISATION, implementation=implementation)
    assert returned is out
    assert out.isfinite().all()
    assert margins[[0, 2]].isnan().all()

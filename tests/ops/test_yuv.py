"""preprocess of YUV: the conversion against FFmpeg's swscale, and layouts in memory."""

import platform

import av
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from av.video.reformatter import VideoReformatter
from hypothesis import given, settings

from maskjet import ops, traffic
from maskjet.ops import YUVFrames, yuv_conversion
from maskjet.ops.preprocess import cpu
from maskjet.sources.frames import open_source
from tests.ops.cases.preprocess import i420
from tests.ops.frames import NORMALISATION, UNIT, conversions, random_bytes, random_planes
from tests.ops.serving import on_cpu

IMPLEMENTATIONS = on_cpu("preprocess")
CODES = {"bt709": 1, "fcc": 4, "bt601": 6, "smpte240m": 7, "bt2020": 9}  # of H.273
ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="swscale rounds otherwise on other processors")


def write_plane(plane, values):
    rows = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)
    rows[:, : values.shape[1]] = values


def picture_of(luma, chroma, matrix, is_full_range, *, pixel_format="yuv420p"):
    """FFmpeg's picture of NV12 planes."""
    picture = av.VideoFrame(luma.shape[1], luma.shape[0], pixel_format)
    picture.colorspace, picture.color_range = CODES[matrix], 2 if is_full_range else 1
    planes = (chroma[..., 0], chroma[..., 1]) if pixel_format == "yuv420p" else (chroma.flatten(1),)
    for plane, values in zip(picture.planes, (luma, *planes), strict=True):
        write_plane(plane, values.numpy())
    return picture


def frames_of(picture, matrix, is_full_range):
    """The planes of FFmpeg's picture as `YUVFrames`."""
    planes = [
        torch.from_numpy(np.frombuffer(plane, dtype=np.uint8).reshape(-1, plane.line_size)[:, : plane.width].copy())
        for plane in picture.planes
    ]
    return YUVFrames(planes[0], torch.stack(planes[1:], dim=-1), yuv_conversion(matrix, full_range=is_full_range))


def by_swscale(picture):
    return torch.from_numpy(VideoReformatter().reformat(picture, format="rgb24").to_ndarray())


def every_colour():
    """A frame of 4096 × 4096 pixels with each of the 2**24 triples of Y, U and V once."""
    u, v = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    chroma = torch.stack((u, v), dim=-1).byte().repeat(8, 8, 1)
    block = torch.arange(64).view(8, 1, 8, 1).expand(8, 256, 8, 256).reshape(2048, 2048)
    within = torch.tensor([[0, 1], [2, 3]]).repeat(2048, 2048)
    luma = 4 * block.repeat_interleave(2, 0).repeat_interleave(2, 1) + within
    return luma.byte(), chroma


@ON_X86
def test_every_colour_is_swscales():
    luma, chroma = every_colour()
    for number, matrix in enumerate(CODES):
        for is_full_range in (False, True) if matrix == "bt709" else (number % 2 == 0,):
            frames = YUVFrames(luma, chroma, yuv_conversion(matrix, full_range=is_full_range))
            assert torch.equal(cpu.to_rgb(frames)[0], by_swscale(picture_of(luma, chroma, matrix, is_full_range)))


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 70), st.sampled_from([*CODES]), st.booleans(), st.integers(0, 99))
def test_both_conversions_agree_and_even_heights_are_swscales(height, width, matrix, is_full, seed):
    luma, chroma = random_planes(height, width, seed=seed)
    frames = YUVFrames(luma, chroma, yuv_conversion(matrix, full_range=is_full))
    assert torch.equal(cpu.to_rgb(frames), frames.to_rgb())
    if height % 2 == 0 and platform.machine() == "x86_64":
        assert torch.equal(frames.to_rgb()[0], by_swscale(picture_of(luma, chroma, matrix, is_full)))


@pytest.mark.parametrize(("height", "pixel_format"), [(49, "yuv420p"), (48, "nv12")])
def test_where_swscale_interpolates_chroma_flat_colours_are_within_3(height, pixel_format):
    luma = random_bytes(height, 64)
    chroma = torch.tensor([110, 150], dtype=torch.uint8).expand((height + 1) // 2, 32, 2)
    frames = YUVFrames(luma, chroma, yuv_conversion("bt709", full_range=False))
    expected = by_swscale(picture_of(luma, chroma, "bt709", False, pixel_format=pixel_format))
    difference = frames.to_rgb()[0].int() - expected.int()
    assert 0 < difference.abs().max() <= 3


def write_video(path, images, matrix, is_full_range):
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "18"})
        stream.height, stream.width = images[0].shape[:2]
        stream.pix_fmt = "yuvj420p" if is_full_range else "yuv420p"
        context = stream.codec_context
        context.colorspace, context.color_range = CODES[matrix], 2 if is_full_range else 1
        for image in images:
            picture = VideoReformatter().reformat(
                av.VideoFrame.from_ndarray(image, format="rgb24"),
                format=stream.pix_fmt,
                dst_colorspace=5 if matrix == "bt601" else CODES[matrix],
                dst_color_range=context.color_range,
            )
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def street_bars_and_gradient():
    """A street, colour bars, and a gradient of every hue."""
    height, width = 176, 312
    bars = np.array([[191, 191, 191], [191, 191, 0], [0, 191, 0], [191, 0, 191], [191, 0, 0], [0, 0, 191]], np.uint8)
    ramp = np.linspace(0, 255, width)[None, :, None] * np.array([1, 0.5, -1]) + np.array([0, 60, 255])
    return [
        traffic.sample(seed=5, size_hw=(height, width)).image,
        bars.repeat(width // len(bars), axis=0)[None].repeat(height, axis=0),
        np.broadcast_to(ramp, (height, width, 3)).astype(np.uint8),
    ]


@ON_X86
@pytest.mark.parametrize(("matrix", "is_full_range"), [("bt601", True), ("bt709", False), ("bt2020", True)])
def test_inputs_of_a_video_are_those_of_its_rgb_frames(matrix, is_full_range, tmp_path):
    path = tmp_path / "video.mp4"
    write_video(path, street_bars_and_gradient(), matrix, is_full_range)
    with open_source(path) as source, av.open(str(path)) as container:
        pairs = list(zip(source, container.decode(video=0), strict=True))
    assert len(pairs) == 3
    for frame, picture in pairs:
        frames = frames_of(picture, matrix, is_full_range)
        np.testing.assert_array_equal(frames.to_rgb()[0].numpy(), frame.image)
        for resample in ("bilinear", "cv2", "antialias"):
            options = {"size": (100, 120), "resample": resample, **NORMALISATION}
            expected = ops.preprocess(torch.from_numpy(frame.image), **options, implementation="cpu")
            assert torch.equal(ops.preprocess(frames, **options, implementation="cpu"), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("layout", ["nv12", "i420"])
def test_frames_in_one_piece_of_memory(layout, implementation):
    luma, chroma = random_bytes(2, 20, 30), random_bytes(2, 10, 15, 2, seed=1)
    rows = chroma.flatten(2) if layout == "nv12" else chroma.movedim(-1, 1).reshape(2, 10, 30)
    memory = torch.cat((luma, rows), dim=1)
    within = YUVFrames.within if layout == "nv12" else i420
    joint = within(memory, conversions(("bt601", False), ("bt709", True)))
    assert joint.luma.data_ptr() == memory.data_ptr()
    apart = YUVFrames(luma, chroma, joint.conversion)
    made, expected = (
        ops.preprocess(frames, size=(4, 130), **NORMALISATION, implementation=implementation)
        for frames in (joint, apart)
    )
    assert torch.equal(made, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_single_frame_and_one_conversion_for_all(implementation):
    luma, chroma = random_planes(11, 17, (3,))
    shared = yuv_conversion("bt2020", full_range=True)
    options = {"size": (4, 130), **NORMALISATION, "implementation": implementation}
    together = ops.preprocess(YUVFrames(luma, chroma, shared), **options)
    for each, *planes in zip(together, luma, chroma, strict=True):
        assert torch.equal(ops.preprocess(YUVFrames(*planes, shared), **options), each[None])


def test_wild_conversions_stay_within_a_byte():
    """A buffer that was never filled gives a wrong picture, and nothing worse."""
    wild = torch.randint(-(2**31), 2**31 - 1, (4, 2), generator=torch.Generator().manual_seed(0)).int()
    frames = YUVFrames(*random_planes(20, 30), wild)
    for implementation in IMPLEMENTATIONS:
        made = ops.preprocess(frames, size=(4, 130), **UNIT, implementation=implementation)
        assert ((made >= 0) & (made <= 1)).all()


@pytest.mark.gpu
@ON_X86
def test_every_colour_is_swscales_on_a_gpu():
    """Input and frame have one size, so that each value of the input is a byte."""
    luma, chroma = every_colour()
    for matrix in ("bt601", "bt709"):
        for is_full_range in (False, True):
            frames = YUVFrames(luma, chroma, yuv_conversion(matrix, full_range=is_full_range))
            made = ops.preprocess(frames.to(torch.device("cuda")), size=(4096, 4096), **UNIT, implementation="triton")
            expected = by_swscale(picture_of(luma, chroma, matrix, is_full_range))
            assert torch.equal((made[0] * 255).round().byte().permute(1, 2, 0).cpu(), expected)


@pytest.mark.gpu
def test_a_graph_replays_frames_of_another_matrix():
    memory = torch.zeros(2, 1080, 1280, dtype=torch.uint8, device="cuda")
    frames = YUVFrames.within(memory, torch.zeros(2, 4, 2, dtype=torch.int32, device="cuda"))
    inputs = torch.empty(2, 3, 312, 312, dtype=torch.float16, device="cuda")

    def run():
        ops.preprocess(frames, inputs, size=(312, 312), **NORMALISATION, implementation="triton")

    run()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for colours in ((("bt601", False), ("bt709", True)), (("bt2020", True), ("bt601", True))):
        memory.random_(0, 256)
        frames.conversion.copy_(conversions(*colours))
        inputs.fill_(torch.nan)
        graph.replay()
        expected = ops.preprocess(
            frames, size=(312, 312), dtype=torch.float16, **NORMALISATION, implementation="reference"
        )
        assert torch.equal(inputs, expected)

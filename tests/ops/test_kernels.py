"""The Triton kernels as kernels: buffers, margins, graphs, compilation, overflow. Their results: test_records.py."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from maskjet import ops
from maskjet.errors import InputError, UnsupportedError
from maskjet.ops import RECORDS, Selection, gpu
from maskjet.ops.depthwise_norm import triton as norm
from maskjet.ops.encode_masks import triton as encode
from maskjet.ops.select import triton as select
from maskjet.ops.selection import MaskQueries, SizeTable, mask_queries
from tests.ops.cases import CHECKS
from tests.ops.cases.paste_masks import blobs
from tests.ops.cases.preprocess import i420
from tests.ops.frames import NORMALISATION
from tests.ops.network import OPS


def queries(device, *rows, limit):
    return mask_queries([torch.tensor(row, device=device) for row in rows], len(rows), limit, device)


def predictions(device, found, seed=0, count=100):
    """Logits [1, count, 91] of which exactly `found` queries pass at 0.5, and boxes."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(1, count, 91, generator=generator) - 7.5
    logits.clamp_(max=-0.5)
    logits[0, torch.randperm(count, generator=generator)[:found], 3] = 1 + torch.rand(found, generator=generator)
    return logits.to(device), torch.rand(1, count, 4, generator=generator).to(device)


@pytest.fixture
def device(device):
    """Each place where a kernel can be launched by itself."""
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled on a machine with a GPU, not interpreted")
    return device


@pytest.fixture(autouse=True)
def _fresh_buffers():
    """Buffers that a test made small serve no other."""
    yield
    encode._own_buffers.cache_clear()


@pytest.mark.slow
def test_kernels_compile_for_other_gpus():
    """T4, A100, Jetson Orin, L4, H200 and both kinds of Blackwell, none of which has to be there."""
    program = Path(__file__).with_name("compile_kernels.py")
    command = [sys.executable, program, *["75", "80", "87", "89", "90", "100", "120"]]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_many_pixels_are_normalised_in_longer_columns(monkeypatch, device):
    monkeypatch.setattr(norm, "_MANY_PIXELS", 1)
    op, checks = OPS["depthwise_norm"], CHECKS["depthwise_norm"]
    for case in ("one pixel", "whole tiles", "one more than tiles"):
        inputs = checks.cases[case](device)
        expected, actual = (op.public(**inputs, implementation=name) for name in ("reference", "triton"))
        assert checks.tolerance_used(inputs, expected, actual) <= 1


def test_encode_stays_within_its_buffers(device):
    masks = blobs(1, 4, (26, 26), torch.Generator().manual_seed(0)).to(device)
    given = queries(device, [2, 0, 2, 3], limit=4)
    size = (60, 90)
    plain = encode.Buffers.allocate(1, 4, encode.count_blocks([size]), device)
    parts = {each.name: getattr(plain, each.name) for each in fields(plain) if each.init and each.name != "shape"}
    margins = {
        name: torch.full((2 * part.numel() + 64,), 77, dtype=part.dtype, device=device) for name, part in parts.items()
    }
    inner = {name: margins[name][32 : 32 + part.numel()].view(part.shape) for name, part in parts.items()}
    buffers = encode.Buffers(**inner, shape=plain.shape)
    encode.launch(masks, given, SizeTable.of([size], masks.device), buffers)
    for name, whole in margins.items():
        assert (whole[:32] == 77).all(), name
        assert (whole[32 + inner[name].numel() :] == 77).all(), name
    strings = [cut() for cut in encode.DeviceStrings(buffers).read(buffers.head.cpu().numpy(), 1)]
    assert strings == ops.encode_masks(masks, [given.query[0]], [size], implementation="reference")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"_EDGES": 4, "_LEAST_ROOM": 1}, "a mask with too many edges"),
        ({"_BYTES": 8, "_LEAST_ROOM": 1}, "a mask with too many edges"),
        ({"_BYTES_AT_ONCE": 16}, "strings that needed a second copy"),
    ],
)
def test_what_does_not_fit_is_made_or_copied_again_and_counted(monkeypatch, device, limits, reason):
    encode._own_buffers.cache_clear()
    for name, value in limits.items():
        monkeypatch.setattr(encode, name, value)
    ops.FALLBACKS.clear()
    masks = blobs(2, 5, (26, 26), torch.Generator().manual_seed(5)).to(device)
    inputs = {
        "mask_logits": masks,
        "query": [torch.tensor([4, 1, 4], device=device), torch.tensor([0, 2], device=device)],
        "image_sizes": [(40, 55), (50, 21)],
    }
    expected = ops.encode_masks(**inputs, implementation="reference")
    actual = ops.encode_masks(**inputs, implementation="triton")
    assert CHECKS["encode_masks"].tolerance_used(inputs, expected, actual) <= 1
    assert list(ops.FALLBACKS) == [f"encode_masks: {reason}"]
    assert 1 <= ops.FALLBACKS.total() <= 4  # the mask that is asked for twice is made once


def test_a_selection_of_other_masks_is_named(device):
    selection = Selection.empty(1, 3, device)
    selection.count.fill_(2)
    selection.query.copy_(torch.tensor([[0, 7, 99]]))
    with pytest.raises(InputError, match=r"query\[0\] must hold indices in 0\.\.3, got 0\.\.7"):
        ops.encode_masks(torch.zeros(1, 4, 5, 5, device=device), selection, [(9, 9)], implementation="triton")


def test_inference_mode_may_be_left(device):
    masks = blobs(1, 2, (9, 9), torch.Generator().manual_seed(2)).to(device)
    rows, sizes = [torch.tensor([1, 0], device=device)], [(20, 30)]
    with torch.inference_mode():
        inside = ops.encode_masks(masks, rows, sizes, implementation="triton")
    assert ops.encode_masks(masks, rows, sizes, implementation="triton") == inside


@pytest.mark.gpu
def test_threads_have_buffers_of_their_own():
    masks = blobs(1, 4, (20, 20), torch.Generator().manual_seed(9)).cuda()
    jobs = [([torch.tensor(row, device="cuda")], [(40, 50)]) for row in ([0, 1], [2, 3], [3, 0], [1, 1])] * 3
    expected = [ops.encode_masks(masks, *job, implementation="reference") for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda job: ops.encode_masks(masks, *job, implementation="triton"), jobs))
    assert found == expected


def test_buffers_can_be_used_again(device):
    size = (30, 40)
    buffers = encode.Buffers.allocate(1, 3, encode.count_blocks([size]), device)
    for seed, row in enumerate(([0, 1, 2], [2], [], [1, 1, 0])):
        masks = blobs(1, 3, (20, 20), torch.Generator().manual_seed(seed)).to(device)
        padded = torch.zeros(1, 3, dtype=torch.int32, device=device)
        padded[0, : len(row)] = torch.tensor(row, device=device)
        given = MaskQueries(torch.tensor([len(row)], dtype=torch.int32, device=device), padded, 3)
        encode.launch(masks, given, SizeTable.of([size], masks.device), buffers)
        strings = [cut() for cut in encode.DeviceStrings(buffers).read(buffers.head.cpu().numpy(), 1)]
        rows = [torch.tensor(row, dtype=torch.int64, device=device)]
        assert strings == ops.encode_masks(masks, rows, [size], implementation="reference")


def test_select_uses_few_keys_when_everything_passes(device, monkeypatch):
    """More pairs than a tile holds, all of them above the threshold, most of them tied."""
    monkeypatch.setattr(select, "_TILE", 64)
    monkeypatch.setattr(select, "_RANKED", 16)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randint(-2, 3, (2, 30, 7), generator=generator).float().to(device)
    inputs = {
        "logits": logits,
        "boxes": torch.rand(2, 30, 4, generator=generator).to(device),
        "image_sizes": [(40, 50), (60, 30)],
        "threshold": 0.0,
    }
    for limits in ({"max_detections": 300}, {"max_detections": 45}, {"max_detections": 300, "num_select": 50}):
        expected = ops.select(**inputs, **limits, implementation="reference")
        actual = ops.select(**inputs, **limits, implementation="triton")
        assert CHECKS["select"].tolerance_used({**inputs, **limits}, expected, actual) <= 1


def test_what_triton_refuses(monkeypatch):
    refuse = RECORDS["select"].variants["triton"].refuse
    assert refuse(torch.empty(0, dtype=torch.float64)) == "it takes float32, float16, bfloat16, got float64"
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    gpu.why_not.cache_clear()
    assert refuse(torch.empty(0)) == "it needs tensors on an NVIDIA GPU, got cpu"
    with pytest.raises(UnsupportedError, match=r"can't run ops.select here: it needs tensors on an NVIDIA GPU"):
        ops.select(torch.zeros(1, 2, 3), torch.zeros(1, 2, 4), [(4, 4)], implementation="triton")
    gpu.why_not.cache_clear()
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda _: None)
    assert refuse(torch.empty(0)).startswith("Triton is not installed; ")
    gpu.why_not.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(1080, 1920), (720, 1280), (176, 312), (2160, 3840), (40, 50)])
def test_strings_at_real_sizes(size, dtype):
    masks = blobs(1, 100, (78, 78), torch.Generator().manual_seed(size[0])).to("cuda", dtype)
    rows = [torch.arange(0, 100, 3 if size[0] < 2000 else 20, device="cuda")]
    expected = ops.encode_masks(masks, rows, [size], implementation="reference")
    assert ops.encode_masks(masks, rows, [size], implementation="triton") == expected


@pytest.mark.gpu
@pytest.mark.parametrize("side", [(78, 78), (192, 192), (1, 1), (7, 300), (200, 3)])
def test_noise_at_real_sizes(side):
    masks = torch.randn(1, 6, *side, generator=torch.Generator().manual_seed(8)).cuda()
    rows = [torch.arange(6, device="cuda")]
    for size in ((720, 1280), (1, 999), (999, 1), (100, 100), side):
        expected = ops.encode_masks(masks, rows, [size], implementation="reference")
        assert ops.encode_masks(masks, rows, [size], implementation="triton") == expected


@pytest.mark.gpu
def test_scores_are_torchs_bit_for_bit():
    generator = torch.Generator().manual_seed(4)
    logits = (8 * torch.randn(1, 300, 91, generator=generator)).cuda()
    boxes = torch.rand(1, 300, 4, generator=generator).cuda()
    for threshold, limit in ((0.0, 300), (0.5, 300), (0.0, None)):
        given = {"threshold": threshold, "num_select": limit, "max_detections": 300}
        expected = ops.select(logits, boxes, [(1080, 1920)], **given, implementation="reference")
        actual = ops.select(logits, boxes, [(1080, 1920)], **given, implementation="triton")
        assert actual.count.tolist() == [300]
        for name, part in vars(expected).items():
            assert torch.equal(getattr(actual, name), part), name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_whole_path_is_captured_and_waits_for_nothing():
    size = (720, 1280)
    frames = torch.empty(1, *size, 3, dtype=torch.uint8, device="cuda")
    inputs = torch.empty(1, 3, 312, 312, dtype=torch.float16, device="cuda")
    logits, boxes = predictions("cuda", 20)
    masks = blobs(1, 100, (78, 78), torch.Generator().manual_seed(0)).cuda()
    buffers = encode.Buffers.allocate(1, 100, encode.count_blocks([size]), torch.device("cuda"))

    def run():
        ops.preprocess(frames, inputs, size=(312, 312), **NORMALISATION, implementation="triton")
        selection = ops.select(logits, boxes, [size], num_select=100, implementation="triton")
        given = mask_queries(selection, 1, 100, masks.device)
        encode.launch(masks, given, SizeTable.of([size], masks.device), buffers)
        return selection

    run()  # compiles, fills the tables
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            selection = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for seed, found in ((1, 25), (2, 0), (3, 100)):
        frames.random_(0, 256)
        fresh = predictions("cuda", found, seed)
        logits.copy_(fresh[0])
        boxes.copy_(fresh[1])
        masks.copy_(blobs(1, 100, (78, 78), torch.Generator().manual_seed(seed)))
        graph.replay()
        assert selection.count.tolist() == [found]
        expected = ops.preprocess(frames, size=(312, 312), dtype=torch.float16, **NORMALISATION)
        assert torch.equal(inputs, expected)
        strings = [cut() for cut in encode.DeviceStrings(buffers).read(buffers.head.cpu().numpy(), 1)]
        assert strings == ops.encode_masks(masks, selection, [size], implementation="reference")


@pytest.mark.gpu
def test_fifty_sizes_compile_nothing():
    from triton import knobs

    compiled = []
    generator = torch.Generator().manual_seed(7)
    masks = blobs(1, 10, (78, 78), generator).cuda()
    logits, boxes = predictions("cuda", 5, count=10)

    def run(height, width, threshold):
        frame = torch.zeros(height, width, 3, dtype=torch.uint8, device="cuda")
        memory = torch.zeros((height + 1) // 2 * 3, width + width % 2, dtype=torch.uint8, device="cuda")
        within = ops.YUVFrames.within if height % 2 else i420
        yuv = within(memory, ops.yuv_conversion("bt709", full_range=False).cuda())
        for options in ({}, {"letterbox": 114}, {"resample": "cv2"}, {"resample": "antialias"}):
            for frames in (frame, yuv):
                ops.preprocess(frames, size=(312, 312), **NORMALISATION, **options)
        selection = ops.select(logits, boxes, [(height, width)], threshold=threshold)
        ops.encode_masks(masks, selection, [(height, width)])

    run(176, 312, 0.5)
    before = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = lambda **kwargs: compiled.append(kwargs["repr"])
    try:
        for step in range(50):
            height, width = (1, 1) if step == 0 else torch.randint(1, 1500, (2,), generator=generator).tolist()
            run(height, width - width % 16 + 16 if step % 3 == 0 else width, 0.3 + step / 200)
    finally:
        knobs.runtime.jit_post_compile_hook = before
    assert compiled == []


@pytest.mark.gpu
def test_images_of_more_than_2_31_pixels_are_encoded_on_the_host():
    masks = torch.full((1, 1, 8, 8), -1.0, device="cuda")
    masks[0, 0, 3:5, 3:5] = 1
    rows, size = [torch.tensor([0], device="cuda")], (2**16, 2**16)
    expected = ops.encode_masks(masks.cpu(), [rows[0].cpu()], [size])
    assert ops.encode_masks(masks, rows, [size], implementation="triton") == expected

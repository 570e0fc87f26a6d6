"""Ops given numbers that lie: each is refused by name, or means what the documentation says; no memory is broken."""

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from maskjet import ops
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.ops.encode_masks import triton as encode
from maskjet.ops.selection import SizeTable, mask_queries
from tests.ops.cases import CHECKS
from tests.ops.cases.paste_masks import blobs
from tests.ops.frames import NORMALISATION
from tests.ops.serving import on_cpu

MOST = 2**31 - 1


def masks_of(*shape, seed=0):
    return blobs(*shape[:2], shape[2:], torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("implementation", on_cpu("nms"))
def test_counts_beyond_the_boxes_take_all_and_below_zero_none(implementation):
    generator = torch.Generator().manual_seed(1)
    corner = 20 * torch.rand(4, 9, 2, generator=generator)
    boxes = torch.cat((corner, corner + 12), dim=2)
    count = torch.tensor([10, 0, MOST, 1, -1, 1, -MOST, 1], dtype=torch.int32)[::2]
    kept = ops.nms(boxes, count, iou_threshold=0.4, implementation=implementation)
    expected = ops.nms(boxes[:2], iou_threshold=0.4, implementation="reference")
    assert kept.count.tolist() == [*expected.count.tolist(), 0, 0]
    for image, found in enumerate(expected.count.tolist()):
        assert torch.equal(kept.index[image, :found], expected.index[image, :found])


@pytest.mark.parametrize("implementation", on_cpu("select"))
def test_logits_and_boxes_of_any_strides_are_taken(implementation):
    generator = torch.Generator().manual_seed(2)
    logits, boxes = torch.randn(2, 3, 5, generator=generator), torch.rand(2, 5, 4, generator=generator)
    given = {"image_sizes": [(30, 40), (50, 20)], "threshold": 0.4, "max_detections": 9}
    inputs = {"logits": logits.transpose(1, 2).contiguous(), "boxes": boxes, **given}
    expected = ops.select(**inputs, implementation="reference")
    strided = logits.transpose(1, 2), boxes.transpose(0, 2).contiguous().transpose(0, 2)
    assert not any(each.is_contiguous() for each in strided)
    for changed in (strided, [each.clone().requires_grad_() for each in strided]):
        actual = ops.select(*changed, **given, implementation=implementation)
        assert CHECKS["select"].tolerance_used(inputs, expected, actual) <= 1


def bordered(masks):
    return torch.nn.functional.pad(masks, (1, 1, 1, 1), value=-0.5)


def encode_in(boxes, size, implementation, masks=None):
    masks = bordered(masks_of(1, 1, 6, 7)) if masks is None else masks
    rows = [torch.zeros(len(boxes), dtype=torch.int64)]
    given = {"boxes": [torch.tensor(boxes, dtype=torch.int32).view(-1, 4)], "implementation": implementation}
    return ops.encode_masks(masks, rows, [size], **given)[0]


@pytest.mark.parametrize("implementation", on_cpu("encode_masks"))
def test_a_box_without_pixels_holds_nothing(implementation):
    (empty,) = coco_rle.encode(np.zeros((70, 90), bool))
    boxes = [(3, 4, 0, 9), (3, 4, 9, 0), (0, 0, -5, 70), (0, 0, -MOST, -MOST), (-MOST, 0, 0, 0)]
    assert encode_in(boxes, (70, 90), implementation) == [empty["counts"]] * len(boxes)


def test_a_box_far_larger_than_its_image_takes_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    far = (-(10**8) // 2, -(10**8) // 2, 10**8, 10**8)
    (text,) = encode_in([far], (70, 90), "cpu", bordered(torch.ones(1, 1, 4, 4)))
    assert coco_rle.area({"size": [70, 90], "counts": text}) == 70 * 90
    encode_in([(-MOST, -MOST, MOST, MOST), (MOST, MOST, MOST, MOST)], (70, 90), "cpu")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # KiB
    with pytest.raises(InputError, match="a box has 10,000,000,000,000,000 pixels, the limit is 268,435,456; raise"):
        encode_in([(0, 0, 10**8, 10**8)], (70, 90), "reference")


def test_the_largest_image_is_encoded():
    size = (2**17, 2**17 - 1)
    ((text,),) = ops.encode_masks(torch.full((1, 1, 4, 4), -1.0), [torch.tensor([0])], [size], implementation="cpu")
    assert coco_rle._expand(text, 2**62)[0].tolist() == [size[0] * size[1]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU, not interpreted")
@pytest.mark.parametrize("found", [2**31 - 3, -5])
def test_a_counter_of_edges_that_wrapped_around_breaks_nothing(found):
    masks, size, device = masks_of(1, 2, 9, 9), (40, 50), torch.device("cpu")
    given = mask_queries([torch.tensor([1, 0])], 1, 2, device)
    buffers = encode.Buffers.allocate(1, 2, encode.count_blocks([size]), device)
    buffers.header[2] = found
    encode.launch(masks, given, SizeTable.of([size], device), buffers)
    strings = encode.DeviceStrings(buffers, given=(masks, given, SizeTable.of([size], device)))
    ops.FALLBACKS.clear()
    found = [cut() for cut in strings.read(strings.keep(buffers.head.numpy()), 1)]
    assert ops.FALLBACKS["encode_masks: a mask with too many edges"] > 0
    assert found == ops.encode_masks(masks, [torch.tensor([1, 0])], [size], implementation="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU, not interpreted")
@pytest.mark.parametrize("at_once", [1, 2**18])
def test_strings_outlive_the_memory_that_they_came_in(at_once, monkeypatch):
    """Also those that the first copy to the host lacks, and a mask that is there twice."""
    monkeypatch.setattr(encode, "_BYTES_AT_ONCE", at_once)
    masks, size, device = masks_of(2, 3, 9, 9), (40, 50), torch.device("cpu")
    queries = [torch.tensor([1, 0, 1]), torch.tensor([2])]
    lead = 12
    strings = encode.allocate(2, 3, size[1], device, lead=lead)
    table = SizeTable.of([size] * 2, device)
    encode.encode_masks(masks, mask_queries(queries, 2, 3, device), table, strings)
    strings.memory[:lead] = 5
    copied = strings.memory.numpy().copy()
    kept = strings.keep(copied)
    cuts = strings.read(kept, 2)
    copied[:] = 255
    strings.buffers.packed[:] = 255
    assert (kept[:lead] == 5).all()
    expected = ops.encode_masks(masks, queries, [size] * 2, implementation="cpu")
    assert [cut() for cut in cuts] == expected
    assert [cut() for cut in cuts] == expected
    assert all(isinstance(text, bytes) for text in expected[0])


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("images of more than 268,435,456 pixels", {"image_sizes": [(2**15, 2**14)]}),
        ("more than 65,535 masks of an image, or images", {"slots": 70_000}),
        ("masks whose logits lie too far apart", {"masks": torch.empty(5, 2**30, device="meta").t()[None, None, :5]}),
        ("so many masks that their edges can't be counted", {"image_sizes": [(9, 10**7)], "slots": 300}),
        (None, {"image_sizes": [(2160, 3840)], "slots": 900}),
    ],
)
def test_what_32_bits_can_not_count_is_left_to_the_cpu(reason, options):
    given = {"masks": torch.zeros(1, 1, 78, 78), "slots": 1, "image_sizes": [(5, 5)], **options}
    assert encode._why_too_large(given["masks"], given["slots"], given["image_sizes"]) == reason


def fuzz(seed, rounds):
    """Random sizes, boxes and counts, the CPU against the reference; returns how many were compared."""
    numbers = random.Random(seed)
    for number in range(rounds):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        side = numbers.randrange(1, 12), numbers.randrange(1, 12)
        size = numbers.randrange(1, 90), numbers.randrange(1, 200)
        masks = torch.randn(1, 2, *side, generator=generator) * 3
        if number % 3 == 0:
            masks.view(-1)[numbers.randrange(masks.numel())] = numbers.choice([torch.nan, torch.inf, -torch.inf, 3e38])
        inputs = {"mask_logits": masks, "query": [torch.tensor([1, 0])], "image_sizes": [size]}
        if number % 2:
            inputs["mask_logits"] = bordered(masks)
            inputs["boxes"] = [torch.tensor([_box(numbers, size) for _ in range(2)], dtype=torch.int32)]
        _compare("encode_masks", inputs)
        corner = 30 * torch.rand(1, 20, 2, generator=generator)
        boxes = torch.cat((corner, corner + 25 * torch.rand(1, 20, 2, generator=generator) - 2), dim=2)
        count = torch.tensor([numbers.choice([-3, 0, 5, 20, 99])], dtype=torch.int32)
        most = numbers.choice([None, 1, 7, 40])
        _compare("nms", {"boxes": boxes, "count": count, "iou_threshold": numbers.random(), "max_output": most})
        frames = torch.randint(0, 256, (1, *size, 3), dtype=torch.uint8, generator=generator)
        target = numbers.randrange(1, 150), numbers.randrange(60, 150)
        _compare("preprocess", {"frames": frames, "size": target, **NORMALISATION})
        planes = (*size,), ((size[0] + 1) // 2, (size[1] + 1) // 2, 2)
        planes = (torch.randint(0, 256, plane, dtype=torch.uint8, generator=generator) for plane in planes)
        frames = ops.YUVFrames(*planes, ops.yuv_conversion("bt709", full_range=bool(number % 2)))
        resample = numbers.choice(["bilinear", "cv2", "antialias"])
        _compare("preprocess", {"frames": frames, "size": target, "resample": resample, **NORMALISATION})
    return 4 * rounds


def _box(numbers, size):
    if numbers.random() < 0.2:
        return [numbers.choice([-(2**31), -(10**6), -1, 0, 7, MOST]) for _ in range(2)] + [numbers.randrange(-2, 3), 3]
    corner = [numbers.randrange(-100, 250) for _ in range(2)]
    return [*corner, *(numbers.randrange(-1, 2 * side + 9) for side in size)]


def _compare(op, inputs):
    expected, actual = (getattr(ops, op)(**inputs, implementation=name) for name in ("reference", "cpu"))
    assert CHECKS[op].tolerance_used(inputs, expected, actual) <= 1


def test_the_cpu_agrees_with_the_reference_on_wild_numbers():
    assert fuzz(seed=2, rounds=12) == 48


@pytest.mark.slow
def test_no_compiled_loop_leaves_its_arrays(tmp_path):
    """With numba's checks of every index; they are compiled in, so in a process of its own."""
    program = "import torch; torch.set_num_threads(2); from tests.ops.test_hostile import fuzz; print(fuzz(1, 60))"
    # The cache knows nothing of these checks.
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "MASKJET_CACHE_DIR": str(tmp_path)}
    command, environment = [sys.executable, "-c", program], {**os.environ, **checks}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["240"]

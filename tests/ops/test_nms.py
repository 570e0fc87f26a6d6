"""nms against torchvision's, with both of its strategies, and as a kernel."""

import pytest
import torch
from torchvision.ops import boxes as torchvision_boxes

from maskjet import ops
from maskjet.ops.nms import round_down
from maskjet.ops.nms import triton as kernel
from tests.ops.serving import on_cpu


def clusters(count, seed, classes=1, device="cpu"):
    """Boxes around a few things, in descending order of score, whose coordinates are exact when shifted by classes."""
    generator = torch.Generator().manual_seed(seed)
    things = torch.randint(0, 300, (12, 2), generator=generator)[torch.randint(12, (count,), generator=generator)]
    corner = things + torch.randint(0, 60, (count, 2), generator=generator) / 4
    boxes = torch.cat((corner, corner + torch.randint(4, 200, (count, 2), generator=generator) / 4), dim=1)
    groups = torch.randint(classes, (count,), dtype=torch.int32, generator=generator)
    return boxes.to(device), torch.linspace(1, 0, count).to(device), groups.to(device)


def kept(found, image=0):
    return found.index[image, : found.count[image]].tolist()


@pytest.mark.parametrize("implementation", on_cpu("nms"))
@pytest.mark.parametrize(("threshold", "seed"), [(0.3, 0), (0.5, 1), (0.7, 2)])
def test_what_stays_is_torchvisions(implementation, threshold, seed):
    boxes, scores, _ = clusters(100, seed)
    expected = torchvision_boxes.nms(boxes, scores, threshold).tolist()
    found = ops.nms(boxes[None], iou_threshold=threshold, implementation=implementation)
    assert 10 < len(expected) < 100
    assert kept(found) == expected


@pytest.mark.parametrize("strategy", ["_batched_nms_vanilla", "_batched_nms_coordinate_trick"])
@pytest.mark.parametrize("implementation", on_cpu("nms"))
def test_groups_are_torchvisions_with_both_strategies(implementation, strategy):
    for seed in range(1 if implementation == "triton" else 3):
        boxes, scores, groups = clusters(100, seed, classes=5)
        expected = getattr(torchvision_boxes, strategy)(boxes, scores, groups.long(), 0.5)[:20].tolist()
        found = ops.nms(
            boxes[None], groups=groups[None], iou_threshold=0.5, max_output=20, implementation=implementation
        )
        assert kept(found) == expected


@pytest.mark.parametrize("value", [0.0, 0.3, 0.5, 0.7, 0.1, 1.0])
def test_a_threshold_is_rounded_down(value):
    rounded = torch.tensor(round_down(value))
    assert rounded.double() <= value < torch.nextafter(rounded, torch.tensor(2.0)).double()


def test_the_kernels_stay_within_their_buffers(device):
    if device.type == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled on a machine with a GPU, not interpreted")
    boxes, _, groups = clusters(77, 5, classes=2, device=device)
    count = torch.full((1,), 77, dtype=torch.int32, device=device)
    inner = {"overlaps": 77 * 3, "removed": 3, "kept_count": 1, "index": 9}
    memory = {name: torch.full((size + 64,), -77, dtype=torch.int32, device=device) for name, size in inner.items()}
    within = {name: memory[name][32 : 32 + size] for name, size in inner.items()}
    sizes = {"ROWS": 64, "BITS": 32}
    kernel._find_overlaps((3, 2, 1), device, boxes, groups, count, within["overlaps"], 77, 3, 0.5, **sizes)
    outputs = (within["removed"], within["kept_count"], within["index"])
    kernel._choose((1, 1, 1), device, within["overlaps"], count, *outputs, 77, 3, 9, BITS=32, WORDS=32)
    for name, size in inner.items():
        assert (memory[name][:32] == -77).all(), name
        assert (memory[name][32 + size :] == -77).all(), name
    expected = ops.nms(boxes[None], groups=groups[None], iou_threshold=0.5, max_output=9, implementation="reference")
    assert within["index"].tolist() == kept(expected)


@pytest.mark.gpu
def test_it_can_be_captured_and_replayed():
    boxes = torch.stack([clusters(1000, seed)[0] for seed in range(5)]).cuda()
    ops.nms(boxes, iou_threshold=0.7, max_output=300)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    count = torch.full((5,), 1000, dtype=torch.int32, device="cuda")
    groups = torch.zeros((5, 1000), dtype=torch.int32, device="cuda")
    with torch.cuda.graph(graph):
        found = ops.nms(boxes, count, groups=groups, iou_threshold=0.7, max_output=300)
    for seed in range(2):
        boxes.copy_(torch.stack([clusters(1000, 10 * seed + number)[0] for number in range(5)]))
        graph.replay()
        expected = ops.nms(boxes, iou_threshold=0.7, max_output=300, implementation="reference")
        for number in range(5):
            assert kept(found, number) == kept(expected, number)

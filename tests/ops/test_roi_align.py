"""roi_align against torchvision's multi-level pooler."""

import pytest
import torch
from torchvision.ops import MultiScaleRoIAlign

from maskjet import ops
from tests.ops.cases import CHECKS
from tests.ops.serving import on_cpu
from tests.rounding import rounding

SIZE_HW = (192, 256)
SCALES = (0.25, 0.125, 0.0625, 0.03125)


def pyramid(batch, seed=0, channels=6, levels=4):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, channels, 48 >> n, 64 >> n, generator=generator) for n in range(levels)]


def tolerance(features):
    """Each bin is a sum of four samples of four features; positions are computed alike."""
    return rounding(16, max(feature.abs().max() for feature in features))


def boxes(batch, count, seed):
    """Of every level, inside the image, at its border and beyond."""
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(batch, count, 2, generator=generator) * 240 - 20
    side = 2 ** (2 + 7 * torch.rand(batch, count, 1, generator=generator))
    return torch.cat((corner, corner + side * (0.6 + 0.8 * torch.rand(batch, count, 2, generator=generator))), dim=2)


@pytest.mark.parametrize("implementation", on_cpu("roi_align"))
@pytest.mark.parametrize(
    ("size", "batch", "levels"),
    [(3, 2, 4), (2, 1, 1), *(pytest.param(*long, marks=pytest.mark.slow) for long in ((7, 1, 4), (14, 1, 3)))],
)
def test_bins_are_torchvisions(implementation, size, batch, levels):
    features, found = pyramid(batch, size, levels=levels), boxes(batch, 4 if implementation == "triton" else 12, size)
    pooler = MultiScaleRoIAlign([str(n) for n in range(levels)], output_size=size, sampling_ratio=2)
    named = {str(n): feature for n, feature in enumerate(features)}
    expected = pooler(named, list(found), [SIZE_HW] * batch)
    actual = ops.roi_align(found, features, scales=SCALES[:levels], size=size, implementation=implementation)
    assert actual.is_contiguous(memory_format=torch.channels_last)
    assert expected.abs().max() > 1
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance(features))


@pytest.mark.parametrize("implementation", on_cpu("roi_align"))
def test_levels_change_where_torchvisions_do(implementation):
    features = [torch.full((1, 1, 256 >> n, 256 >> n), float(n)) for n in range(4)]
    side = torch.cat([2.0**n * 14 * torch.tensor([1 - 1e-3, 1 - 1e-6, 1, 1 + 1e-6]) for n in range(7)])
    found = torch.stack((side * 0, side * 0, side, side), dim=1)[None]
    pooler = MultiScaleRoIAlign(["0", "1", "2", "3"], output_size=1, sampling_ratio=2)
    expected = pooler({str(n): feature for n, feature in enumerate(features)}, list(found), [(1024, 1024)]).flatten()
    actual = ops.roi_align(found, features, scales=SCALES, size=1, implementation=implementation).flatten()
    assert actual.tolist() == expected.tolist()
    assert sorted(set(actual.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("implementation", on_cpu("roi_align"))
@pytest.mark.parametrize("channels", [1, 130])
def test_any_number_of_channels_at_any_address(implementation, channels):
    def shifted(tensor):
        memory = torch.empty(tensor.numel() + 1)[1:]
        tensor = tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
        moved = memory.as_strided(tensor.shape, tensor.stride(), storage_offset=1).copy_(tensor)
        assert moved.data_ptr() % 16 != 0
        return moved

    features, found = pyramid(2, channels=channels, levels=2), boxes(2, 2, 3)
    expected = ops.roi_align(found, features, scales=SCALES[:2], size=2, implementation="reference")
    actual = ops.roi_align(
        shifted(found), [*map(shifted, features)], scales=SCALES[:2], size=2, implementation=implementation
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance(features))


@pytest.mark.gpu
def test_it_can_be_captured_and_replayed():
    features = [feature.cuda().contiguous(memory_format=torch.channels_last) for feature in pyramid(1)]
    found = boxes(1, 50, 3).cuda()
    ops.roi_align(found, features, scales=SCALES, size=7)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pooled = ops.roi_align(found, features, scales=SCALES, size=7)
    for seed in range(2):
        found.copy_(boxes(1, 50, seed))
        graph.replay()
        expected = ops.roi_align(found, features, scales=SCALES, size=7, implementation="reference")
        assert CHECKS["roi_align"].tolerance_used({"features": features}, expected, pooled) <= 1

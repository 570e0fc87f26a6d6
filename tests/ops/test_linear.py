"""linear and attention: what their records don't say."""

import json
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from maskjet.networks.rfdetr.fused.weights import fold_norm
from maskjet.ops.linear.tiles import TABLE, Tile, Workspace, choose_tile
from tests.ops.network import OPS
from tests.ops.serving import on_cpu

linear = OPS["linear"].public


def rows_of(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("implementation", on_cpu("linear"))
def test_a_folded_norm_is_a_norm_before_the_layer(implementation):
    x, weight, bias = rows_of(20, 64).half() + 3, rows_of(32, 64, seed=1) / 8, rows_of(32, seed=2)
    scale, shift = rows_of(64, seed=3), rows_of(64, seed=4)
    expected = F.linear(F.layer_norm(x.float(), (64,), scale, shift, 1e-6), weight, bias)
    folded, moved = fold_norm(weight, bias, scale, shift)
    sums = torch.stack((x.float().sum(dim=1), x.float().square().sum(dim=1)), dim=1)[..., None]
    found, _ = linear(x, folded.half(), moved, sums=sums.contiguous(), implementation=implementation)
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("implementation", on_cpu("linear"))
def test_sums_of_one_layer_are_the_norm_of_the_next(implementation):
    x, first, second = rows_of(20, 32).half(), rows_of(64, 32, seed=1).half(), rows_of(48, 64, seed=2) / 8
    hidden, sums = linear(x, first, torch.zeros(64), gives="sums", implementation=implementation)
    folded, moved = fold_norm(second, torch.zeros(48), torch.ones(64), torch.zeros(64))
    found, none = linear(hidden, folded.half(), moved, sums=sums, implementation=implementation)
    assert none is None
    expected = F.linear(F.layer_norm(hidden.float(), (64,), eps=1e-6), second)
    torch.testing.assert_close(found.float(), expected, atol=0.03, rtol=0)


def test_programs_share_the_sums_of_few_tiles():
    assert choose_tile(40, 1024, 64).splits > 1
    assert choose_tile(20, 2048, 128, is_whole=True).splits > 1
    assert choose_tile(50, 9 * 128, 64, inputs=128, is_whole=True).splits > 1
    assert choose_tile(10_832, 384, 1152).splits == 1


def test_a_workspace_is_left_as_it_was():
    from maskjet.ops.linear import triton as launching

    if torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU of this machine")
    x, weight, bias = rows_of(20, 1024).half(), (rows_of(64, 1024, seed=1) / 32).half(), rows_of(64, seed=2)
    tile, workspace = choose_tile(20, 1024, 64), Workspace()
    parts, arrived = workspace.take(tile, 20, 64, x.device)
    found = []
    for garbage in (torch.nan, 0.0, 1e30):
        parts.fill_(garbage)
        found.append(torch.empty(20, 64).half())
        launching.linear(x, weight, bias, out=found[-1], workspace=workspace)
        assert not arrived.any()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    taken = workspace.take(tile, 10, 64, x.device)
    assert taken[0] is parts
    assert taken[1] is arrived
    assert len(workspace.take(tile, 400, 128, x.device)[0]) > len(parts)


def both(tile, x, weight, bias, columns, **given):
    """A layer by blocks and by a program's own copies, in buffers of garbage, with what lies beside the output."""
    from maskjet.ops.linear import triton as launching

    found = []
    for programs in (tile.programs, 0):
        margin = torch.full((len(x), len(weight) + 16), torch.nan, dtype=x.dtype, device=x.device)
        sums = torch.full((len(x), 2, len(weight) // columns), torch.nan, device=x.device)
        one = tile._replace(programs=programs)
        with patch.object(launching, "choose_tile", lambda *_, one=one, **__: one):
            launching.linear(x, weight, bias, out=margin[:, 8:-8], out_sums=sums, **given)
        assert margin[:, :8].isnan().all()
        assert margin[:, -8:].isnan().all()
        found.append((margin[:, 8:-8], sums))
    return found


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "programs"), [(torch.float16, 77, 1), (torch.bfloat16, 16, 64), (torch.float16, 1, 64)]
)
def test_blocks_that_the_gpu_copies_make_the_same(device, dtype, rows, programs, monkeypatch):
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("kernels are compiled for the GPU of this machine")
    from maskjet.ops.linear import triton as launching

    monkeypatch.setattr(launching, "MULTIPROCESSORS", 2)
    wide = rows_of(rows, 128).to(device, dtype)
    x, residual = wide[:, :64], rows_of(rows, 160, seed=1).to(device, dtype)[:, 16:112]
    weight, bias = (rows_of(96, 64, seed=2) / 8).to(device, dtype), rows_of(96, seed=3).to(device)
    of_x = torch.stack((x.float().sum(dim=1), x.float().square().sum(dim=1)), dim=1)[..., None].contiguous()
    tile = Tile(64, 32, 32, 4, 3, programs=programs)
    for given in ({"residual": residual}, {"sums": of_x, "activation": "gelu"}, {"activation": "silu"}):
        (found, sums), (expected, expected_sums) = both(tile, x, weight, bias, 32, **given)
        assert (found.float() - expected.float()).abs().max() <= 2**-7 * max(1, float(expected.abs().max()))
        torch.testing.assert_close(sums, expected_sums, rtol=1e-3, atol=1e-2)
    x[0] = torch.nan
    (found, _), (expected, _) = both(tile, x, weight, bias, 32)
    assert found[0].isnan().all()
    assert torch.equal(found[1:].isnan(), expected[1:].isnan())
    assert not found[1:].isnan().any()


def test_tiles_divide_the_product():
    for rows in (1, 100, 677, 10_832, 10**6):
        for inputs, outputs in ((16, 16), (384, 1152), (1536, 384), (48, 80), (432, 96)):
            tile = choose_tile(rows, inputs, outputs)
            assert inputs % tile.step == outputs % tile.columns == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_replays_of_a_graph_are_the_launches_bit_for_bit(dtype):
    from maskjet.ops.attention import triton as attending
    from maskjet.ops.linear import triton as launching

    batch, length, heads, side = 2, 677, 6, 64
    width = heads * side
    x = rows_of(batch * length, width).to("cuda", dtype)
    weight, bias = (rows_of(3 * width, width, seed=1) / 20).to("cuda", dtype), torch.zeros(3 * width, device="cuda")
    margins = torch.full((3, batch * length, width), torch.nan, dtype=dtype, device="cuda")
    projected = torch.empty(batch * length, 3 * width, dtype=dtype, device="cuda")

    def run():
        launching.linear(x, weight, bias, out=projected)
        attending.attention(projected.view(batch, length, 3, heads, side), margins[1].view(batch, length, width))

    run()
    expected = margins[1].clone()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        run()
    for _ in range(20):
        margins[1].fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(margins[1], expected)
    assert margins[[0, 2]].isnan().all()


def test_tiles_that_were_timed_fit_their_products():
    timed = json.loads(TABLE.read_text())
    assert len({tuple(key) for key, _ in timed}) == len(timed) >= 8
    for (rows, width, outputs, inputs, is_whole), chosen in timed:
        tile = choose_tile(rows, width, outputs, inputs=inputs, is_whole=is_whole)
        assert tile == Tile(*chosen)
        assert inputs % tile.step == outputs % tile.columns == (width // tile.step) % tile.splits == 0
        assert tile.columns == outputs or not is_whole
        assert tile.warps in (4, 8)

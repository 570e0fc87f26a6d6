"""What a network must be able to do beside giving the right numbers."""

import pytest
import torch

from benchmarks.planted import TINY, randomise
from maskjet.networks.rfdetr import RFDETR
from tests.rounding import additions, rounding


def tiny_network():
    network = RFDETR(TINY).eval().requires_grad_(requires_grad=False)
    randomise(network.state_dict())
    return network


def tolerance(largest):
    """Of the tiny network's outputs, where other kernels compute them: for other batches, say."""
    return rounding(additions(tiny_network()), largest)


def assert_close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=tolerance(expected.abs().max()), rtol=0)


def images(batch, seed=0):
    return torch.randn(batch, 3, *TINY.input_hw, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
def test_compiles_without_graph_breaks_at_any_batch():
    torch.compiler.reset()
    network = tiny_network()
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.inference_mode():
        for batch in (2, 3, 5):
            for expected, actual in zip(network(images(batch)), compiled(images(batch)), strict=True):
                assert_close(actual, expected)


def test_boxes_and_scores_stay_in_float32_at_any_precision():
    network = tiny_network().cast(torch.bfloat16)
    with torch.inference_mode():
        output = network(images(1).bfloat16())
    assert (output.logits.dtype, output.boxes_cxcywh.dtype) == (torch.float32, torch.float32)
    assert output.mask_logits.dtype == torch.bfloat16
    assert (output.boxes_cxcywh != output.boxes_cxcywh.bfloat16().float()).float().mean() > 0.9  # not merely widened
    assert len(output.logits.unique()) > 0.99 * output.logits.numel()  # bfloat16 would make many of them equal
    assert {buffer.dtype for buffer in network.buffers()} <= {torch.float32, torch.bool}

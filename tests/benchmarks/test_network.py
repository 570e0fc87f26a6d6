"""The benchmark of the network alone: what it counts; its times need a GPU."""

from dataclasses import replace
from math import prod

import torch

from benchmarks import network
from benchmarks.planted import TINY, randomise
from maskjet.networks.rfdetr import RFDETR
from maskjet.networks.rfdetr.fused.forward import Forward
from maskjet.networks.rfdetr.fused.weights import fold
from tests.ops.cases import CHECKS
from tests.ops.network import run_by_references


def test_launches_are_recorded_with_the_names_of_their_tensors(monkeypatch):
    run_by_references(monkeypatch)
    spec = replace(TINY, self_attention_heads=2, cross_attention_heads=2)
    module = RFDETR(spec).eval().requires_grad_(requires_grad=False)
    randomise(module.state_dict())
    forward = Forward(fold(module, torch.float16), 2)
    images = torch.randn(2, 3, *spec.input_hw).half()
    with network._recorded(forward) as launches:
        expected = [part.clone() for part in forward(images)]
    ran = len(launches)
    assert {op for op, *_ in launches} <= set(CHECKS)
    for op, call, tensors, out in launches:
        flops = CHECKS[op].flops
        if op == "linear":
            assert flops(tensors) == 2 * len(out) * prod(tensors["weight"].shape)
        elif flops is not None:
            assert flops(tensors) > 0
        assert any(each is out for each in tensors.values())
        call()
    assert all(torch.equal(one, other) for one, other in zip(expected, forward(images), strict=True))
    assert len(launches) == ran  # the pass is as it was

"""The one test of every op: each implementation against the reference, on every named case."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from maskjet.errors import InputError, UnsupportedError
from tests.ops.cases import CHECKS
from tests.ops.network import OPS
from tests.ops.serving import on_cpu

LONG = {
    "encode_masks": {
        *("a wide image", "noise", "checkerboard", "bfloat16", "everything inside", "letterboxes of a batch"),
        *("beyond the bottom", "smaller than the logits", "between the pixels", "at the bottom", "strided"),
        *("smaller than the masks", "one row", "one row of logits", "letterbox, one row", "a mask in two boxes"),
        *("batch with boxes", "float16", "same size", "letterbox, tall", "letterbox, wide", "beyond the image"),
        *("one pixel each", "boxes, float16", "a query twice", "all zero", "letterbox, top left"),
    },
    "nms": {"two tiles of words"},
    "preprocess": {
        *("letterbox, batch, bgr", "letterbox, tall", "letterbox, coloured", "strided rows", "bfloat16", "batch"),
        *("nv12, letterbox, coloured", "nv12, three matrices", "nv12, letterbox", "antialias", "nv12, antialias"),
        *("antialias, letterbox", "nv12, antialias, odd"),
    },
    "rank_tokens": {"many tokens of many images", "ties among blocks of many images", "more than a block of rivals"},
    "resize_pixels": {"many pixels"},
    "roi_align": {
        *("box head", "mask head", "small boxes", "level limits", "channels first", "float16", "bfloat16"),
        *("one level", "two levels"),
    },
}
"""Cases of interpreted kernels that are left to `make test-all`: most take a quarter of a second and more each."""
ON_A_GPU_ALONE = {("depthwise_norm", "many pixels")}  # a minute, interpreted; test_kernels.py has a smaller one


def _groups():
    """The cases of each implementation but the reference, those of interpreted kernels that take long by themselves."""
    for name, op in OPS.items():
        for variant in list(op.variants)[:-1]:
            is_interpreted = variant == "triton" and variant in on_cpu(name)
            long = LONG.get(name, set()) if is_interpreted else set()
            cases = set(CHECKS[name].cases)
            assert long <= cases, name
            yield pytest.param(name, variant, sorted(cases - long), id=f"{name}-{variant}")
            if long:
                yield pytest.param(name, variant, sorted(long), id=f"{name}-{variant}-long", marks=pytest.mark.slow)


@pytest.mark.parametrize(("name", "variant", "cases"), list(_groups()))
def test_equals_the_reference(name, variant, cases, device):
    op, shares = OPS[name], {}
    for case in cases:
        if device.type == "cpu" and variant == "triton" and (name, case) in ON_A_GPU_ALONE:
            continue
        inputs = CHECKS[name].cases[case](device)
        first = next(iter(inputs.values()))
        if op.variants[variant].refuse(first) is not None:
            assert variant not in (on_cpu(name) if device.type == "cpu" else ["triton"])
            with pytest.raises(UnsupportedError, match="Use 'auto'"):
                op.public(**inputs, implementation=variant)
            return
        expected = op.public(**inputs, implementation="reference")
        shares[case] = CHECKS[name].tolerance_used(inputs, expected, op.public(**inputs, implementation=variant))
    assert all(share <= 1 for share in shares.values()), shares


@pytest.mark.parametrize("name", OPS)
def test_cases_are_the_same_on_every_call_and_the_comparison_can_fail(name):
    """Some two cases of an op differ; comparing their results must say so."""
    op, checks, device = OPS[name], CHECKS[name], torch.device("cpu")
    given = [case(device) for case in checks.cases.values()]
    first, again = (
        [op.public(**inputs, implementation="reference") for inputs in each]
        for each in (given, [case(device) for case in checks.cases.values()])
    )
    assert [checks.tolerance_used(*each) for each in zip(given, first, again, strict=True)] == [0] * len(given)
    shares = []
    for inputs, expected, other in zip(given, first, first[1:], strict=False):
        try:
            shares.append(checks.tolerance_used(inputs, expected, other))
        except (RuntimeError, ValueError, IndexError):  # other shapes altogether
            continue
    assert max(shares) > 1


@pytest.mark.parametrize("name", ["preprocess", "select"])
def test_nan_is_no_match(name):
    op, checks = OPS[name], CHECKS[name]
    inputs = next(iter(checks.cases.values()))(torch.device("cpu"))
    expected, actual = (op.public(**inputs, implementation="reference") for _ in range(2))
    (actual if name == "preprocess" else actual.confidence).fill_(torch.nan)
    assert checks.tolerance_used(inputs, expected, actual) == torch.inf


@pytest.mark.parametrize("name", OPS)
def test_every_record_is_complete(name):
    """Products are counted as PyTorch counts them."""
    op, checks = OPS[name], CHECKS[name]
    assert op.name == name
    assert list(CHECKS) == list(OPS)
    assert list(op.variants)[-1] == "reference"
    assert len(checks.cases) >= 10
    for case in checks.cases.values():
        inputs = case(torch.device("cpu"))
        assert checks.bytes_moved(inputs) >= 0
        if checks.flops is not None:
            with FlopCounterMode(display=False) as counter:
                op.public(**inputs, implementation="reference")
            assert checks.flops(inputs) == counter.get_total_flops()
    known = rf"implementation must be one of 'auto', .*'reference' for ops\.{name}, got 'x'"
    with pytest.raises(InputError, match=known):
        op.public(**inputs, implementation="x")


def test_auto_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    op = OPS["select"]
    on_cpu, on_meta = (op.choose("auto", torch.empty(0, device=device)) for device in ("cpu", "meta"))
    assert (on_cpu.name, on_cpu.why) == ("cpu", "not triton: it needs tensors on an NVIDIA GPU, got cpu")
    assert (on_meta.name, on_meta.why) == (
        "reference",
        "not triton: it needs tensors on an NVIDIA GPU, got meta; not cpu: it needs tensors on the CPU, got meta",
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name, op in OPS.items() if "triton" in op.variants])
def test_auto_takes_the_kernels_on_a_gpu(name):
    op = OPS[name]
    sample = next(iter(next(iter(CHECKS[name].cases.values()))(torch.device("cuda")).values()))
    assert (op.choose("auto", sample).name, op.choose("auto", sample).why) == ("triton", "fastest")

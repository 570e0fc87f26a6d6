"""The one test of every op: each implementation against the reference, on every named case."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from maskjet.errors import InputError, UnsupportedError
from maskjet.ops import RECORDS
from tests.ops.serving import on_cpu

PAIRS = [(name, case) for name, op in RECORDS.items() for case in op.cases]
VARIANTS = [(name, variant, case) for name, op in RECORDS.items() for variant in op.variants for case in op.cases]


@pytest.mark.parametrize(("name", "variant", "case"), VARIANTS)
def test_equals_the_reference(name, variant, case, device):
    op = RECORDS[name]
    inputs = op.cases[case](device)
    first = next(iter(inputs.values()))
    refusal = op.variants[variant].refuse(first)
    if refusal is not None:
        assert variant not in (on_cpu(name) if device.type == "cpu" else ["triton", "reference"])
        with pytest.raises(UnsupportedError, match="Use implementation='auto'"):
            op.public(**inputs, implementation=variant)
        return
    expected = op.public(**inputs, implementation="reference")
    actual = op.public(**inputs, implementation=variant)
    assert op.tolerance_used(inputs, expected, actual) <= 1


@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_cases_are_the_same_on_every_call(name, case):
    build = RECORDS[name].cases[case]
    op = RECORDS[name]
    first, again = (op.public(**build(torch.device("cpu")), implementation="reference") for _ in range(2))
    assert op.tolerance_used(build(torch.device("cpu")), first, again) == 0


@pytest.mark.parametrize("name", RECORDS)
def test_the_comparison_can_fail(name):
    """Some two cases of an op differ; comparing their results must say so."""
    op = RECORDS[name]
    results = [(case(torch.device("cpu"))) for case in op.cases.values()]
    outputs = [op.public(**inputs, implementation="reference") for inputs in results]
    shares = []
    for inputs, expected, other in zip(results, outputs, outputs[1:], strict=False):
        try:
            shares.append(op.tolerance_used(inputs, expected, other))
        except (RuntimeError, ValueError, IndexError):  # other shapes altogether
            continue
    assert max(shares) > 1


@pytest.mark.parametrize("name", ["preprocess", "select"])
def test_nan_is_no_match(name):
    op = RECORDS[name]
    inputs = next(iter(op.cases.values()))(torch.device("cpu"))
    expected, actual = (op.public(**inputs, implementation="reference") for _ in range(2))
    (actual if name == "preprocess" else actual.confidence).fill_(torch.nan)
    assert op.tolerance_used(inputs, expected, actual) == torch.inf


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_is_complete(name):
    op = RECORDS[name]
    assert op.name == name
    assert list(op.variants)[-1] == "reference"
    assert len(op.cases) >= 10
    for case in op.cases.values():
        assert op.bytes_moved(case(torch.device("cpu"))) >= 0


@pytest.mark.parametrize("name", [name for name, op in RECORDS.items() if op.flops is not None])
def test_products_are_counted_as_pytorch_counts_them(name):
    op = RECORDS[name]
    for case in op.cases.values():
        inputs = case(torch.device("cpu"))
        with FlopCounterMode(display=False) as counter:
            op.public(**inputs, implementation="reference")
        assert op.flops(inputs) == counter.get_total_flops()


@pytest.mark.parametrize("name", RECORDS)
def test_unknown_implementations_are_refused(name):
    op = RECORDS[name]
    inputs = next(iter(op.cases.values()))(torch.device("cpu"))
    with pytest.raises(
        InputError, match=rf"implementation must be one of 'auto', .*'reference' for ops\.{name}, got 'x'"
    ):
        op.public(**inputs, implementation="x")


def test_auto_says_why(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    op = RECORDS["select"]
    on_cpu, on_meta = (op.choose("auto", torch.empty(0, device=device)) for device in ("cpu", "meta"))
    assert (on_cpu.name, on_cpu.why) == ("cpu", "not triton: it needs tensors on an NVIDIA GPU, got cpu")
    assert (on_meta.name, on_meta.why) == (
        "reference",
        "not triton: it needs tensors on an NVIDIA GPU, got meta; not cpu: it needs tensors on the CPU, got meta",
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECORDS)
def test_auto_takes_the_kernels_on_a_gpu(name):
    op = RECORDS[name]
    sample = next(iter(next(iter(op.cases.values()))(torch.device("cuda")).values()))
    assert (op.choose("auto", sample).name, op.choose("auto", sample).why) == ("triton", "fastest")

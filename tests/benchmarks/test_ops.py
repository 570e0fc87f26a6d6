"""The benchmark of the ops: complete, checked before it is timed, and written as it prints."""

import numpy as np
import pytest
import torch

from benchmarks import ops as bench_ops
from benchmarks.workloads import GPU_WORKLOADS, WORKLOADS, as_listed
from maskjet import ops
from maskjet.errors import MaskjetError
from maskjet.masks import coco_rle
from tests.ops.network import OPS

FIRST_WORKLOADS = [
    pytest.param(build, id=f"{op}: {name}", marks=marks)
    for workloads, marks in ((WORKLOADS, ()), (GPU_WORKLOADS, pytest.mark.slow))
    for op, builds in workloads.items()
    for name, build in list(builds.items())[:1]
]


@pytest.fixture
def _small_masks(monkeypatch):
    """encode_masks at its smallest size only."""
    smallest = {"312, 25 masks": WORKLOADS["encode_masks"]["312, 25 masks"]}
    monkeypatch.setitem(WORKLOADS, "encode_masks", smallest)


def test_every_op_has_a_workload():
    assert list(WORKLOADS) == list(GPU_WORKLOADS) == list(OPS)


@pytest.mark.parametrize("build", FIRST_WORKLOADS)
def test_workloads_are_the_same_for_a_seed_and_change_with_it(build):
    first, again, other = (next(iter(build(torch.Generator().manual_seed(seed)).values())) for seed in (1, 1, 2))
    if isinstance(first, ops.YUVFrames):
        first, again, other = (frames.luma for frames in (first, again, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_workloads_hold_what_their_names_say():
    def build(op, name):
        return {**WORKLOADS, **GPU_WORKLOADS}[op][name](torch.Generator().manual_seed(0))

    assert [len(rows) for rows in as_listed(build("encode_masks", "1080p, 5 masks"))["query"]] == [5]
    everything = build("select", "300 queries, 91 classes, all pass")
    assert ops.select(**everything).count.tolist() == [300]
    assert (everything["logits"].sigmoid() > everything["threshold"]).all()
    some = WORKLOADS["select"]["100 queries, 91 classes, 25 found"](torch.Generator().manual_seed(0))
    assert ops.select(**some).count.tolist() == [25]


@pytest.mark.usefixtures("_small_masks")
def test_a_wrong_variant_gets_no_time(tmp_path, monkeypatch):
    path = tmp_path / "ops.json"
    (empty,) = coco_rle.encode(np.zeros((176, 312), bool))
    wrong = {"encode_masks": {"peer": lambda **_: [[empty["counts"]] * 25]}}
    monkeypatch.setattr(bench_ops, "_peers", lambda: (wrong, []))
    with pytest.raises(MaskjetError, match=r"peer must equal the reference of ops.encode_masks .* nothing was timed"):
        bench_ops.run(path, runs=1, only=["encode_masks"], device="cpu")
    assert not path.exists()

"""The benchmark of the ops: complete, checked before it is timed, and written as it prints."""

import json
import sys

import numpy as np
import pytest
import torch

from maskjet import coco_rle, ops
from maskjet.bench import ops as bench_ops
from maskjet.errors import InputError, MaskjetError


@pytest.fixture
def _small_masks(monkeypatch):
    """encode_masks at its smallest size only."""
    smallest = {"312, 25 masks": bench_ops.WORKLOADS["encode_masks"]["312, 25 masks"]}
    monkeypatch.setitem(bench_ops.WORKLOADS, "encode_masks", smallest)


def test_every_op_has_a_workload():
    assert list(bench_ops.WORKLOADS) == list(ops.RECORDS)


@pytest.mark.parametrize(
    ("name", "workload"), [(op, work) for op, all_ in bench_ops.WORKLOADS.items() for work in all_]
)
def test_workloads_are_the_same_for_a_seed_and_change_with_it(name, workload):
    build = bench_ops.WORKLOADS[name][workload]
    first, again, other = (next(iter(build(torch.Generator().manual_seed(seed)).values())) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.usefixtures("_small_masks")
def test_report_is_written_as_it_is_returned(tmp_path):
    path = tmp_path / "ops.json"
    report = bench_ops.run(path, runs=2, only=["encode_masks"])
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.as_dict()))
    variants = {found.variant: found for found in report.measurements}
    assert list(variants) == ["cpu", "reference", "paste + pycocotools"]
    assert all(found.tolerance_used == 0 < found.floor_ms < found.p50_ms <= found.p95_ms for found in variants.values())
    assert min(found.speedup for found in variants.values()) == 1
    assert report.machine.versions["torch"] == torch.__version__
    table = str(report).splitlines()
    assert [line.split("  ")[0] for line in table[:4]] == ["op", *["encode_masks"] * 3]
    assert report.machine.cpu in table[4]


@pytest.mark.usefixtures("_small_masks")
def test_a_wrong_variant_gets_no_time(tmp_path, monkeypatch):
    path = tmp_path / "ops.json"
    (empty,) = coco_rle.encode(np.zeros((176, 312), bool))
    wrong = {"encode_masks": {"peer": lambda **_: [[empty["counts"]] * 25]}}
    monkeypatch.setattr(bench_ops, "_peers", lambda: (wrong, []))
    with pytest.raises(MaskjetError, match=r"peer must equal the reference of ops.encode_masks .* nothing was timed"):
        bench_ops.run(path, runs=1, only=["encode_masks"])
    assert not path.exists()


def test_without_pycocotools_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    report = bench_ops.run(runs=1, only=["select"])
    assert "pycocotools is not installed, so it was not compared with" in str(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"only": ["select", "blur"]}, "only must name ops, preprocess, select, encode_masks, paste_masks, got blur"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        bench_ops.run(**arguments)

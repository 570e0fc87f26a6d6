"""The ablation: rungs that are equal, a wrong one that gets no time, and files with the promised columns."""

import csv
import json
import math
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import ablation, chart
from benchmarks.agreement import enter, expect
from benchmarks.contest import Contest
from benchmarks.rungs import RUNGS, THRESHOLD, Rung, encode_on_host, plant_request
from maskjet.errors import InputError, MaskjetError, MissingDependencyError, UnsupportedError

CPU = torch.device("cpu")
SIZE_HW = (90, 130)


def compare(calls, requests):
    """The share of the tolerances that each rung uses, by name."""
    contest = Contest(requests, expect, CPU)
    contest.enter({name: enter(*given) for name, given in calls.items()})
    return contest.used


def test_the_rungs_of_the_study():
    assert list(RUNGS) == ["eager", "compiled", "compiled_fixed", "compiled_hybrid", "triton_dense", "triton_rle"]


@pytest.mark.parametrize("survivors", [0, 1, 25, 100])
def test_exactly_so_many_survive(survivors):
    request = plant_request(3, survivors, SIZE_HW, CPU)
    passing = (request.logits[0].sigmoid() > THRESHOLD).nonzero()
    assert len(passing) == len(passing[:, 0].unique()) == survivors
    assert torch.equal(request.mask_logits, plant_request(3, 7, SIZE_HW, CPU).mask_logits) == (survivors == 7)
    assert not torch.equal(request.logits, plant_request(4, survivors, SIZE_HW, CPU).logits)


@pytest.mark.parametrize("survivors", [0, 5, 100])
@pytest.mark.parametrize("name", ["eager", "compiled", "compiled_fixed", "compiled_hybrid"])
def test_plain_rungs_equal_the_references(name, survivors, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the compiler is not under test
    call = RUNGS[name].build(CPU)
    calls = {
        "masks": (RUNGS[name], call),
        "rle": (RUNGS[name], lambda request: encode_on_host(call(request))),
    }
    used = compare(calls, [plant_request(seed, survivors, SIZE_HW, CPU) for seed in range(2)])
    assert used == {"masks": 0, "rle": 0}


def _wrong(edit):
    """A rung that finds what eager does, edited."""
    call = RUNGS["eager"].build(CPU)
    return Rung("wrong", "", lambda _: lambda request: edit(call(request)))


EDITS = {
    "one fewer": lambda found: replace(found, count=found.count - 1),
    "other order": lambda found: replace(found, query=found.query.flip(0)),
    "other class": lambda found: replace(found, class_id=found.class_id + 1),
    "score off": lambda found: replace(found, confidence=found.confidence + 1e-6),
    "box off": lambda found: replace(found, xyxy=found.xyxy + 1e-3),
    "mask off": lambda found: replace(found, masks=found.masks.roll(1, dims=2)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_wrong_rung_gets_no_time_and_no_file(edit, tmp_path, monkeypatch):
    monkeypatch.setitem(ablation.RUNGS, "wrong", _wrong(EDITS[edit]))
    monkeypatch.setattr(Contest, "time", lambda *_, **__: pytest.fail("was timed"))
    with pytest.raises(MaskjetError, match=r"^wrong/masks must equal .* 5 detections at 130 × 90, got .* not timed"):
        ablation.run(tmp_path / "out", sizes_hw=[SIZE_HW], survivors=[5], only=["eager", "wrong"], device="cpu")
    assert not (tmp_path / "out").exists()


def test_rounded_boxes_are_within_half_a_pixel():
    rung = replace(_wrong(lambda found: replace(found, xyxy=found.xyxy.round().int())), rounds_boxes=True)
    requests = [plant_request(0, 5, SIZE_HW, CPU)]
    assert compare({"rounded": (rung, rung.build(CPU))}, requests) == {"rounded": 0}
    rung = replace(_wrong(lambda found: replace(found, xyxy=found.xyxy.round().int() + 1)), rounds_boxes=True)
    assert compare({"off": (rung, rung.build(CPU))}, requests) == {"off": math.inf}


def test_a_peer_that_differs_gets_no_time(monkeypatch):
    monkeypatch.setitem(ablation.POSTPROCESSES, "peer", replace(_wrong(EDITS["mask off"]), name="peer", tolerance=100))
    report = ablation.run(sizes_hw=[SIZE_HW], survivors=[0, 5], runs=1, only=["eager", "peer"], device="cpu")
    timed = {(m.rung, m.survivors) for m in report.measurements}
    assert timed == {("eager", 0), ("eager", 5), ("peer", 0)}
    assert len(report.notes) == 2
    for note, output in zip(report.notes, ("masks", "rle"), strict=True):
        assert note.startswith(f"peer/{output} must equal the references with 5 detections at 130 × 90")


def test_the_files_hold_what_is_promised(tmp_path):
    seen = []
    report = ablation.run(
        tmp_path / "out",
        sizes_hw=[SIZE_HW, (64, 64)],
        survivors=[0, 25],
        runs=2,
        only=["eager"],
        device="cpu",
        on_progress=lambda: seen.append(None),
    )
    assert len(seen) == 4 * ablation.passes("cpu") == 4
    assert json.loads((tmp_path / "out/ablation.json").read_text()) == json.loads(json.dumps(report.as_dict()))
    with (tmp_path / "out/ablation.csv").open() as file:
        rows = list(csv.DictReader(file))
    measured = ["height", "width", "rung", "output", "survivors", "runs", "p50_ms", "p95_ms", "speedup"]
    measured += ["tolerance_used", "peak_mib", "launches", "copies", "gpu_us"]
    where = ["gpu", "driver", "cuda", "triton", "cpu", "torch", "commit", "measured_at"]
    assert list(rows[0]) == measured + where
    assert [(row["height"], row["survivors"], row["output"]) for row in rows] == [
        (height, survivors, output)
        for height in ("90", "64")
        for survivors in ("0", "25")
        for output in ("masks", "rle")
    ]
    for row in rows:
        assert 0 < float(row["p50_ms"]) <= float(row["p95_ms"])
        assert (row["speedup"], row["tolerance_used"], row["launches"], row["gpu"]) == ("1.0", "0.0", "", "")
        assert row["torch"] == torch.__version__
    assert (tmp_path / "out/ablation.png").read_bytes().startswith(b"\x89PNG")
    table = str(report).splitlines()
    assert len(table) == 1 + len(rows) + 1
    assert table[1].startswith("130 × 90  0      masks   eager")


def test_without_matplotlib_a_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = ablation.run(tmp_path, sizes_hw=[(64, 64)], survivors=[1], runs=1, only=["eager"], device="cpu")
    assert str(report).endswith('There is no chart: A chart needs matplotlib: pip install "maskjet[bench]".')
    assert {path.name for path in tmp_path.iterdir()} == {"ablation.csv", "ablation.json"}
    with pytest.raises(MissingDependencyError, match=r'pip install "maskjet\[bench\]"'):
        chart.draw(report.as_dict(), tmp_path / "a.png")


def test_what_can_not_run_is_left_out_with_its_reason(monkeypatch):
    monkeypatch.setattr("benchmarks.peers.loading.importlib.import_module", _refuse_to_import)
    report = ablation.run(
        sizes_hw=[(64, 64)],
        survivors=[1],
        runs=1,
        only=["eager", "triton_rle", "rfdetr", "inference_triton"],
        device="cpu",
    )
    assert {measurement.rung for measurement in report.measurements} == {"eager"}
    assert list(report.notes) == [
        "triton_rle was left out: no Triton for ops.select: it needs tensors on an NVIDIA GPU, got cpu",
        "rfdetr was left out: rfdetr.models.postprocess can't be imported, not today: pip install rfdetr",
        "inference_triton was left out: its Triton kernels need a GPU",
    ]
    with pytest.raises(UnsupportedError, match="No rung runs on cpu: triton_rle was left out"):
        ablation.run(only=["triton_rle"], device="cpu")


def _refuse_to_import(_name):
    raise ImportError("not today")


def test_rfdetr_is_compared_too():
    pytest.importorskip("rfdetr")
    report = ablation.run(sizes_hw=[SIZE_HW], survivors=[0, 5], runs=1, only=["rfdetr"], device="cpu")
    assert [(m.output, m.survivors) for m in report.measurements] == [
        ("masks", 0),
        ("rle", 0),
        ("masks", 5),
        ("rle", 5),
    ]
    assert {(m.speedup, m.tolerance_used) for m in report.measurements} == {(None, 0)}


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch.compile, in torch 2.11
@pytest.mark.gpu
@pytest.mark.slow
def test_every_rung_runs_on_a_gpu(tmp_path):
    report = ablation.run(
        tmp_path, sizes_hw=[(176, 312)], survivors=[0, 25], runs=3, only=list(RUNGS), device="cuda", marks_ranges=True
    )
    assert {measurement.rung for measurement in report.measurements} == set(RUNGS)
    launches = {m.rung: m.launches for m in report.measurements if (m.output, m.survivors) == ("masks", 25)}
    assert 0 < launches.pop("triton_dense") < min(launches.values())
    assert all(measurement.gpu_us > 0 for measurement in report.measurements)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"survivors": [5, 101]}, r"survivors must be 0\.\.100, got 101"),
        ({"sizes_hw": []}, "sizes_hw and survivors must not be empty"),
        ({"only": ["eager", "magic"]}, "only must be of 'eager', .*, 'inference_triton', got 'magic'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        ablation.run(**arguments)


def test_nvtx_needs_a_gpu():
    with pytest.raises(UnsupportedError, match="--nvtx needs a GPU, got cpu"):
        ablation.run(device="cpu", marks_ranges=True)

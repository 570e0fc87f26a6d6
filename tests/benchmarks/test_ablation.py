"""The ablation: rungs that are equal, a wrong one that gets no time, and files with the promised columns."""

import math
from dataclasses import replace

import pytest
import torch

from benchmarks import ablation
from benchmarks.agreement import enter, expect
from benchmarks.contest import Contest
from benchmarks.rungs import RUNGS, THRESHOLD, Rung, plant_request
from maskjet.errors import MaskjetError

CPU = torch.device("cpu")
SIZE_HW = (90, 130)


@pytest.mark.parametrize("survivors", [0, 7, 100])
def test_exactly_so_many_survive(survivors):
    request = plant_request(3, survivors, SIZE_HW, CPU)
    passing = (request.logits[0].sigmoid() > THRESHOLD).nonzero()
    assert len(passing) == len(passing[:, 0].unique()) == survivors
    assert torch.equal(request.mask_logits, plant_request(3, 7, SIZE_HW, CPU).mask_logits) == (survivors == 7)
    assert not torch.equal(request.logits, plant_request(4, survivors, SIZE_HW, CPU).logits)


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
    contest = Contest([plant_request(0, 5, SIZE_HW, CPU)], expect, CPU)
    for name, more in (("rounded", 0), ("off", 1)):
        wrong = _wrong(lambda found, more=more: replace(found, xyxy=found.xyxy.round().int() + more))
        rung = replace(wrong, rounds_boxes=True)
        contest.enter({name: enter(rung, rung.build(CPU))})
    assert contest.used == {"rounded": 0, "off": math.inf}


def test_a_peer_that_differs_gets_no_time(monkeypatch):
    monkeypatch.setitem(ablation.POSTPROCESSES, "peer", replace(_wrong(EDITS["mask off"]), name="peer", tolerance=100))
    only = ["eager", "triton_rle", "peer"]
    report = ablation.run(sizes_hw=[SIZE_HW], survivors=[0, 5], runs=1, only=only, device="cpu")
    timed = {(m.rung, m.survivors) for m in report.measurements}
    assert timed == {("eager", 0), ("eager", 5), ("peer", 0)}
    left_out, *notes = report.notes
    assert left_out.startswith("triton_rle was left out: no Triton for ops.select: it needs tensors on an NVIDIA GPU")
    for note, output in zip(notes, ("masks", "rle"), strict=True):
        assert note.startswith(f"peer/{output} must equal the references with 5 detections at 130 × 90")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of torch.compile, in torch 2.11
@pytest.mark.gpu
@pytest.mark.slow
def test_every_rung_runs_on_a_gpu(tmp_path):
    report = ablation.run(
        tmp_path, sizes_hw=[(176, 312)], survivors=[0, 25], runs=3, only=list(RUNGS), device="cuda", marks_ranges=True
    )
    assert {measurement.rung for measurement in report.measurements} == set(RUNGS)
    launches = {m.rung: m.launches for m in report.measurements if (m.output, m.survivors) == ("rle", 25)}
    assert 0 < launches.pop("triton_rle") < min(launches.values())
    assert all(measurement.gpu_us > 0 for measurement in report.measurements)

"""The benchmark of the rewrites: planted detectors find something, contenders are paired, the report is right."""

import json

import numpy as np
import pytest
import torch

from benchmarks import planted, two_stage
from benchmarks.pooling import measure_pooling
from maskjet.errors import InputError
from maskjet.traffic import sample

SMALL = "fasterrcnn_mobilenet_v3_large_320_fpn"


@pytest.fixture
def _quick(monkeypatch):
    monkeypatch.setattr(two_stage, "_IMAGES", 2)
    monkeypatch.setattr(two_stage, "_POOLED", ((20, 3),))
    monkeypatch.setattr(planted, "_STEPS", 6)


@pytest.mark.slow
def test_planted_detectors_find_about_what_was_asked_for():
    images = [torch.from_numpy(np.array(sample(n, size_hw=(96, 160)).image)).permute(2, 0, 1) / 255 for n in range(2)]
    options = {"min_size": 96, "max_size": 160}
    few, many = (
        planted.plant_detector(SMALL, images, candidates=100, survivors=survivors, **options) for survivors in (15, 30)
    )
    with torch.inference_mode():
        counts = [sum(len(found["boxes"]) for found in model(images)) / 2 for model in (few, many)]
    assert counts[0] < counts[1]
    assert counts == pytest.approx([15, 30], abs=6)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_contenders_are_paired_and_written(tmp_path):
    only = ["captured", "captured, NMS of the first 1,000", "maskjet, step by step", "maskjet, graph, fp16"]
    advanced = []
    report = two_stage.run(
        tmp_path / "r.json",
        model=SMALL,
        size_hw=(96, 160),
        runs=1,
        only=only,
        device="cpu",
        on_progress=lambda: advanced.append(1),
    )
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(json.dumps(report.as_dict()))
    names = [(m.setting, m.contender) for m in report.measurements]
    assert names == [(s, c) for s in ("default", "stress") for c in (two_stage.BASELINE, *only[:3])]
    assert len(advanced) == 10
    for measured in report.measurements:
        assert measured.found > 5
        assert measured.matched == 1
        assert measured.largest_difference < 1e-3
        assert measured.launches is None
    assert {m.largest_difference for m in report.measurements if m.contender.startswith("captured")} == {0.0}
    assert any("maskjet, graph, fp16 left out: precision='fp16' needs a GPU" in note for note in report.notes)
    assert len(report.rows()) == 9


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_pooling_is_compared_and_timed():
    theirs, ours = measure_pooling(20, 3, 2, torch.device("cpu"))
    assert (theirs.contender, ours.contender) == (two_stage.BASELINE, "maskjet")
    assert theirs.speedup == 1
    assert ours.setting == "pooling 20 boxes, 3 × 3"


def test_what_is_wrong_is_named():
    with pytest.raises(InputError, match=r"only must be of 'torchvision', .*, got 'x'"):
        two_stage.run(only=["x"])
    with pytest.raises(InputError, match=r"settings must be of 'default', 'stress', got 'y'"):
        two_stage.run(settings=["y"])
    with pytest.raises(InputError, match="runs must be at least 1, got 0"):
        two_stage.run(runs=0)

"""The benchmark of the rewrites: planted detectors find something, contenders are paired, the report is right."""

import json

import pytest

from benchmarks import planted, two_stage


@pytest.mark.slow
def test_contenders_are_paired_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(two_stage, "_IMAGES", 2)
    monkeypatch.setattr(planted, "_STEPS", 6)
    only = ["captured, NMS of the first 1,000", "maskjet, step by step", "maskjet, graph, fp16"]
    report = two_stage.run(
        tmp_path / "r.json",
        model="fasterrcnn_mobilenet_v3_large_320_fpn",
        size_hw=(96, 160),
        runs=1,
        settings=["default"],
        only=only,
        device="cpu",
    )
    assert json.loads((tmp_path / "r.json").read_text()) == json.loads(json.dumps(report.as_dict()))
    names = [(m.setting, m.contender) for m in report.measurements]
    assert names == [("default", contender) for contender in (two_stage.BASELINE, *only[:2])]
    for measured in report.measurements:
        assert measured.found == pytest.approx(two_stage.SURVIVORS, abs=12)
        assert measured.matched == 1
        assert measured.largest_difference < 1e-3
        assert measured.launches is None
    assert {m.largest_difference for m in report.measurements if m.contender.startswith("captured")} == {0.0}
    assert any("maskjet, graph, fp16 left out: precision='fp16' needs a GPU" in note for note in report.notes)
    assert len(report.rows()) == 4

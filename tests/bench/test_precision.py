"""The comparison of precisions: every variant that can be had here, against float32."""

import json

import pytest

from maskjet.bench import precision
from maskjet.config import EngineConfig
from maskjet.errors import InputError


def test_precisions_are_compared(tmp_path, monkeypatch):
    variants = {
        "the same": (EngineConfig(precision="fp32", compile=False), False),
        "bf16": (EngineConfig(precision="bf16", compile=False), False),
        "bf16, everything": (EngineConfig(precision="bf16", compile=False), True),
        "fp16": (EngineConfig(device="cpu", precision="fp16"), False),
    }
    monkeypatch.setattr(precision, "VARIANTS", variants)
    steps = []
    report = precision.run(tmp_path / "p.json", images=6, on_progress=lambda: steps.append(1))
    assert len(steps) == 5
    assert report.notes == ["fp16 left out: precision='fp16' needs a GPU; on a CPU use precision='bf16' or 'fp32'."]
    same, cast, naive = report.measurements
    assert same.matched == same.expected > 10
    assert same.max_confidence_difference == same.extra == 0
    assert same.min_mask_iou == 1
    assert cast.matched > 0.9 * cast.expected
    assert 0 < cast.mean_confidence_difference < 0.05
    assert cast.p95_box_difference_px < naive.p95_box_difference_px  # boxes stay in float32
    assert json.loads((tmp_path / "p.json").read_text())["measurements"][0]["variant"] == "the same"
    assert "the same" in str(report)


def test_bad_arguments():
    with pytest.raises(InputError, match="images must be at least 1, got 0"):
        precision.run(images=0)

"""The comparison of runtimes."""

import json

import pytest

from benchmarks import runtimes


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_runtimes_find_the_same_and_are_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(runtimes, "_FRAMES", 4)
    monkeypatch.setattr(runtimes, "BF16_PRODUCTS", frozenset())
    found = runtimes.run(tmp_path / "r.json", names=["demo"], device="cpu", size_hw=(176, 312), runs=1)
    rows = found.measurements
    assert [(row.runtime, row.precision) for row in rows] == [
        ("PyTorch", "fp32"),
        ("PyTorch", "bf16"),
        ("ONNX Runtime", "fp32"),
        ("OpenVINO", "fp32"),
        ("OpenVINO", "int8"),
        ("ONNX Runtime", "fp16"),
    ]
    assert rows[0].detections > 3
    for row in (rows[0], rows[2], rows[3]):
        assert (row.unpaired, row.confidence_difference < 1e-3, row.p50_ms > 0) == (0, True, True)
        assert row.video_fps > 0
    assert [row.video_fps is None for row in rows] == [row.p50_ms is None for row in rows]  # bfloat16 may find others
    assert rows[1].confidence_difference > rows[2].confidence_difference
    assert len(json.loads((tmp_path / "r.json").read_text())["measurements"]) == 6

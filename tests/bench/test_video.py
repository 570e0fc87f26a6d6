"""The benchmark of videos: every variant sees all frames, and the report is written as it prints."""

import json

import pytest

from maskjet.bench import video
from maskjet.errors import InputError


def test_every_variant_runs_every_frame(tmp_path):
    path = tmp_path / "video.json"
    report = video.run(path, sizes_hw=[(96, 160), (64, 64)], precisions=["fp32", "bf16"], frames=4, runs=1)
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.as_dict()))
    variants = {(m.size_hw, m.precision, m.output) for m in report.measurements}
    assert len(variants) == len(report.measurements) == 2 * 2 * len(video.OUTPUTS)
    for measurement in report.measurements:
        assert measurement.frames == 4
        assert measurement.ms_per_frame == pytest.approx(1000 / measurement.fps, rel=0.01)
    found = {m.output: m.detections for m in report.measurements if (m.size_hw, m.precision) == ((96, 160), "fp32")}
    assert len(set(found.values())) == 1
    assert len(str(report).splitlines()) == 1 + len(report.measurements) + 1


def test_bad_arguments():
    with pytest.raises(InputError, match="runs must be at least 1, got 0"):
        video.run(runs=0)

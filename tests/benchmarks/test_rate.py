"""The comparison of ways to have masks on every frame."""

import json

import pytest

from benchmarks import rate


@pytest.mark.slow
def test_moving_keeps_more_than_repeating(tmp_path):
    sets = {"one": {"a": rate.Video("street", 11, 1.0, "pan", 4, frames=13)}}
    ways = [rate.Way("every frame"), rate.Way("repeated", repeats=4), rate.Way("live", 4, 0), rate.Way("delayed", 4)]
    report = rate.run(tmp_path / "r.json", tmp_path, names=["one"], sets=sets, ways=ways)
    every, repeated, live, delayed = report.measurements
    assert every.relative == 1
    assert 0.2 < repeated.ap < min(live.ap, delayed.ap)
    assert (repeated.fps, live.fps > 0) == (None, True)
    assert len(json.loads((tmp_path / "r.json").read_text())["measurements"]) == len(report.rows()) - 1 == 4
    made = (tmp_path / "a.mp4").stat().st_mtime_ns
    rate.make(tmp_path, "a", sets["one"]["a"])
    assert (tmp_path / "a.mp4").stat().st_mtime_ns == made

"""The benchmark of jobs, with few files."""

import contextlib
from types import SimpleNamespace

import pytest

from benchmarks import jobs
from benchmarks.trend import trend
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.jobs.segments import Settings


def test_a_rate_is_that_while_all_lanes_are_busy(tmp_path, monkeypatch):
    crew = jobs.local_crew("cpu", EngineConfig(device="cpu"), lanes=1)
    sampler = SimpleNamespace(trend=lambda _: trend([0.0, 1.0], [1.0, 1.0]))
    monkeypatch.setattr(jobs, "_sampled", lambda: contextlib.nullcontext(sampler))

    def measure(*seen, failed=0):
        def run(*arguments):
            look = arguments[-1]
            for done, (seconds, frames) in enumerate(seen, 1):
                look(SimpleNamespace(done=done, seconds=seconds, frames=frames))
            return SimpleNamespace(is_whole=not failed, failed=failed, planned=len(seen), frames=40, seconds=9.0)

        monkeypatch.setattr(jobs.driver, "run", run)
        return jobs.measure_job("images", tmp_path, tmp_path / "out", Settings(), crew)

    found = measure((2.0, 10), (3.0, 18), (5.0, 30), (6.0, 40))
    assert (found.frames_s, found.first_s, found.seconds, found.segments) == (7.5, 2.0, 9.0, 4)
    with pytest.raises(InputError, match="must give at least 4 segments, got 1"):
        measure((1.0, 40))
    with pytest.raises(InputError, match="All segments must succeed, 1 of 4 failed"):
        measure(*[(1.0, 10)] * 4, failed=1)

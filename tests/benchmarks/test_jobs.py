"""The benchmark of jobs, with few files."""

import contextlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import jobs, jobs_planning
from benchmarks.trend import trend
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.jobs.segments import Settings


def test_a_tree_is_planned(tmp_path, capsys):
    jobs.plant_tree(tmp_path / "tree", 1_234)
    jobs_planning.main(str(tmp_path / "tree"), str(tmp_path / "out"))
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == 1_234
    assert 1_234 / 128 <= found["segments"] == len((tmp_path / "out" / "segments.jsonl").read_text().splitlines())
    assert 0 < found["rss_before_mib"] <= found["rss_mib"]


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


@pytest.mark.slow
def test_jobs_are_measured_beside_stream(tmp_path):
    report = tmp_path / "report.json"
    options = ["--images", "40", "--segment-images", "4", "--streams", "1", "--only", "images"]
    options += ["--devices", "cpu", "--ray-workers", "1", "--stream-seconds", "0.5", "--out", str(report)]
    # In a process of its own, as a Ray that was started and ended here would be in the way of other tests'.
    ran = subprocess.run([sys.executable, "-m", "benchmarks.jobs", *options], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(report.read_text())
    (job, on_ray) = found["jobs"]
    assert [each["frames_s"] > 0 for each in found["streams"]] == [True, True]
    assert "1 thread" in found["streams"][1]["device"]
    assert (job["frames"], job["devices"]) == (40, "cpu")
    assert job["frames_s"] > 0
    assert (on_ray["frames"], on_ray["devices"]) == (40, "Ray, 1 workers")
    assert on_ray["frames_s"] > 0
    assert 0 < job["first_s"] < job["seconds"]
    assert job["workers_mib"]["most"] > 100
    assert 10 < job["frame_bytes"] < 10_000
    assert "job on cpu" in ran.stdout

"""The benchmark of jobs, with few files."""

import json
import subprocess
import sys

import pytest

from benchmarks import jobs
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.jobs.segments import Settings


def test_a_tree_is_planned(tmp_path):
    jobs.plant_tree(tmp_path / "tree", 1_234)
    found = jobs.measure_planning("a tree", tmp_path / "tree", tmp_path / "out")
    assert found.files == 1_234
    assert 1_234 / 64 <= found.segments == len((tmp_path / "out" / "segments.jsonl").read_text().splitlines())
    assert 0 < found.rss_before_mib <= found.rss_mib


@pytest.mark.slow
def test_jobs_are_measured_beside_stream(tmp_path):
    report = tmp_path / "report.json"
    options = ["--images", "48", "--segment-images", "4", "--streams", "1", "--only", "images"]
    options += ["--devices", "cpu", "--ray-workers", "1", "--stream-seconds", "1", "--out", str(report)]
    # In a process of its own, as a Ray that was started and ended here would be in the way of other tests'.
    ran = subprocess.run([sys.executable, "-m", "benchmarks.jobs", *options], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(report.read_text())
    (job, on_ray) = found["jobs"]
    assert [each["frames_s"] > 0 for each in found["streams"]] == [True, True]
    assert "1 thread" in found["streams"][1]["device"]
    assert (job["frames"], job["devices"]) == (48, "cpu")
    assert job["frames_s"] > 0
    assert (on_ray["frames"], on_ray["devices"]) == (48, "Ray, 1 workers")
    assert on_ray["frames_s"] > 0
    assert 0 < job["first_s"] < job["seconds"]
    assert job["workers_mib"]["most"] > 100
    assert 10 < job["frame_bytes"] < 10_000
    assert "job on cpu" in ran.stdout


def test_too_few_segments_give_no_rate(tmp_path):
    drawn = jobs.draw_images(tmp_path, (64, 96), 2)
    jobs.link_images(drawn, tmp_path / "tree", 4)
    crew = jobs.local_crew("cpu", EngineConfig(device="cpu"), lanes=1)
    with pytest.raises(InputError, match="must give at least 4 segments, got 1"):
        jobs.measure_job("4 images", tmp_path / "tree", tmp_path / "out", Settings(), crew)

"""examples/bucket_job.py, on a store of S3's kind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.making import put

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "bucket_job.py"


def test_a_job_of_a_bucket_is_done_once_and_told_by_source(s3, clip, remote_out, tmp_path):
    put(s3, "bucket/night/street.mp4", clip.read_bytes())
    put(s3, "bucket/night/broken.png", b"no image")
    command = [sys.executable, EXAMPLE, "s3://bucket/night", remote_out]
    own = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # where the model would compile for a while
    for written in (1, 0):
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=120)
        assert done.stdout, done.stderr
        (line,) = done.stdout.splitlines()
        assert line.startswith("s3://bucket/night/street.mp4: frames 12, in each "), done.stderr
        assert done.returncode == 1, done.stderr
        assert f" {written} written" in done.stderr

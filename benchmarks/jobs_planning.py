"""Plan a job over a tree of files, and print what it took as JSON: run by `benchmarks.jobs` in a process of its own.

python -m benchmarks.jobs_planning FOLDER OUT
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path

from maskjet.jobs.folders import Folder
from maskjet.jobs.manifest import Plan
from maskjet.jobs.planning import plan
from maskjet.jobs.segments import Settings


def main(folder: str, out: str) -> None:
    """Plan twice: the segments alone, then as a job does, which also writes them down and reads them again."""
    Path(out).mkdir(parents=True, exist_ok=True)
    before_mib = _most_mib()
    begin = time.monotonic()
    files = sum(len(segment.files) for segment in plan(folder, recursive=True) if segment.first == 0)
    plan_s = time.monotonic() - begin
    begin = time.monotonic()
    segments = plan(folder, recursive=True)
    with closing(Plan(Folder(out), segments, Settings().identity(None))) as planned:
        count = sum(task is not None for task in planned.read())
    job_s = time.monotonic() - begin
    report = {
        "files": files,
        "segments": count,
        "plan_s": round(plan_s, 2),
        "job_s": round(job_s, 2),
        "rss_mib": round(_most_mib(), 1),
        "rss_before_mib": round(before_mib, 1),
    }
    print(json.dumps(report))


def _most_mib() -> float:
    """The most memory that this process has had; `getrusage` would tell its parent's, if that was more."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Detect in all videos and images of a bucket, and print what they show, for whoever does so every night.

    pip install '.[jobs]'
    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…  # and AWS_ENDPOINT_URL where the store is not Amazon's
    python examples/bucket_job.py s3://bucket/videos s3://bucket/results

The job takes all GPUs of this machine. What has results already is not done again, so that the same line goes on after
an interruption, and tomorrow does only what is new. Folders do in place of URLs. Another model needs other results.
"""

import subprocess
import sys
from collections import Counter, defaultdict
from urllib.parse import quote

import pyarrow.dataset

SOME_FAILED = 1  # exit code: all is done but what failures.jsonl lists


def summarise(results: str) -> dict[str, tuple[int, Counter[str]]]:
    """Frames, and detections by class, of each video and image; memory does not grow with the results."""
    frames: Counter[str] = Counter()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    folder = f"{results}/parts"
    parts = pyarrow.dataset.dataset(quote(folder, safe=":/") if "://" in folder else folder)  # pyarrow decodes URLs
    for batch in parts.to_batches(columns=["source", "class_name"]):  # masks and boxes are not read
        for row in batch.to_pylist():
            frames[row["source"]] += 1
            found[row["source"]].update(row["class_name"])
    return {source: (count, found[source]) for source, count in sorted(frames.items())}


if __name__ == "__main__":
    _, sources, out = sys.argv
    command = [sys.executable, "-m", "maskjet", "job", "run", sources, "--recursive", "--out", out]
    code = subprocess.run([*command, "--model", "demo"]).returncode  # or a checkpoint of your own
    if code not in (0, SOME_FAILED):
        sys.exit(code)
    for name, (count, by_class) in summarise(out).items():
        means = ", ".join(f"{number / count:.1f} {kind}" for kind, number in by_class.most_common())
        print(f"{name}: frames {count}, in each {means or 'nothing'}")
    sys.exit(code)

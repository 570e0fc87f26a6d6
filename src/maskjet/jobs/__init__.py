"""Batch jobs over many files, on several GPUs or machines.

`plan` cuts sources into segments, `process` makes a table of one, which becomes one Parquet file, a part, and `merge`
joins the parts of a job.
"""

from maskjet.jobs.merging import merge
from maskjet.jobs.planning import plan
from maskjet.jobs.processing import process

__all__ = ["merge", "plan", "process"]

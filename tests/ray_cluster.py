"""A Ray cluster on this machine for the tests of a module."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import maskjet
from tests.waiting import until

MARK = "MASKJET_TEST_CLUSTER"
"""Variable in the environment of all processes of a test's cluster: its folder."""


@contextlib.contextmanager
def running(**options):
    """Start a cluster with two CPUs and connect to it; at the end wait for its last process. Yields its folder."""
    import ray

    with contextlib.ExitStack() as stack:
        # A Unix socket's path may have 107 bytes.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mj", dir="/tmp", ignore_cleanup_errors=True))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in environment(folder).items():
            patch.setenv(name, value)
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            _temp_dir=folder,
            **options,
        )
        stack.callback(wait_for_end, folder)
        stack.callback(ray.shutdown)
        yield folder


def environment(folder):
    """Variables of the cluster's processes."""
    return {
        MARK: folder,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # which decide on rounding
        "PYTHONPATH": os.pathsep.join([str(Path(maskjet.__file__).parents[1]), *sys.path]),
        "RAY_AUTH_MODE": "disabled",  # it would write a token to the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def processes_of(folder):
    """Command lines of the cluster's processes, by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes()
    return found


def wait_for_end(folder):
    """Wait until all of the cluster's processes have ended."""
    until(lambda: not processes_of(folder))

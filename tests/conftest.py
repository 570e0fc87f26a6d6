"""What every test shares: which machine it may need, and how many threads it may take."""

import importlib
import os

# Threads of OpenMP spin for a while after their work, which keeps the cores from other tests and from programs that
# tests start. To be set before PyTorch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

from maskjet.ops import RECORDS
from tests.interpreter import patch_language_once_per_launch

# Without a GPU kernels are interpreted, which is decided where they are defined. It takes seconds where the others take
# milliseconds, so that only the tests of the ops ask for it.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    patch_language_once_per_launch()
for name in RECORDS:
    importlib.import_module(f"maskjet.ops.{name}.kernels")
os.environ.pop("TRITON_INTERPRET", None)


@pytest.fixture(scope="module")
def two_threads():
    """For comparisons with PyTorch's bilinear resize on a CPU."""
    # With a single thread F.interpolate takes another kernel, which rounds source positions otherwise: at 1080p its
    # result differs from its own on two threads by up to 3e-5 (torch 2.15). The references are the latter.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # several workers share the cores
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() or os.environ.get("MASKJET_REQUIRE_GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; set MASKJET_REQUIRE_GPU=1 to fail instead"))

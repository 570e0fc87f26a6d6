"""What every test shares: which machine it may need, and how many threads it may take."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read where kernels are defined, so before maskjet's are


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # several workers share the cores
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available() or os.environ.get("MASKJET_REQUIRE_GPU"):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; set MASKJET_REQUIRE_GPU=1 to fail instead"))

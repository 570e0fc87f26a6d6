"""Ops are compared with PyTorch on two threads, on a CPU and a GPU."""

import pytest
import torch

from maskjet.ops import gpu


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each place an op may run: on a CPU the kernels are interpreted."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _kernels_on_a_cpu(monkeypatch):
    """They are interpreted."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    gpu.why_not.cache_clear()
    yield
    gpu.why_not.cache_clear()


@pytest.fixture(autouse=True)
def _compared_with_pytorch(two_threads):
    """Every test here does."""

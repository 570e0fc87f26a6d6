"""Ops are compared with PyTorch on two threads, on a CPU and a GPU."""

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Each place an op may run: on a CPU the kernels are interpreted."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _two_threads():
    # With a single thread F.interpolate takes another kernel, which rounds source positions otherwise: at 1080p its
    # result differs from its own on two threads by up to 3e-5 (torch 2.15). The references are the latter.
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

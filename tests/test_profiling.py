"""What is counted of a profile."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from maskjet.profiling import GpuWork, profile_gpu, sum_up

CPU = torch.device("cpu")


def event(name, us, device=DeviceType.CUDA, **more):
    return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(elapsed_us=lambda: us), **more)


def test_kernels_copies_and_the_rest_are_told_apart():
    events = [
        event("void at::native::vectorized_elementwise_kernel<4>", 3.0, is_user_annotation=False),
        event("triton_poi_fused_0", 5.0),
        event("Memcpy DtoH (Device -> Pageable)", 100.0),
        event("Memset (Device)", 1.0),
        event("Torch-Compiled Region: 0/0", 900.0, is_user_annotation=True),
        event("Activity Buffer Request", 700.0),
        event("Stream Sync", 700.0),
        event("cudaLaunchKernel", 50.0, DeviceType.CPU),
    ]
    assert sum_up(events, calls=2) == GpuWork(launches=1.0, copies=1.0, gpu_us=4.0, copy_us=50.5)
    assert sum_up([], calls=2) == GpuWork(launches=0.0, copies=0.0, gpu_us=0.0, copy_us=0.0)


def test_on_a_cpu_there_is_nothing_to_count():
    assert profile_gpu(lambda: pytest.fail("was called"), CPU) is None


@pytest.mark.gpu
def test_on_a_gpu_every_kernel_and_copy_is_counted():
    values = torch.zeros(1000, device="cuda")
    work = profile_gpu(lambda: (values + 1).mul_(2).cpu(), values.device)
    assert (work.launches, work.copies) == (2, 1)
    assert 0 < work.gpu_us < 1000

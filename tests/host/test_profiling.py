"""What is counted of a profile."""

from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from maskjet.host.profiling import Work, profile, sum_up


def event(name, start, stop, device=DeviceType.CUDA, **more):
    span = SimpleNamespace(start=start, end=stop, elapsed_us=lambda: stop - start)
    return SimpleNamespace(name=name, device_type=device, time_range=span, **more)


def test_launches_waits_kernels_copies_and_the_rest_are_told_apart():
    events = [
        event("cudaGraphLaunch", 0, 5, DeviceType.CPU),
        event("cudaLaunchKernelExC", 5, 6, DeviceType.CPU),
        event("cudaMemcpyAsync", 6, 7, DeviceType.CPU),
        event("cudaEventQuery", 7, 8, DeviceType.CPU),
        event("cudaDeviceSynchronize", 8, 9, DeviceType.CPU),  # the profiler's
        event("cudaStreamSynchronize", 20, 30, DeviceType.CPU),
        event("cudaDeviceSynchronize", 60, 61, DeviceType.CPU),  # the profile's own
        event("void at::native::vectorized_elementwise_kernel<4>", 10, 20, is_user_annotation=False),
        event("triton_poi_fused_0", 15, 30),  # at the same time
        event("Memcpy HtoD (Pageable -> Device)", 40, 49),
        event("Memset (Device)", 49, 50),
        event("Torch-Compiled Region: 0/0", 0, 900, is_user_annotation=True),
        event("Activity Buffer Request", 0, 700),
        event("Stream Sync", 0, 100),
    ]
    found = Work(1.0, host_copies=0.5, waits=0.5, kernels=1.0, copies=1.0, gpu_us=12.5, copy_us=5.0, busy=0.75)
    assert sum_up(events, items=2) == found
    assert sum_up([], items=2) == Work(*[0.0] * 8)


def test_on_a_cpu_there_is_nothing_to_count():
    assert profile(lambda: pytest.fail("was called"), torch.device("cpu")) is None


@pytest.mark.gpu
def test_on_a_gpu_every_kernel_and_copy_is_counted():
    values = torch.zeros(1000, device="cuda")
    (values + 1).mul_(2).cpu()  # loads the kernels
    work = profile(lambda: (values + 1).mul_(2).cpu(), values.device)
    assert (work.launches, work.kernels, work.copies) == (2, 2, 1)
    assert 0 < work.gpu_us < 1000

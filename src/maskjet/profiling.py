"""A call's work on a GPU, counted by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined] # public, but for its stub

from maskjet.timing import synchronize

_CALLS = 3
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
_HOST_COPIES = ("cudaMemcpy", "cudaMemset")
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cuStreamSynchronize")
"""Prefixes of the names of CUDA's launches, copies and waits on the host."""
_COPIES = ("Memcpy", "Memset")
"""Prefixes of the profiler's names of copies and fills on the device; other names are kernels'."""
_NO_WORK = (
    *("Activity Buffer", "Command Buffer", "Lazy Function", "Runtime Triggered"),
    *("Context Sync", "Event Sync", "Stream Sync", "Stream Wait"),
)
"""Prefixes of the profiler's names of waits and of its own overhead, which some versions put on the device."""


@dataclass(frozen=True)
class GpuWork:
    """One call's work on a GPU, on average."""

    launches: float
    """Number of kernels."""
    copies: float
    """Number of copies and fills of memory, on the GPU, to it and from it."""
    gpu_us: float
    """Microseconds that kernels take, without copies and gaps."""
    copy_us: float
    """Microseconds that copies and fills take."""


def profile_gpu(call: Callable[[], object], device: torch.device) -> GpuWork | None:
    """Count a call's work on a GPU: means over three calls, which must do the same; None if the device is no GPU.

    The profiler slows all later launches in the whole process, so measure times before.
    """
    if device.type != "cuda":
        return None
    call()  # warm-up
    return sum_up(_trace([call] * _CALLS, device), calls=_CALLS)


def _trace(calls: Iterable[Callable[[], object]], device: torch.device) -> Iterable[Any]:
    """The events of some calls, the host's and the device's."""
    synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        for call in calls:
            call()
        synchronize(device)
    return profiler.events() or ()


@dataclass(frozen=True)
class HostWork:
    """The host's CUDA calls for one item of work, on average, and how busy they keep the GPU."""

    launches: float
    """Launches of kernels and graphs."""
    copies: float
    """Copies and fills of memory, except those within graphs."""
    waits: float
    """Calls that block until the GPU has done something, between its first work and its last."""
    busy: float
    """Share of the time, from the first work to the last, in which the GPU does something, 0..1."""


def profile_host(call: Callable[[], object], device: torch.device, *, times: int) -> HostWork | None:
    """Count the host's CUDA calls: means per item of a call that does `times` items; None if the device is no GPU.

    Profiling slows later launches; see `profile_gpu`.
    """
    if device.type != "cuda":
        return None
    return sum_up_host(_trace([call], device), times=times)


def sum_up_host(events: Iterable[Any], *, times: int) -> HostWork:
    """Sum up the host's calls in a profile of `times` items of work.

    `events` are `torch.autograd.profiler_util.FunctionEvent`s, the host's and the device's.
    """
    events = list(events)
    calls = [event for event in events if event.device_type == DeviceType.CPU]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events if _is_work(event))
    busy_us = end = 0.0
    for start, stop in spans:
        busy_us += max(stop - max(start, end), 0)
        end = max(end, stop)
    begin = spans[0][0] if spans else 0.0
    waits = [call for call in calls if call.name.startswith(_WAITS) and begin <= call.time_range.start < end]
    return HostWork(
        launches=round(sum(call.name.startswith(_LAUNCHES) for call in calls) / times, 2),
        copies=round(sum(call.name.startswith(_HOST_COPIES) for call in calls) / times, 2),
        waits=round(len(waits) / times, 2),
        busy=round(busy_us / (end - begin), 3) if spans else 0.0,
    )


def sum_up(events: Iterable[Any], *, calls: int) -> GpuWork:
    """Sum up the device's events in a profile of some calls, as `sum_up_host` takes them; returns means per call."""
    on_device = [event for event in events if _is_work(event)]
    copies = [event for event in on_device if event.name.startswith(_COPIES)]
    kernels = [event for event in on_device if not event.name.startswith(_COPIES)]
    return GpuWork(
        launches=round(len(kernels) / calls, 2),
        copies=round(len(copies) / calls, 2),
        gpu_us=round(sum(event.time_range.elapsed_us() for event in kernels) / calls, 2),
        copy_us=round(sum(event.time_range.elapsed_us() for event in copies) / calls, 2),
    )


def _is_work(event: Any) -> bool:
    """Whether an event is work on the GPU; torch.compile marks its regions on the GPU's time line, too."""
    is_mark = getattr(event, "is_user_annotation", False) or event.name.startswith(_NO_WORK)
    return event.device_type == DeviceType.CUDA and not is_mark

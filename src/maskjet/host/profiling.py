"""Count a call's GPU work and host calls with PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined] # public, but for its stub

from maskjet.host.timing import synchronize

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
"""Prefixes of profiler events for waits and its own overhead, which some versions list as GPU work."""


@dataclass(frozen=True)
class Work:
    """Average GPU work and host calls per item."""

    launches: float
    """Launches of kernels and graphs by the host."""
    host_copies: float
    """Copies and fills issued by the host, without those in graphs."""
    waits: float
    """Blocking host calls between the first and the last GPU work."""
    kernels: float
    """Kernels on the GPU."""
    copies: float
    """Copies and fills of memory, on the GPU, to it and from it."""
    gpu_us: float
    """Microseconds that kernels take, without copies and gaps."""
    copy_us: float
    """Microseconds that copies and fills take."""
    busy: float
    """Share of the time, from the first work to the last, in which the GPU does something, 0..1."""


def profile(call: Callable[[], object], device: torch.device, *, items: int = 1) -> Work | None:
    """Profile a call that processes several equal items; None if the device is no GPU.

    The profiler slows all later launches in the whole process, so measure times before.
    """
    if device.type != "cuda":
        return None
    synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        synchronize(device)
    return sum_up(profiler.events() or (), items=items)


def sum_up(events: Iterable[Any], *, items: int) -> Work:
    """Average a profile over items; events are `torch.autograd.profiler_util.FunctionEvent`s."""
    events = list(events)
    calls = [event for event in events if event.device_type == DeviceType.CPU]
    on_device = sorted(filter(_is_work, events), key=lambda event: event.time_range.start)
    copies = [event for event in on_device if event.name.startswith(_COPIES)]
    kernels = [event for event in on_device if not event.name.startswith(_COPIES)]
    begin = end = on_device[0].time_range.start if on_device else 0.0
    busy_us = 0.0
    for span in (event.time_range for event in on_device):
        busy_us += max(span.end - max(span.start, end), 0)
        end = max(end, span.end)

    def count(prefixes: tuple[str, ...]) -> float:
        return round(len([call for call in calls if call.name.startswith(prefixes)]) / items, 2)

    waits = [call for call in calls if call.name.startswith(_WAITS) and begin <= call.time_range.start < end]
    return Work(
        launches=count(_LAUNCHES),
        host_copies=count(_HOST_COPIES),
        waits=round(len(waits) / items, 2),
        kernels=round(len(kernels) / items, 2),
        copies=round(len(copies) / items, 2),
        gpu_us=round(sum(event.time_range.elapsed_us() for event in kernels) / items, 2),
        copy_us=round(sum(event.time_range.elapsed_us() for event in copies) / items, 2),
        busy=round(busy_us / (end - begin), 3) if on_device else 0.0,
    )


def _is_work(event: Any) -> bool:
    """Whether an event is GPU work; torch.compile also puts region markers on the GPU's time line."""
    is_mark = getattr(event, "is_user_annotation", False) or event.name.startswith(_NO_WORK)
    return event.device_type == DeviceType.CUDA and not is_mark

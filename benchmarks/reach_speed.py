"""Measuring decoding alone, detecting on streams, and the floors of both."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import sched_getaffinity
from pathlib import Path
from typing import Any

import torch

from benchmarks.reach_report import Speed
from maskjet.engine.slot import GraphSlot, Pixels
from maskjet.errors import InputError, UnsupportedError
from maskjet.model import Model
from maskjet.ops.memory import pin
from maskjet.sources.frames import open_source
from maskjet.sources.picture import Picture
from maskjet.sources.source import Frame, Source

_WARM_UP = 8  # frames of each stream
_ROUNDS = 4  # batches of each slot before anything counts: the second one is captured
_COPIED_BYTES, _COPIES = 2**26, 32
_GLANCE_S = 0.002


class Stopwatch:
    """The time since it was made, and the CPU time of this process's threads meanwhile."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, frames: int) -> Speed:
        """The speed of that many frames since then."""
        seconds, cpu_s = time.perf_counter() - self._wall, time.process_time() - self._cpu
        busy = cpu_s / seconds / len(sched_getaffinity(0))
        return Speed(round(frames / seconds, 2), frames, round(seconds, 3), round(busy, 4))


def open_all(names: Sequence[str | Path], decoder: str) -> list[Source]:
    """Open sources side by side, all with one decoder.

    Raises:
        UnsupportedError: One is decoded by another decoder than asked for.
        SourceError: One can't be opened.
    """
    with ThreadPoolExecutor(len(names)) as pool:
        opening = [pool.submit(open_source, name, decoder=decoder) for name in names]
    try:
        sources = [each.result() for each in opening]
        for source in sources:
            _check_decoder(source, decoder)
    except BaseException:
        for each in opening:
            if each.exception() is None:
                each.result().close()
        raise
    return sources


def _check_decoder(source: Source, decoder: str) -> None:
    if source.decoder != decoder:
        raise UnsupportedError(f"decoder must be {decoder!r}, {source.name!r} is decoded by {source.decoder!r}.")


def time_decoding(path: Path, streams: int, decoder: str, seconds: float) -> Speed:
    """Decode a file in several threads, each its own source, and drop the frames.

    The time begins when each stream has given some frames, and ends with the first stream that ends.
    """
    sources = open_all([path] * streams, decoder)
    counts, has_ended = [0] * streams, threading.Event()

    def read(number: int) -> None:
        try:
            with sources[number] as source:
                for _ in source:
                    counts[number] += 1
                    if has_ended.is_set():
                        return
        finally:
            has_ended.set()

    with ThreadPoolExecutor(streams) as pool:
        reading = [pool.submit(read, number) for number in range(streams)]
        while min(counts) < _WARM_UP and not has_ended.is_set():
            time.sleep(_GLANCE_S)
        watch, before = Stopwatch(), sum(counts)
        has_ended.wait(seconds)
        speed = watch.stop(sum(counts) - before)
        has_ended.set()
        for each in reading:
            each.result()
    return speed


@dataclass(frozen=True)
class Streamed:
    """How a stream went."""

    speed: Speed
    """Frames of all sources."""
    detections: float
    """Detections per frame."""
    gpu_mib: float | None
    """GPU memory in use at the end; see `gpu_mib`."""
    pixels: Pixels
    """The last frame, as the engine takes it."""


def time_stream(
    model: Model, sources: Sequence[Any], *, depth: int, batch: int, seconds: float, length: int | None = None
) -> Streamed:
    """Detect on sources side by side.

    The time begins when each source has given some frames and the graphs are captured. It ends before a source ends.

    Args:
        model: The model.
        sources: As `Model.stream` takes them; files are opened already.
        depth: Batches in flight.
        batch: Most frames in a batch.
        seconds: Time to measure.
        length: Frames of each source; None if they have no end.
    """
    counts, detections, frames = [0] * len(sources), 0, 0
    watch: Stopwatch | None = None
    end = math.inf
    with closing(model.stream(list(sources), depth=depth, batch=batch)) as results:
        for frame, found in results:
            counts[frame.stream] += 1
            if watch is None:
                if sum(counts) >= _ROUNDS * depth * batch and min(counts) >= _WARM_UP:
                    watch, end = Stopwatch(), time.perf_counter() + seconds
            else:
                frames += 1
                detections += len(found)
            if time.perf_counter() > end or counts[frame.stream] == length:
                break
        if watch is None or not frames:
            raise InputError(f"sources must have more frames: {sum(counts)} of all were seen before the time began.")
        speed = watch.stop(frames)
        return Streamed(speed, round(detections / frames, 2), gpu_mib(model), _as_taken(frame))


def _as_taken(frame: Frame) -> Pixels:
    pixels = frame.pixels
    return pixels if isinstance(pixels, Picture) else torch.from_numpy(frame.image.copy())


def bytes_of(pixels: Pixels) -> int | None:
    """Bytes of a frame that cross PCIe to the GPU; None if it was decoded there."""
    memory = pixels.memory if isinstance(pixels, Picture) else pixels
    return None if memory.is_cuda else memory.nbytes


def time_graphs(model: Model, pixels: Pixels, depth: int, batch: int, seconds: float) -> float | None:
    """Frames per second of replays alone of a batch's graph, `depth` at once; None without graphs.

    Args:
        model: The model.
        pixels: A frame, of which the batch consists.
        depth: Replays at once.
        batch: Frames in the batch.
        seconds: Time to measure.
    """
    if model._engine.why_no_graph is not None:
        return None
    with model._engine.lease(depth) as slots, ThreadPoolExecutor(depth) as pool:
        for slot in slots * 2:  # the second time, graphs are captured; a stream may have used fewer slots
            slot.submit([pixels] * batch, batch)
            slot.result()
        begin = time.perf_counter()

        def replay(slot: GraphSlot) -> int:
            times = 0
            while time.perf_counter() < begin + seconds:
                slot.replay()
                times += 1
            return times

        replays = sum(pool.map(replay, slots))
        return round(replays * batch / (time.perf_counter() - begin), 1)


def measure_pcie(device: torch.device) -> float | None:
    """Bandwidth of copies from page-locked memory to the GPU, in bytes per second; None for a CPU."""
    if device.type != "cuda":
        return None
    with torch.cuda.device(device):
        host = pin([_COPIED_BYTES])
        there = torch.empty_like(host, device=device)
        copy: Callable[[], object] = partial(there.copy_, host, non_blocking=True)
        copy()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(_COPIES):
            copy()
        torch.cuda.synchronize()
        return _COPIED_BYTES * _COPIES / (time.perf_counter() - begin)


def gpu_mib(model: Model) -> float | None:
    """GPU memory in use by anyone, decoders included, in MiB; None without a GPU."""
    device = model._engine.steps.device
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return round((total - free) / 2**20, 1)

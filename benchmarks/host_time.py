"""Where a frame's host time goes in `Model.stream`, with frames rotated from memory.

    python -m benchmarks.host_time --model rf-detr-seg-nano --device cuda --out benchmarks/results/host_time_h200.json

Each case runs twice: as it is, for frames per second and CPU time, and with the engine's methods wrapped, for the
sections. What a wrapper costs is measured, too, and stated. Then the graphs are replayed alone, which nothing on the
host can exceed. With two GPUs, two threads with a model each run beside one.

The report is written after each measurement. Those that no time is left for are notes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.command import ReportOption, SizesOption, start
from benchmarks.contenders import Image
from benchmarks.planted import plant_network
from maskjet import traffic
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result, progress, with_config
from maskjet.config import EngineConfig
from maskjet.engine.copying import Copier
from maskjet.engine.reading import Readers
from maskjet.engine.slot import EagerSlot, FrameGraph, GraphSlot
from maskjet.engine.steps import Work
from maskjet.engine.upload import Upload
from maskjet.host import process
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.host.timing import percentile
from maskjet.model import Model, read_network
from maskjet.spec import SPECS

SECTIONS: dict[str, tuple[type, str]] = {
    "taking frames": (Readers, "take"),
    "copying": (Copier, "copy"),
    "uploading": (Upload, "repeat"),
    "launching": (FrameGraph, "launch"),
    "submitting, the rest": (GraphSlot, "submit"),
    "waiting": (GraphSlot, "drain"),
    "reading results": (Work, "read"),
    "steps one by one": (EagerSlot, "result"),
}
"""Methods that the iterating thread calls, by what they do; the time of one within another counts for the inner."""
_SEED = 7
_PLANTED = 25  # masks per frame
_STREETS = 8
_IN_MEMORY = 24  # frames: 66 MB at 720p
_WARM_UP = 6  # batches for each slot: the second is captured
_REPLAY_S = 0.5
_PROBES = 20_000


@dataclass
class Section:
    """What one of the engine's methods takes, per frame, in the thread that iterates."""

    name: str
    """What it does."""
    calls: float = 0.0
    """Calls per frame."""
    cpu_us: float = 0.0
    """CPU time in microseconds."""
    wall_us: float = 0.0
    """Time by the clock in microseconds, with waiting for the GPU, for the interpreter and for other threads."""


@dataclass(frozen=True)
class Case:
    """One way to stream."""

    sources: int
    """Sources side by side; a batch has a frame of each."""
    depth: int
    """Batches in flight."""
    size_hw: tuple[int, int]
    """(height, width) of the frames."""


@dataclass(frozen=True)
class HostTime:
    """What a case has shown; times in microseconds per frame."""

    case: Case
    """What was run."""
    frames: int
    """Frames of the plain run."""
    fps: float
    """Frames per second."""
    iterating_us: float
    """CPU time of the thread that iterates."""
    others_us: float
    """CPU time of all other threads of the process: reading frames, helping to copy, PyTorch's own."""
    wrapped_fps: float
    """Frames per second with the methods wrapped."""
    wrapping_us: float
    """CPU time that the wrappers take; it is in the sections' and the rest."""
    polls: float
    """Times that a frame's event was asked for."""
    sections: list[Section]
    """The parts of the iterating thread's time, without those that don't occur."""
    rest_us: float
    """Its CPU time outside of all sections."""
    replay_fps: float | None
    """Frames per second of one slot's graph replayed again and again; None without graphs."""
    replays_fps: float | None
    """The same with as many slots as batches in flight, each replayed by a thread of its own."""

    @property
    def share(self) -> float | None:
        """Frames per second as a share of the replays'; None without graphs."""
        return None if self.replays_fps is None else self.fps / self.replays_fps


@dataclass(frozen=True)
class TwoThreads:
    """Two threads with a GPU and a model each, beside one."""

    case: Case
    """What each thread runs."""
    one_fps: float
    """Frames per second of one thread, the other GPU idle."""
    two_fps: float
    """Frames per second of both together."""


@dataclass(frozen=True)
class HostReport:
    """The report of a run."""

    machine: Any
    """The machine and its versions."""
    model: str
    """The network."""
    device: str
    """What it ran on."""
    wrapper_us: float
    """CPU time of one wrapper around a method that does nothing, in microseconds."""
    cases: list[HostTime] = field(default_factory=list)
    """Case by case."""
    two: list[TwoThreads] = field(default_factory=list)
    """With two GPUs; empty otherwise."""
    notes: list[str] = field(default_factory=list)
    """Measurements that no time was left for."""

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.device}; per frame, µs of CPU time; a wrapper takes {self.wrapper_us:.2f}"]
        for one in self.cases:
            lines += ["", f"{_name(one.case)}: {one.fps:,.0f} frames/s, {one.wrapped_fps:,.0f} with wrappers"]
            if one.replay_fps is not None and one.replays_fps is not None and one.share is not None:
                lines.append(
                    f"  replays alone: {one.replay_fps:,.0f} from one slot, {one.replays_fps:,.0f} in flight; "
                    f"streaming gives {one.share:.1%} of these"
                )
            lines.append(f"  iterating thread {one.iterating_us:.1f}, other threads {one.others_us:.1f}")
            lines.append(f"  {'section':<22}{'calls':>7}{'CPU':>9}{'clock':>9}")
            lines += [f"  {s.name:<22}{s.calls:>7.2f}{s.cpu_us:>9.1f}{s.wall_us:>9.1f}" for s in one.sections]
            lines.append(f"  {'the rest':<22}{'':>7}{one.rest_us:>9.1f}")
            lines.append(f"  of all this, wrappers {one.wrapping_us:.1f}; {one.polls:.2f} polls")
        for pair in self.two:
            lines += [
                "",
                f"{_name(pair.case)}: one thread with a GPU {pair.one_fps:,.0f} frames/s, two {pair.two_fps:,.0f}: "
                f"{pair.two_fps / pair.one_fps:.2f} times one",
            ]
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])


def _name(case: Case) -> str:
    sources = "1 source" if case.sources == 1 else f"{case.sources} sources in one batch"
    return f"{case.size_hw[1]} × {case.size_hw[0]}, {sources}, depth {case.depth}"


def run(
    path: Path | None = None,
    *,
    model: str = "demo",
    weights: Path | None = None,
    sizes_hw: Sequence[tuple[int, int]] = ((176, 312), (720, 1280)),
    config: EngineConfig | None = None,
    sources: int = 16,
    seconds: float = 1.5,
    limit_s: float = 80.0,
    on_progress: Callable[[], object] = lambda: None,
) -> HostReport:
    """Measure one source with four frames in flight, and several sources with three batches in flight.

    Args:
        path: A JSON file for the report, written after each measurement.
        model: A model of `maskjet.load`; a named size without weights gets random ones that find about 25 masks.
        weights: A weights file of `maskjet.load`.
        sizes_hw: (height, width) of the frames.
        config: Settings of the model; None for the defaults.
        sources: Sources of the second case, at least 1.
        seconds: How long a run takes; a case has two.
        limit_s: Time after which no measurement begins. The first one of a batch size waits for the compiler.
        on_progress: Called after each size.
    """
    began = time.monotonic()
    check_count("sources", sources)
    config = config or EngineConfig()
    with ExitStack() as stack:
        images = {size_hw: _draw(size_hw) for size_hw in sizes_hw}
        if model in SPECS and weights is None:
            network: Any = plant_network(SPECS[model], images[sizes_hw[0]][:_STREETS], survivors=_PLANTED)
        else:
            network = read_network(model, weights)
        devices = _devices(config)
        models = [
            stack.enter_context(Model(deepcopy(network), replace(config, device=device), threshold=0.5))
            for device in devices
        ]
        name = models[0].spec.name
        report = HostReport(describe_machine(), name, models[0].report().device, round(_time_wrapper(), 3))

        def measure(case: Case, gpus: int = 1) -> None:
            if time.monotonic() - began > limit_s:
                on_two = " on two GPUs" if gpus == 2 else ""
                report.notes.append(f"{_name(case)}{on_two}: left out, {limit_s:g} s were over.")
            elif gpus == 1:
                report.cases.append(_measure(models[0], images[case.size_hw], case, seconds, report.wrapper_us))
            else:
                report.two.append(_measure_two(models, images[case.size_hw], case, seconds))
            if path is not None:
                write_json(path, asdict(report))

        for size_hw in sizes_hw:
            measure(Case(1, 4, size_hw))
            measure(Case(sources, 3, size_hw))
            if len(models) > 1:
                measure(Case(1, 4, size_hw), gpus=2)
            on_progress()
        return report


def _devices(config: EngineConfig) -> list[str]:
    """The device asked for; the first two GPUs if that is any GPU and there are two."""
    device = config.resolve_device()
    if device.type == "cuda" and device.index in (None, 0) and torch.cuda.device_count() > 1:
        return ["cuda:0", "cuda:1"]
    return [str(device)]


def _draw(size_hw: tuple[int, int]) -> list[Image]:
    """Streets, each in several places of the memory, so that frames are not read from a cache."""
    streets = [traffic.sample(seed=_SEED + number, size_hw=size_hw).image for number in range(_STREETS)]
    return [np.roll(streets[number % _STREETS], number // _STREETS, axis=1) for number in range(_IN_MEMORY)]


def _stream(model: Model, images: Sequence[Image], case: Case) -> Iterator[Any]:
    """An endless stream; each source begins with another image."""
    ordered = [itertools.cycle([*images[number:], *images[:number]]) for number in range(case.sources)]
    return model.stream(ordered if case.sources > 1 else ordered[0], depth=case.depth, batch=case.sources)


@dataclass(frozen=True)
class _Pace:
    """How a run went."""

    frames: int
    seconds: float
    iterating_us: float
    others_us: float

    @property
    def fps(self) -> float:
        return self.frames / self.seconds


def _play(
    model: Model,
    images: Sequence[Image],
    case: Case,
    seconds: float,
    begin: Callable[[], object] = lambda: None,
) -> _Pace:
    """Take the frames of a stream for some time, after those that fill the slots; `begin` is called between."""
    with closing(_stream(model, images, case)) as results:  # type: ignore[type-var]
        for _ in itertools.islice(results, case.depth * case.sources):
            pass
        begin()
        clock, mine, everyone = time.perf_counter(), time.thread_time(), time.process_time()
        for frames in itertools.count(1):  # noqa: B007 - read below
            next(results)
            if (spent := time.perf_counter() - clock) > seconds:
                break
        mine, everyone = time.thread_time() - mine, time.process_time() - everyone
    return _Pace(frames, spent, 1e6 * mine / frames, 1e6 * max(everyone - mine, 0.0) / frames)


def _measure(model: Model, images: Sequence[Image], case: Case, seconds: float, wrapper_us: float) -> HostTime:
    for _ in itertools.islice(_stream(model, images, case), _WARM_UP * case.depth * case.sources):
        pass
    with process.garbage_frozen():
        plain = _play(model, images, case, seconds)
        replay_fps, replays_fps = _replay(model, case)
        with _watched() as watch:
            wrapped = _play(model, images, case, seconds, watch.begin)
    sections = [each for each in watch.sections(wrapped.frames) if each.calls]
    return HostTime(
        case=case,
        frames=plain.frames,
        fps=round(plain.fps, 1),
        iterating_us=round(plain.iterating_us, 1),
        others_us=round(plain.others_us, 1),
        wrapped_fps=round(wrapped.fps, 1),
        wrapping_us=round(wrapper_us * (sum(each.calls for each in sections) + watch.polls / wrapped.frames), 1),
        polls=round(watch.polls / wrapped.frames, 2),
        sections=sections,
        rest_us=round(wrapped.iterating_us - sum(each.cpu_us for each in sections), 1),
        replay_fps=replay_fps,
        replays_fps=replays_fps,
    )


class _Watch:
    """Adds up the time of wrapped methods in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._inner: list[list[int]] = []  # for each method under way, the time of those within
        self.begin()

    def begin(self) -> None:
        """Forget all that was added."""
        self._spent = {name: [0, 0, 0] for name in SECTIONS}  # calls, ns of CPU, ns of the clock
        self.polls = 0
        """Calls of `Event.query`."""

    def wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that adds its time to a section."""

        @wraps(method)
        def timed(*given: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return method(*given, **options)
            inner = [0, 0]
            self._inner.append(inner)
            clock, cpu = time.perf_counter_ns(), time.thread_time_ns()
            try:
                return method(*given, **options)
            finally:
                cpu, clock = time.thread_time_ns() - cpu, time.perf_counter_ns() - clock
                self._inner.pop()
                if self._inner:
                    self._inner[-1][0] += cpu
                    self._inner[-1][1] += clock
                spent = self._spent[name]
                spent[0] += 1
                spent[1] += cpu - inner[0]
                spent[2] += clock - inner[1]

        return timed

    def count(self, query: Callable[..., bool]) -> Callable[..., bool]:
        """`Event.query` that counts its calls."""

        @wraps(query)
        def counted(event: Any) -> bool:
            self.polls += 1
            return query(event)

        return counted

    def sections(self, frames: int) -> list[Section]:
        """The sections, per frame."""
        return [
            Section(name, round(calls / frames, 3), round(cpu / 1000 / frames, 1), round(clock / 1000 / frames, 1))
            for name, (calls, cpu, clock) in self._spent.items()
        ]


@contextmanager
def _watched() -> Iterator[_Watch]:
    """Wrap the engine's methods within the context."""
    watch = _Watch()
    with ExitStack() as stack:
        for name, (owner, method) in SECTIONS.items():
            _replace(stack, owner, method, watch.wrap(name, vars(owner)[method]))
        _replace(stack, torch.cuda.Event, "query", watch.count(torch.cuda.Event.query))
        yield watch


def _replace(stack: ExitStack, owner: type, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


def _time_wrapper() -> float:
    """Microseconds of CPU time that a wrapper adds to a method; the median of some rounds."""
    watch = _Watch()

    def nothing() -> None:
        pass

    wrapped, costs = watch.wrap("copying", nothing), []
    for _ in range(5):
        times = []
        for method in (nothing, wrapped):
            before = time.thread_time_ns()
            for _ in range(_PROBES // 5):
                method()
            times.append(time.thread_time_ns() - before)
        costs.append((times[1] - times[0]) / 1000 / (_PROBES // 5))
    return percentile(costs, 0.5)


def _replay(model: Model, case: Case) -> tuple[float | None, float | None]:
    """Frames per second of the case's graphs alone: of one slot, and of all slots of the depth at once."""
    if model._engine.why_no_graph is not None:
        return None, None
    with model._engine.lease(case.depth) as lent:
        slots = [slot for slot in lent if isinstance(slot, GraphSlot) and _is_ready(slot, case)]
        if not slots:
            return None, None
        one, every = _time_replays(slots[:1]), _time_replays(slots)
    return round(case.sources * one, 1), round(case.sources * every, 1)


def _is_ready(slot: GraphSlot, case: Case) -> bool:
    """Whether the slot's last batch was one of the case's."""
    if not slot.graphs:
        return False
    last = slot.graphs[-1]
    return last.is_captured and last.work.frames.sizes.hw == [case.size_hw] * case.sources


def _time_replays(slots: Sequence[GraphSlot]) -> float:
    """Replays per second, each slot's in a thread of its own."""

    def work(slot: GraphSlot) -> int:
        count = 0
        while time.perf_counter() < end:
            slot.replay()
            count += 1
        return count

    with ThreadPoolExecutor(len(slots)) as threads:
        before = time.perf_counter()
        end = before + _REPLAY_S
        count = sum(threads.map(work, slots))
        return count / (time.perf_counter() - before)


def _measure_two(models: Sequence[Model], images: Sequence[Image], case: Case, seconds: float) -> TwoThreads:
    """Run one thread, then two at the same time."""
    for each in models:
        for _ in itertools.islice(_stream(each, images, case), _WARM_UP * case.depth * case.sources):
            pass
    one = _play(models[0], images, case, seconds)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(_play, each, images, case, seconds) for each in models[:2]]
        two = sum(each.result().fps for each in both)
    return TwoThreads(case, round(one.fps, 1), round(two, 1))


@with_config("device", "precision")
def main(
    *,
    out: ReportOption = None,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: SizesOption = None,
    config: EngineConfig,
    sources: Annotated[int, typer.Option(help="Sources side by side in the second case.")] = 16,
    seconds: Annotated[float, typer.Option(help="How long a run takes; each case has two.")] = 1.5,
    limit: Annotated[float, typer.Option(help="Seconds after which no measurement begins.")] = 80.0,
) -> None:
    """Measure where a frame's host time goes, with frames from memory."""
    sizes_hw = [parse_size(text) for text in size or ("312", "720p")]
    with progress("measuring", len(sizes_hw)) as advance:
        found = run(
            out,
            model=model,
            weights=weights,
            sizes_hw=sizes_hw,
            config=config,
            sources=sources,
            seconds=seconds,
            limit_s=limit,
            on_progress=advance,
        )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)

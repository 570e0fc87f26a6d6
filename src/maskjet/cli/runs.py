"""Runs of a model on sources: side by side, or one after another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from maskjet.cli import signals
from maskjet.cli.drawing import check_classes
from maskjet.cli.flags import in_flags
from maskjet.cli.options import print_error, progress_of
from maskjet.cli.stdout import ReaderGoneError
from maskjet.cli.summary import SourceSummary, Summary
from maskjet.errors import FrameError, SourceError
from maskjet.host.threads import in_background

if TYPE_CHECKING:
    from maskjet.config import EngineConfig
    from maskjet.detections import Detections
    from maskjet.drawing import Style
    from maskjet.engine.deadlines import Deadlines
    from maskjet.model import Model
    from maskjet.outputs.opening import Outputs
    from maskjet.outputs.sink import Sinks, SinksInTurn
    from maskjet.outputs.window import Window
    from maskjet.sources.frames import Frame, Source, UnopenedSource
    from maskjet.sources.source import Opening
    from maskjet.tracking import Counting, Line, Zone

    Results = Generator[tuple[Frame, Detections]]


@dataclass
class Run:
    """A run of a model, and its state."""

    config: EngineConfig
    """How the model runs, and where videos are decoded."""
    load: Callable[[EngineConfig], Model]
    """Loads the model, once the sources and outputs are known to be right."""
    opening: Opening
    """Arguments with which sources are opened, without `decoding`."""
    streams: int
    """Sources that are read side by side."""
    processes: int = field(default=1, kw_only=True)
    """Processes that share the machine with this one, itself included."""
    streaming: dict[str, Any]
    """Arguments of `Model.stream`."""
    deadlines: Deadlines | None = field(default=None, kw_only=True)
    """Promise for live sources, which has their load in the end."""
    style: Style
    """Whether windows, video and images are annotated, redacted or cut out, and how."""
    in_two_passes: bool = False
    """Whether sources are read twice, one after another, and their tracks smoothed in between."""
    counters: Sequence[Line | Zone] = ()
    """Lines and zones; each source is counted separately."""
    writing: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `check_outputs`."""
    shows: bool = False
    """Whether there is a window for each source."""
    model: Model | None = None
    """The model, once it is loaded."""
    summary: Summary = field(default_factory=Summary)
    """Statistics so far."""
    stop: signals.Stop = field(default_factory=signals.Stop)
    """Ends the run between two frames."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has come, or the window is closed."""
        return self.stop.event.is_set()

    def is_broken_off(self, frames: int) -> bool:
        """Whether a stopped run has too few frames (none) to replace existing outputs."""
        return self.is_stopped and not frames

    def open(self, unopened: UnopenedSource) -> Source:
        """Open a source."""
        from maskjet.sources.decoding import choose_decoding  # here, as choosing loads PyTorch

        return unopened.opening(replace(self.opening, decoding=choose_decoding(self.config, self.streams)))

    def check_outputs(self, outs: Sequence[str], sources: Sequence[Source | UnopenedSource]) -> Outputs:
        """Check the outputs."""
        from maskjet.outputs.opening import Outputs, check_outputs

        if not outs:  # there are windows alone
            return Outputs((), [() for _ in sources], sources)
        return check_outputs(outs, sources, style=self.style, **self.writing)

    def open_model(self, stack: ExitStack) -> Model:
        """Load the model, which the stack closes, and check that it knows the classes to draw."""
        self.model = stack.enter_context(self.load(self.config))
        check_classes(self.style, self.model)
        return self.model

    def describe(self) -> dict[str, Any]:
        """Describe the run for the first line of a record."""
        from maskjet.parity.record import describe_model

        assert self.model is not None
        options = {**self.streaming, **asdict(self.opening.selection), "mask_pixels": self.writing["mask_pixels"]}
        return describe_model(self.model, **options)

    def stream(self, model: Model, source: Any, **options: Any) -> Results:
        """Begin a stream; checks the remaining options, and may compile for seconds."""
        return model.stream(source, stop=self.stop.event, deadlines=self.deadlines, **self.streaming, **options)


def run_together(
    run: Run,
    found: Sequence[UnopenedSource],
    check: Callable[[Sequence[Source]], Outputs],
    progress: Callable[[Sequence[Source]], AbstractContextManager[Callable[[int], None]]] | None = None,
) -> None:
    """Run a model on sources side by side; `check` gives their outputs, `progress` what to call for each frame."""
    with ExitStack() as stack:
        openings = [in_background(partial(run.open, each)) for each in found]  # all at once: a camera takes a second
        for opening in openings:
            if opening.exception() is None:
                stack.enter_context(opening.result())
        sources = [opening.result() for opening in openings]
        outputs = check(sources)
        outputs.prepare()
        summaries = run.summary.sources = [SourceSummary(source.name, "running") for source in sources]
        stack.enter_context(failing(run))
        model = run.open_model(stack)
        results = run.stream(model, sources[0] if len(sources) == 1 else sources)
        with _windows(run, sources) as windows, _working(run, results), _measuring(run, sources, summaries):
            sinks = outputs.open()
            with gathering(run, sinks, outputs), (progress or progress_of)(sources) as advance:
                _write(run, results, sinks, windows, advance, summaries)


def run_in_turn(run: Run, found: Sequence[UnopenedSource], outs: Sequence[str]) -> None:
    """Run a model on sources one after another; of several, one that fails does not stop the others."""
    run.summary.sources = [SourceSummary(each.name) for each in found]
    outputs = run.check_outputs(outs, found)
    outputs.prepare()
    with failing(run), ExitStack() as stack:
        model: Model | None = None
        sinks: SinksInTurn | None = None
        for position, unopened in enumerate(found):
            if run.is_stopped:
                break
            with _one_of_several(run, position), run.open(unopened) as source, ExitStack() as again:
                if model is None:
                    model = run.open_model(stack)
                first = again.enter_context(run.open(unopened)) if run.in_two_passes else source
                results = run.stream(model, first, weak=run.in_two_passes)
                if sinks is None:
                    sinks = outputs.open_in_turn()
                    stack.enter_context(gathering(run, sinks, outputs))
                _run_one(run, model, position, source, results, sinks)


def _run_one(run: Run, model: Model, position: int, source: Source, results: Results, sinks: SinksInTurn) -> None:
    """Run on one source, and finish its outputs; of two passes the results are those of the first one."""
    count, own = len(run.summary.sources), run.summary.sources[position]
    note = f" ({position + 1} of {count})" if count > 1 else ""
    own.state = "running"
    with _windows(run, [source]) as windows, _working(run, results), _measuring(run, [source], [own]):
        sinks.begin(position, source)
        try:
            if run.in_two_passes:
                with progress_of([source], f"{note}, first pass") as advance:
                    results = _smooth(run, model, source, results, advance)
            with progress_of([source], note) as advance:
                _write(run, results, sinks, windows, advance, [own])
        except SourceError:
            sinks.end(is_whole=False)
            raise
        sinks.end(is_whole=not run.is_broken_off(own.frames))


def _smooth(run: Run, model: Model, source: Source, results: Results, advance: Callable[[int], None]) -> Results:
    """Read the results of the first pass; returns those of the second, over a newly opened source."""
    from maskjet.drawing import Redaction
    from maskjet.tracking import second_pass

    def read() -> Results:
        for each in results:
            advance(0)
            yield each

    return second_pass(
        read(),
        source,
        threshold=model.tracker(threshold=run.streaming["threshold"]).threshold,
        is_hiding=isinstance(run.style, Redaction),
        stop=run.stop.event,
    )


@contextmanager
def _one_of_several(run: Run, position: int) -> Iterator[None]:
    """Keep an error of one of several sources from ending the run."""
    summary = run.summary.sources[position]
    try:
        yield
    except (SourceError, FrameError) as error:
        summary.state, summary.error = "failed", in_flags(error)
        if len(run.summary.sources) == 1:
            raise
        print_error(error)


def _write(
    run: Run,
    results: Results,
    sinks: Sinks,
    windows: Sequence[Window],
    advance: Callable[[int], None],
    summaries: Sequence[SourceSummary],
) -> None:
    """Write results to the outputs and count them, until the end, a signal, or the window is closed."""
    counting: Counting | None = None
    if run.counters:
        from maskjet.tracking import Counting

        counting = Counting(run.counters)
    for frame, detections in results:
        if counting is not None:
            frame = counted = counting.update(frame, detections)
            summaries[frame.stream].counts = {each.name: each.as_dict() for each in counted.counts}
        try:
            sinks.write(frame, detections)
        except ReaderGoneError:
            run.stop.set(signal.SIGPIPE)
            break
        for each in (run.summary, summaries[frame.stream]):
            each.frames += 1
            each.detections += len(detections)
        for window in windows[frame.stream : frame.stream + 1]:
            window.write(frame, detections)
        advance(frame.stream)
        if run.is_stopped:
            break
    for source in summaries:
        source.state = "stopped" if run.is_stopped else "done"


@contextmanager
def _working(run: Run, results: Results) -> Iterator[None]:
    """Stop the stream on signals, and collect no garbage while it runs."""
    from maskjet.host import process

    with signals.stopping(run.stop), closing(results), process.garbage_frozen():
        yield


@contextmanager
def _windows(run: Run, sources: Sequence[Source]) -> Iterator[list[Window]]:
    """A window for each source, if asked for; that of a single image stays open."""
    from maskjet.outputs.window import Window

    with ExitStack() as stack:
        titles = [source.name for source in sources] if run.shows else []
        holds = len(run.summary.sources) == 1 and all(source.length == 1 for source in sources)
        yield [
            stack.enter_context(Window(title, closed=run.stop.event, holds=holds, style=run.style)) for title in titles
        ]


@contextmanager
def _measuring(run: Run, sources: Sequence[Source], summaries: Sequence[SourceSummary]) -> Iterator[None]:
    """Add the time, and the sources' bad frames and drops, before they are closed."""
    summary, start, cpu_s = run.summary, time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        summary.seconds += seconds
        summary.fps = summary.frames / summary.seconds
        if run.deadlines is not None and run.deadlines.load:
            cores = len(os.sched_getaffinity(0)) / run.processes
            load = max(run.deadlines.load, (time.process_time() - cpu_s) / seconds / cores)
            summary.capacity = int(len(sources) / load)
        for source, own in zip(sources, summaries, strict=True):
            name = f"{source.name}: " if len(summary.sources) > 1 else ""
            summary.bad_frames += [f"{name}frame {index}: {reason}" for index, reason in source.bad_frames]
            own.is_live, own.reading = source.is_live, source.state
            summary.dropped += own.reading.drops


@contextmanager
def gathering(run: Run, sinks: Sinks, outputs: Outputs) -> Iterator[None]:
    """Finish the outputs, and record them once they have their final names."""
    try:
        with sinks:
            yield
            if run.is_broken_off(run.summary.frames):
                sinks.abandon()
    finally:
        run.summary.outputs, run.summary.left_out = list(sinks.paths), sinks.left_out
        run.summary.lost_events = sinks.lost
        run.summary.replaced = [path for path in sinks.paths if path in outputs.existing]


@contextmanager
def failing(run: Run) -> Iterator[None]:
    """Record how a run ends."""
    try:
        yield
    except Exception as error:
        run.summary.error = in_flags(error)
        for source in run.summary.sources:
            source.state = "failed" if source.state == "running" else source.state
        raise
    finally:
        run.summary.is_interrupted = run.stop.number is not None

"""The command maskjet run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from maskjet.cli.options import (
    CompileOption,
    DepthOption,
    DeviceOption,
    EngineOption,
    ImplementationOption,
    JsonOption,
    ModelOption,
    NvtxOption,
    PrecisionOption,
    ResampleOption,
    WeightsOption,
    print_result,
    progress,
)
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig

if TYPE_CHECKING:
    from maskjet.frames import Source
    from maskjet.model import Model

_EXIT_STRICT, _EXIT_INTERRUPTED = 1, 130


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    frames: int
    """Frames detected on and written."""
    detections: int
    """Detections in all of them."""
    bad_frames: list[str]
    """One line per frame that could not be decoded."""
    dropped: int
    """Frames left out because newer ones had come."""
    seconds: float
    """From the first frame asked for to the last one written."""
    fps: float
    """Frames per second over that time, decoding and writing included."""
    outputs: list[str]
    """What was written."""
    is_interrupted: bool
    """Whether Ctrl-C ended it early."""

    def __str__(self) -> str:
        lines = [f"{self.frames} frames, {self.detections} detections in {self.seconds:.1f} s: {self.fps:.1f} frames/s"]
        lines += [f"  {self.dropped} frames dropped, newer ones had come"] if self.dropped else []
        lines += [f"  bad frame: {reason}" for reason in self.bad_frames]
        lines += [f"  wrote {output}" for output in self.outputs]
        return "\n".join(["interrupted" if self.is_interrupted else "done", *lines])


def run(
    source: Annotated[
        list[str], typer.Argument(help="Image, folder, glob, video, camera number or URL; several run side by side.")
    ],
    out: Annotated[
        list[str],
        typer.Option(
            help="Video, .jsonl, .json (COCO) or folder of images; may be repeated. {} becomes the source's name; with "
            "several sources all but .jsonl need it."
        ),
    ],
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    engine: EngineOption = None,
    compile: CompileOption = None,  # noqa: A002 - PyTorch's word
    implementation: ImplementationOption = None,
    resample: ResampleOption = None,
    threshold: Annotated[float, typer.Option(help="What a confidence must exceed, 0..1.")] = DEFAULT_THRESHOLD,
    max_detections: Annotated[int | None, typer.Option(help="Most detections per frame.")] = None,
    classes: Annotated[str | None, typer.Option(help="Names of the classes to report, separated by commas.")] = None,
    depth: DepthOption = 2,
    batch: Annotated[
        int | None, typer.Option(help="Most frames the network sees at once; by default one of each source, up to 8.")
    ] = None,
    drop_late: Annotated[
        bool,
        typer.Option(
            "--drop-late", help="For live sources: the newest frame wins, older ones are dropped and counted."
        ),
    ] = False,
    nvtx: NvtxOption = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a frame could not be decoded.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Detect on every frame of one source or several and write the results."""
    from maskjet.frames import open_source, split_sources
    from maskjet.model import Model, read_network

    config = EngineConfig.from_env(
        device=device,
        precision=precision,
        engine=engine,
        compile=compile,
        implementation=implementation,
        resample=resample,
        max_detections=max_detections,
        nvtx=nvtx or None,
    )
    names = [name.strip() for name in classes.split(",")] if classes else None
    with ExitStack() as stack:
        given = source if len(source) == 1 else split_sources(source)  # images are one source, however many
        sources = [stack.enter_context(open_source(one)) for one in given]
        runner = stack.enter_context(Model(read_network(model, weights), config, threshold=threshold, classes=names))
        summary = _detect(runner, sources, out, depth=depth, batch=batch, drop_late=drop_late)
    print_result(asdict(summary) if as_json else summary)
    if summary.is_interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    if strict and summary.bad_frames:
        raise typer.Exit(_EXIT_STRICT)


def _detect(
    model: Model, sources: Sequence[Source], out: list[str], *, depth: int, batch: int | None, drop_late: bool
) -> Summary:
    """Run a model over sources into sinks; Ctrl-C ends it early, with whole outputs."""
    from maskjet import garbage
    from maskjet.sinks import open_sinks_by_source

    frames = 0
    source = sources[0] if len(sources) == 1 else list(sources)
    with ExitStack() as stack:
        is_interrupted = stack.enter_context(_interrupt_flag())
        sinks = stack.enter_context(open_sinks_by_source(out, sources))
        stream = model.stream(source, depth=depth, batch=batch, drop_late=drop_late)  # may compile, and says so
        results = stack.enter_context(closing(stream))
        stack.enter_context(garbage.frozen())
        advance = stack.enter_context(progress("detecting", _total_length(sources)))
        start = time.perf_counter()
        for frame, detections in results:
            sinks.write(frame, detections)
            frames += 1
            advance()
            if is_interrupted.is_set():
                break
    seconds = time.perf_counter() - start
    return Summary(
        frames=frames,
        detections=model.report().detections,
        bad_frames=_bad_frames(sources),
        dropped=sum(source.frames_dropped for source in sources),
        seconds=seconds,
        fps=frames / seconds,
        outputs=list(sinks.outputs),
        is_interrupted=is_interrupted.is_set(),
    )


def _total_length(sources: Sequence[Source]) -> int | None:
    """Frames of all sources; None if that can't be known of one."""
    lengths = [source.length for source in sources if source.length is not None]
    return sum(lengths) if len(lengths) == len(sources) else None


def _bad_frames(sources: Sequence[Source]) -> list[str]:
    """A line per bad frame, with the source's name if there are several."""
    return [
        f"{source.name}: frame {index}: {reason}" if len(sources) > 1 else f"frame {index}: {reason}"
        for source in sources
        for index, reason in source.bad_frames
    ]


@contextmanager
def _interrupt_flag() -> Iterator[threading.Event]:
    """Let the first Ctrl-C set a flag, so that no output misses a frame another has; the second raises as ever."""
    flag = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield flag  # someone else decides, or started us in the background
        return

    def interrupt(number: int, at: FrameType | None) -> None:
        if flag.is_set():
            signal.default_int_handler(number, at)
        flag.set()

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before)

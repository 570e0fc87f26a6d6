"""The command maskjet run."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from maskjet.cli import signals
from maskjet.cli.options import (
    DepthOption,
    JsonOption,
    ModelOption,
    WeightsOption,
    print_result,
    progress,
    with_config,
)
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.errors import InputError, OutputError
from maskjet.printing import printable

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.media.frames import Frame, Source
    from maskjet.media.sinks import Outputs, Sinks

_EXIT_STRICT = 1
EPILOG = (
    "Exit codes: 0 done; 1 a frame could not be decoded (--strict); 2 wrong usage; 3 a source or checkpoint can't be "
    "read; 4 an output can't be written; 5 the device failed; 128 + n ended by signal n (130 Ctrl-C, 143 SIGTERM), "
    "with whole outputs."
)


@dataclass
class Summary:
    """Statistics of a run so far."""

    frames: int = 0
    """Frames detected on and written."""
    detections: int = 0
    """Detections in all of them."""
    left_out: int = 0
    """Detections not written because their box or confidence is not finite."""
    bad_frames: Sequence[str] = ()
    """One line per frame that could not be decoded."""
    dropped: int = 0
    """Frames skipped because newer ones had arrived."""
    seconds: float = 0.0
    """Seconds from the request for the first frame to the last write."""
    fps: float = 0.0
    """Frames per second over `seconds`, decoding and writing included."""
    outputs: Sequence[str] = ()
    """Paths of the outputs, with ".partial" in their names if an error ended the run."""
    is_interrupted: bool = False
    """Whether a signal ended the run early."""
    error: str | None = None
    """Message of the error that ended the run early, if any."""

    def __str__(self) -> str:
        state = "failed" if self.error is not None else "interrupted" if self.is_interrupted else "done"
        lines = [f"{self.frames} frames, {self.detections} detections in {self.seconds:.1f} s: {self.fps:.1f} frames/s"]
        lines += [f"  {self.dropped} frames dropped, newer ones had come"] if self.dropped else []
        lines += [f"  {self.left_out} detections left out, they are not finite"] if self.left_out else []
        lines += [f"  bad frame: {printable(reason)}" for reason in self.bad_frames]
        lines += [f"  wrote {printable(output)}" for output in self.outputs]
        return "\n".join([state, *lines])


@with_config(
    *("device", "precision", "engine", "compile", "implementation", "resample", "max_detections", "nvtx"),
)
def run(
    source: Annotated[
        list[str], typer.Argument(help="Image, folder, glob, video, camera number or URL; several run side by side.")
    ],
    out: Annotated[
        list[str],
        typer.Option(
            help="Video, .jsonl, .json (COCO) or folder of images; may be repeated. {} becomes the source's name; with "
            "several sources all but .jsonl need it. Until a file is whole it has .partial in its name."
        ),
    ],
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    threshold: Annotated[float, typer.Option(help="Confidence that detections must exceed, 0..1.")] = DEFAULT_THRESHOLD,
    classes: Annotated[str | None, typer.Option(help="Names of the classes to report, separated by commas.")] = None,
    depth: DepthOption = 2,
    batch: Annotated[
        int | None, typer.Option(help="Most frames the network sees at once; by default one of each source, up to 8.")
    ] = None,
    drop_late: Annotated[
        bool,
        typer.Option(
            "--drop-late", help="Drop late frames of live sources in favour of the newest one, and count them."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a frame could not be decoded.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Detect on every frame of one source or several and write the results."""
    from maskjet.media.frames import open_source, split_sources
    from maskjet.media.sinks import check_outputs
    from maskjet.model import Model, read_network

    if as_json and "-" in out:
        raise InputError("--json must not go with --out -: both print to stdout. Write the results to a file.")
    names = [name.strip() for name in classes.split(",")] if classes else None
    summary, stop = Summary(), signals.Stop()
    try:
        with ExitStack() as stack:
            given = source if len(source) == 1 else split_sources(source)  # a list of images is one source
            sources = [stack.enter_context(open_source(one)) for one in given]
            outputs = check_outputs(out, sources)
            runner = Model(read_network(model, weights), config, threshold=threshold, classes=names)
            stack.enter_context(runner)
            # This checks the last options and may compile for seconds. Outputs are opened only afterwards.
            streamed = sources[0] if len(sources) == 1 else sources
            results = runner.stream(streamed, depth=depth, batch=batch, drop_late=drop_late, stop=stop.event)
            _write(results, sources, outputs, summary, stop)
    except Exception:
        if summary.frames or summary.outputs:
            with suppress(OutputError):
                print_result(asdict(summary) if as_json else summary)
        raise
    print_result(asdict(summary) if as_json else summary)
    if stop.number is not None:
        raise typer.Exit(signals.exit_code(stop.number))
    if strict and summary.bad_frames:
        raise typer.Exit(_EXIT_STRICT)


def _write(
    results: Generator[tuple[Frame, Detections]],
    sources: Sequence[Source],
    outputs: Outputs,
    summary: Summary,
    stop: signals.Stop,
) -> None:
    """Write results to the outputs and count them in the summary, until the end or a signal."""
    from maskjet import process

    sinks: Sinks | None = None
    start = time.perf_counter()
    try:
        with (
            signals.stopping(stop),
            closing(results),
            process.garbage_frozen(),
            progress("detecting", _total_length(sources)) as advance,
            outputs.open() as sinks,  # closed first: sources may take seconds to close
        ):
            for frame, detections in results:
                sinks.write(frame, detections)
                summary.frames += 1
                summary.detections += len(detections)
                advance()
                if stop.number is not None:
                    break
            if stop.number is not None and not summary.frames:
                sinks.abandon()  # an existing output is worth more than an empty one
    except Exception as error:
        summary.error = str(error)
        raise
    finally:
        summary.seconds = time.perf_counter() - start
        summary.fps = summary.frames / summary.seconds
        summary.bad_frames = _bad_frames(sources)
        summary.dropped = sum(source.frames_dropped for source in sources)
        summary.is_interrupted = stop.number is not None
        if sinks is not None:
            summary.outputs, summary.left_out = list(sinks.paths), sinks.left_out


def _total_length(sources: Sequence[Source]) -> int | None:
    """Number of frames of all sources together; None if one's is unknown."""
    lengths = [source.length for source in sources if source.length is not None]
    return sum(lengths) if len(lengths) == len(sources) else None


def _bad_frames(sources: Sequence[Source]) -> list[str]:
    """One line per bad frame, with the source's name if there are several sources."""
    return [
        f"{source.name}: frame {index}: {reason}" if len(sources) > 1 else f"frame {index}: {reason}"
        for source in sources
        for index, reason in source.bad_frames
    ]

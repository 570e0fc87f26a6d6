"""The command maskjet run."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from maskjet.cli import signals
from maskjet.cli.choosing import ClassesOption, ThresholdOption, load_model
from maskjet.cli.flags import in_flags
from maskjet.cli.options import ENGINE_PANEL, DepthOption, ModelOption, WeightsOption, progress, with_config
from maskjet.cli.summary import Summary
from maskjet.config import EngineConfig
from maskjet.errors import OutputError

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.media.frames import Frame, Source
    from maskjet.media.sinks import Outputs, Sinks

_EXIT_STRICT = 1
EPILOG = """
# Draw what is found into a copy of a video; list it, a line of JSON per frame.
maskjet run street.mp4 -o found.mp4 -o found.jsonl
# Certain cars and buses alone, on stdout for another program.
maskjet run street.mp4 --classes car,bus --threshold 0.6 -o -
# RF-DETR, on two cameras at once.
maskjet run 0 1 --model rf-detr-seg-nano --weights nano.pt -o 'out/{}.mp4'

Exit codes: 0 done; 1 a frame could not be decoded (--strict); 2 wrong usage; 3 a source or checkpoint can't be read;
4 an output can't be written; 5 the device failed; 128 + n ended by signal n (130 Ctrl-C, 143 SIGTERM), with whole
outputs.
"""


@with_config(
    *("device", "precision", "engine", "compile", "implementation", "resample", "max_detections", "nvtx"),
)
def run(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Image, folder, glob, video, camera number or URL; several run side by side.",
            show_default=False,
        ),
    ],
    out: Annotated[
        list[str],
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help="Video, .jsonl, .json (COCO) or folder of images; - for JSON lines on stdout. May be repeated. {} "
            "becomes the source's name; with several sources all but .jsonl need it. Until a file is whole it has "
            ".partial in its name.",
        ),
    ],
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    config: EngineConfig,
    threshold: ThresholdOption = None,
    classes: ClassesOption = None,
    depth: DepthOption = 2,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Most frames the network sees at once; by default one of each source, up to 8.",
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None,
    drop_late: Annotated[
        bool,
        typer.Option(
            "--drop-late", help="Drop late frames of live sources in favour of the newest one, and count them."
        ),
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a frame could not be decoded.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as JSON: on stdout, or in one line on stderr with --out -."),
    ] = False,
) -> None:
    """Find things in images and video; write video, JSON or pictures."""
    from maskjet.media.frames import open_source, split_sources
    from maskjet.media.sinks import check_outputs

    summary, stop = Summary(), signals.Stop()
    try:
        with ExitStack() as stack:
            given = source if len(source) == 1 else split_sources(source)  # a list of images is one source
            sources = [stack.enter_context(open_source(one)) for one in given]
            outputs = check_outputs(out, sources)
            runner = stack.enter_context(load_model(model, weights, config, threshold=threshold, classes=classes))
            # This checks the last options and may compile for seconds. Outputs are opened only afterwards.
            streamed = sources[0] if len(sources) == 1 else sources
            results = runner.stream(streamed, depth=depth, batch=batch, drop_late=drop_late, stop=stop.event)
            _write(results, sources, outputs, summary, stop)
    except Exception:
        if summary.frames or summary.outputs:
            with suppress(OutputError):
                summary.show(as_json=as_json, stdout_is_taken="-" in out)
        raise
    summary.show(as_json=as_json, stdout_is_taken="-" in out)
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
        summary.error = in_flags(error)
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

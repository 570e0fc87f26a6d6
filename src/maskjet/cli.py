"""The command line: maskjet run | info | traffic | bench."""

from __future__ import annotations

import json
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import rich.progress
import torch
import typer
from rich.console import Console
from rich.text import Text

import maskjet
from maskjet.bench import ablation as ablation_benchmark
from maskjet.bench import capture, replay
from maskjet.bench import ops as ops_benchmark
from maskjet.bench import precision as precision_benchmark
from maskjet.bench import video as video_benchmark
from maskjet.bench.chart import draw_videos
from maskjet.config import EngineConfig
from maskjet.errors import InputError, MaskjetError
from maskjet.frames import Source, open_source, split_sources
from maskjet.model import DEFAULT_THRESHOLD, Model, read_network
from maskjet.sinks import open_sinks_by_source
from maskjet.spec import SPECS
from maskjet.traffic import SIZES_HW

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
traffic_app = typer.Typer(no_args_is_help=True, help="Synthetic street scenes with exact masks.")
app.add_typer(traffic_app, name="traffic")
bench_app = typer.Typer(no_args_is_help=True, help="What it costs, after a check that it is right.")
app.add_typer(bench_app, name="bench")

_EXIT_STRICT = _EXIT_DIFFERENT = 1
_EXIT_ERROR, _EXIT_INTERRUPTED = 2, 130
_INFO_SIZE_HW = SIZES_HW["720p"]

ModelOption = Annotated[str, typer.Option(help=f"demo, a checkpoint's path, or a size: {', '.join(SPECS)}.")]
WeightsOption = Annotated[Path | None, typer.Option(help="Checkpoint for a named size.")]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
BenchDeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
PrecisionOption = Annotated[str | None, typer.Option(help="auto, fp32, fp16 (GPU) or bf16.")]
EngineOption = Annotated[str | None, typer.Option(help="What drives the steps: auto, graph (GPU), eager.")]
CompileOption = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="torch.compile the network first: 20 s per batch size, the first time on a machine. "
        "If not given, on a GPU only.",
    ),
]
ImplementationOption = Annotated[
    str | None, typer.Option(help="Of the steps around the network: auto, reference, triton, cpu.")
]
NvtxOption = Annotated[bool, typer.Option("--nvtx", help="Mark the host's work with NVTX ranges, for Nsight (GPU).")]
ReportOption = Annotated[Path | None, typer.Option(help="A JSON file for the report.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
SizeOption = Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")]


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


@app.command()
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
    resample: Annotated[str | None, typer.Option(help="bilinear, or cv2 for cv2.resize's pixels.")] = None,
    threshold: Annotated[float, typer.Option(help="What a confidence must exceed, 0..1.")] = DEFAULT_THRESHOLD,
    max_detections: Annotated[int | None, typer.Option(help="Most detections per frame.")] = None,
    classes: Annotated[str | None, typer.Option(help="Names of the classes to report, separated by commas.")] = None,
    depth: Annotated[int, typer.Option(help="Batches in flight, 1 to 8.")] = 2,
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
    _print(asdict(summary) if as_json else summary)
    if summary.is_interrupted:
        raise typer.Exit(_EXIT_INTERRUPTED)
    if strict and summary.bad_frames:
        raise typer.Exit(_EXIT_STRICT)


def _detect(
    model: Model, sources: Sequence[Source], out: list[str], *, depth: int, batch: int | None, drop_late: bool
) -> Summary:
    """Run a model over sources into sinks; Ctrl-C ends it early, with whole outputs."""
    frames = 0
    source = sources[0] if len(sources) == 1 else list(sources)
    with ExitStack() as stack:
        is_interrupted = stack.enter_context(_interrupt_flag())
        sinks = stack.enter_context(open_sinks_by_source(out, sources))
        stream = model.stream(source, depth=depth, batch=batch, drop_late=drop_late)  # may compile, and says so
        results = stack.enter_context(closing(stream))
        advance = stack.enter_context(_progress("detecting", _total_length(sources)))
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


@app.command()
def info(
    model: Annotated[str | None, typer.Option(help="Load this model and report what it runs on.")] = None,
    weights: WeightsOption = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    engine: EngineOption = None,
    compile: CompileOption = None,  # noqa: A002 - PyTorch's word
    implementation: ImplementationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show versions and devices; load a model, detect on two black frames and show what that ran on, and why."""
    facts: dict[str, Any] = {
        "maskjet": maskjet.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "devices": ["cpu", *(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))],
        "models": ["demo", *SPECS],
    }
    if model is not None:
        config = EngineConfig.from_env(
            device=device, precision=precision, engine=engine, compile=compile, implementation=implementation
        )
        with Model(read_network(model, weights), config) as loaded:
            for _ in range(2):  # with the second one the steps are captured
                loaded.predict(np.zeros((*_INFO_SIZE_HW, 3), np.uint8))
            report = loaded.report()
        facts = {**facts, "report": report.as_dict()} if as_json else {**facts, "report": f"\n{report}"}
    text = "\n".join(f"{name}: {', '.join(v) if isinstance(v, list) else v}" for name, v in facts.items())
    _print(facts if as_json else text, to_stdout=True)


@traffic_app.command("video")
def traffic_video(
    path: Annotated[Path, typer.Argument(help="The .mp4 to write.")],
    size: SizeOption = "720p",
    frames: Annotated[int, typer.Option(help="How many.")] = 538,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    density: Annotated[float, typer.Option(help="1 is a lively street, 0 an empty one.")] = 1.0,
) -> None:
    """Write a video of a street."""
    with _progress("drawing", frames) as advance:
        maskjet.traffic.write_video(
            path, size_hw=_parse_size(size), frames=frames, seed=seed, density=density, on_progress=advance
        )
    _print(f"wrote {path}")


@traffic_app.command("coco")
def traffic_coco(
    directory: Annotated[Path, typer.Argument(help="The folder to write; images and annotations.json go into it.")],
    images: Annotated[int, typer.Option(help="How many.")] = 100,
    size: SizeOption = "720p",
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = 0,
    annotations: Annotated[str, typer.Option(help="rle or polygon.")] = "rle",
) -> None:
    """Write a data set in COCO's format."""
    with _progress("drawing", images) as advance:
        maskjet.traffic.write_coco(
            directory,
            images=images,
            size_hw=_parse_size(size),
            seed=seed,
            annotations=annotations,  # type: ignore[arg-type] # checked there
            on_progress=advance,
        )
    _print(f"wrote {directory / 'annotations.json'}")


@bench_app.command("ops")
def bench_ops(
    out: ReportOption = None,
    only: Annotated[list[str] | None, typer.Option(help="An op's name; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed calls per implementation and workload.")] = 30,
    device: BenchDeviceOption = "auto",
) -> None:
    """Compare, then time every implementation of every op, beside pycocotools where it is installed."""
    _print(ops_benchmark.run(out, runs=runs, only=only or (), device=device), to_stdout=True)


@bench_app.command("ablation")
def bench_ablation(
    out: Annotated[Path | None, typer.Option(help="A folder for the CSV, the JSON and the chart.")] = None,
    size: Annotated[list[str] | None, typer.Option(help="As for traffic video; may be repeated.")] = None,
    survivors: Annotated[list[int] | None, typer.Option(help="Detections, 0 to 100; may be repeated.")] = None,
    runs: Annotated[int, typer.Option(help="Timed calls per rung and case; slow rungs get fewer.")] = 50,
    only: Annotated[list[str] | None, typer.Option(help="A rung's or peer's name; may be repeated.")] = None,
    nvtx: NvtxOption = False,
    device: BenchDeviceOption = "auto",
) -> None:
    """Can torch.compile match the kernels? Compare, then time one postprocess rung by rung, beside its peers."""
    sizes_hw = [_parse_size(text) for text in size or SIZES_HW]
    counts = survivors or ablation_benchmark.SURVIVORS
    cases = len(set(sizes_hw)) * len(set(counts)) * ablation_benchmark.passes(device)
    with _progress("measuring", cases) as advance:
        report = ablation_benchmark.run(
            out,
            sizes_hw=sizes_hw,
            survivors=counts,
            runs=runs,
            only=only or (),
            device=device,
            marks_ranges=nvtx,
            on_progress=advance,
        )
    _print(report, to_stdout=True)


@bench_app.command("capture")
def bench_capture(
    source: Annotated[str, typer.Argument(help="Image, folder, glob, video, camera number or URL.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    model: ModelOption = "demo",
    frames: Annotated[int, typer.Option(help="How many to save, fewer if the source ends.")] = 100,
    device: BenchDeviceOption = "auto",
) -> None:
    """Save the ops' calls of a run, with the references' results, for maskjet bench replay."""
    with _progress("capturing", frames) as advance:
        saved = capture.write(source, out, model=model, frames=frames, device=device, on_progress=advance)
    _print(f"wrote {saved} frames to {out}")


@bench_app.command("replay")
def bench_replay(
    captures: Annotated[list[Path], typer.Argument(help="Folders that maskjet bench capture wrote.")],
    out: ReportOption = None,
    implementation: Annotated[
        str | None, typer.Option(help="auto, reference, triton or cpu; all that can, if not given.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Timed repeats of each call.")] = 5,
    device: BenchDeviceOption = "auto",
) -> None:
    """Make captured calls again, check each result against the saved one, and time them; exit with 1 if one differs."""
    frames = sum(capture.read_manifest(folder)["frames"] for folder in captures)
    with _progress("replaying", frames) as advance:
        report = replay.run(captures, out, implementation=implementation, runs=runs, device=device, on_progress=advance)
    _print(report, to_stdout=True)
    if not report.is_equal:
        raise typer.Exit(_EXIT_DIFFERENT)


@bench_app.command("video")
def bench_video(
    out: ReportOption = None,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    size: Annotated[list[str] | None, typer.Option(help="As for traffic video; may be repeated.")] = None,
    device: DeviceOption = None,
    precision: PrecisionOption = None,
    frames: Annotated[int, typer.Option(help="Of each video.")] = 538,
    runs: Annotated[int, typer.Option(help="Of each video; the median counts.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="A rung's or peer's name; may be repeated.")] = None,
    videos: Annotated[Path | None, typer.Option(help="A folder to keep the videos in, and find them again.")] = None,
    chart: Annotated[Path | None, typer.Option(help="A .png or .svg of the frames per second.")] = None,
) -> None:
    """Run street videos through every rung of the engine and its peers, decoding to RLE."""
    sizes_hw = [_parse_size(text) for text in size or ("720p",)]
    with _progress("measuring", len(sizes_hw)) as advance:
        report = video_benchmark.run(
            out,
            model=model,
            weights=weights,
            sizes_hw=sizes_hw,
            config=EngineConfig.from_env(device=device, precision=precision),
            frames=frames,
            runs=runs,
            only=only or (),
            videos=videos,
            on_progress=advance,
        )
    if chart is not None:
        draw_videos(report.as_dict(), chart)
    _print(report, to_stdout=True)


@bench_app.command("precision")
def bench_precision(
    out: ReportOption = None,
    images: Annotated[int, typer.Option(help="Scenes to compare on.")] = 500,
    size: SizeOption = "312",
) -> None:
    """Compare the demo model's detections in every precision that can be had here with those in float32."""
    with _progress("detecting", 1 + len(precision_benchmark.VARIANTS)) as advance:
        report = precision_benchmark.run(out, images=images, size_hw=_parse_size(size), on_progress=advance)
    _print(report, to_stdout=True)


def _parse_size(text: str) -> tuple[int, int]:
    """(height, width) in pixels."""
    if text in SIZES_HW:
        return SIZES_HW[text]
    width, separator, height = text.partition("x")
    if not (separator and width.isdecimal() and height.isdecimal()):
        raise InputError(f"--size must be one of {', '.join(SIZES_HW)} or WIDTHxHEIGHT, got {text!r}.")
    return int(height), int(width)


class _SpeedColumn(rich.progress.ProgressColumn):
    """Steps per second, once there are some."""

    def render(self, task: rich.progress.Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f}/s", style="progress.data.speed")


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A progress bar with speed and time left on stderr, when that is a terminal; yields what advances it."""
    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn(), _SpeedColumn())
    console = Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda *_: bar.advance(task)


def _print(result: Any, *, to_stdout: bool = False) -> None:
    """JSON on stdout for programs, text on stderr for people: what is piped on holds data only."""
    if isinstance(result, dict):
        typer.echo(json.dumps(result, indent=2))
    else:
        typer.echo(str(result), err=not to_stdout)


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 2."""
    try:
        app()
    except MaskjetError as error:
        typer.echo(f"maskjet: {error}", err=True)
        sys.exit(_EXIT_ERROR)

"""The commands maskjet job run and maskjet job merge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskjet.cli import signals
from maskjet.cli.choosing import ClassesOption, ThresholdOption, parse_thresholds, split_list
from maskjet.cli.flags import add_command
from maskjet.cli.options import (
    INPUT,
    JsonOption,
    ModelOption,
    WeightsOption,
    every_device,
    option,
    parse_processes,
    print_result,
    progress_bars,
    switch,
    with_config,
    with_panel,
    with_tiling,
)
from maskjet.config import NMS, EngineConfig
from maskjet.errors import InputError
from maskjet.host.extras import require
from maskjet.tiling.layout import Tiling

if TYPE_CHECKING:
    from maskjet.jobs.driver import Progress
    from maskjet.jobs.local import LocalWorkers

    MakeWorkers = Callable[[dict[str, Any]], LocalWorkers]

_EXIT_FAILED = 1
_PROBE_S = 120.0  # timeout of a process that imports PyTorch and queries a GPU
_PLAN_PANEL = "How the files are cut into segments"
_PLACE_PANEL = "Where segments are processed: here, or on a Ray cluster"
_EXAMPLES = """
# All images and videos below a folder, then all results as JSON lines.
maskjet job run videos --recursive --out results
maskjet job merge results --jsonl results.jsonl
"""
_RUN_EXAMPLES = """
# All below a folder; the same command resumes an interrupted job.
maskjet job run videos --recursive --out results
# On a Ray cluster, from one of its machines.
maskjet job run videos --out /shared/results --ray auto

Exit codes: 0 all parts exist; 1 some files or frames failed, which
failures.jsonl lists; 2 wrong usage, or something that can't run on this
machine; 3 a source or checkpoint can't be read; 4 the results can't be
written; 5 the device failed; 128 + n ended by signal n, with what was done
so far.
"""
_MERGE_EXAMPLES = """
maskjet job merge results --jsonl results.jsonl
# A COCO data set of the parts so far.
maskjet job merge results --coco results.json --incomplete
"""


@dataclass(frozen=True)
class PlaceOptions:
    """Options that say where segments are processed."""

    devices: Annotated[
        str | None,
        option(
            "all|NAME,NAME,…",
            "Devices to work on, as cuda:0,cuda:2; all is every GPU. Not given: every GPU, or the CPU.",
        ),
    ] = None
    processes: Annotated[
        str,
        option(
            "auto|N",
            "Processes for each device. auto: as many as fill a GPU, by cores and free memory; 1 on a CPU, and for "
            "devices that are named several times.",
        ),
    ] = "auto"
    ray: Annotated[
        str | None,
        option(
            "auto|local|ADDRESS", "Work on a Ray cluster: auto is this machine's, local starts one here, or HOST:PORT."
        ),
    ] = None
    workers: Annotated[
        int | None, option("N", "Workers on the cluster. Not given: one per GPU, or one per node without any.")
    ] = None


job_app = typer.Typer(no_args_is_help=True, help="Detect on many files, with all devices, resumably.", epilog=_EXAMPLES)


@add_command(job_app, _RUN_EXAMPLES, "run")
@with_panel("where", PlaceOptions, _PLACE_PANEL)
@with_tiling
@with_config(
    "precision", "runtime", "engine", "compile", "implementation", "resample", *INPUT, "decoder", "max_detections", *NMS
)
def job(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Image, video, folder, glob, .txt file with one of these per line, or the URL of one in a store, as "
            "s3://bucket/videos.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[str, option("FOLDER", "Output folder, or its URL in a store.", "--out", "-o")],
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    threshold: ThresholdOption = None,
    classes: ClassesOption = None,
    track: Annotated[
        bool,
        switch(
            "--track",
            "Write what tracking needs, weaker detections of videos in columns of their own; `maskjet job merge` then "
            "gives each instance one number in all frames of a video.",
        ),
    ] = False,
    tiling: Tiling,
    recursive: Annotated[bool, switch("--recursive", "Search the sub-folders of folders.")] = False,
    every: Annotated[int, option("N", "Take one frame of a video in N.", panel=_PLAN_PANEL)] = 1,
    detect: Annotated[
        int,
        option(
            "N",
            "Detect on every N-th of these frames, 1 to 64, and move masks on those between; each segment begins anew.",
            panel=_PLAN_PANEL,
        ),
    ] = 1,
    segment_seconds: Annotated[
        float,
        option(
            "SECONDS",
            "Least length of a video's segments, which are cut at key frames alone: from one to the next at least.",
            panel=_PLAN_PANEL,
        ),
    ] = 10.0,
    segment_images: Annotated[int, option("N", "Most images of a segment.", panel=_PLAN_PANEL)] = 128,
    where: PlaceOptions,
    as_json: JsonOption = False,
    config: EngineConfig,
) -> None:
    """Detect on many files, on all devices; write Parquet.

    Sources are cut into segments, and each becomes one file, a part. An existing part is not made again.
    """
    from maskjet.jobs import driver
    from maskjet.jobs.planning import plan
    from maskjet.jobs.segments import Settings

    everywhere, by_class = parse_thresholds(threshold)
    settings = Settings(
        model=model,
        weights=None if weights is None else str(weights),
        threshold=everywhere,
        class_thresholds=by_class,
        classes=tuple(split_list(classes)) or None,
        every=every,
        detect=detect,
        track=track,
        tiling=tiling,
        config=config,
        jpeg_decoder=_jpeg_decoder(where.ray, where.devices, config),
    ).with_absolute_paths()
    segments = plan(source, recursive=recursive, seconds=segment_seconds, images=segment_images)
    make_workers = _make_workers(where, config)
    stop = signals.Stop()
    # Keep stdout for the result: Ray prints there about ended workers and lost nodes.
    with signals.stopping(stop), _showing() as show, redirect_stdout(sys.stderr):
        found = driver.run(segments, out, settings, make_workers, stop.event, show)
    print_result(asdict(found) if as_json else _summary(found, out))
    if stop.number is not None:
        raise typer.Exit(signals.exit_code(stop.number))
    if not found.is_whole:
        raise typer.Exit(_EXIT_FAILED)


def _make_workers(where: PlaceOptions, config: EngineConfig) -> MakeWorkers:
    ray, workers = where.ray, where.workers
    if ray is None:
        from maskjet.host.devices import choose
        from maskjet.jobs.local import LocalWorkers, choose_streams

        if workers is not None:
            raise InputError(f"workers must come with --ray, got {workers} alone. On this machine choose --devices.")
        places = choose(where.devices or every_device(config), config.check_cpu, parse_processes(where.processes))
        return lambda orders: LocalWorkers(orders, places, choose_streams(places))
    for name in ("devices", "processes"):
        if (value := getattr(where, name)) not in (None, "auto"):
            raise InputError(
                f"{name} must be left out with --ray, which gives each worker its device and cores, got {value!r}. "
                "Choose --workers."
            )
    from maskjet.jobs.ray import RayWorkers

    require("ray", extra="ray", purpose="--ray")
    return lambda orders: RayWorkers(orders, ray, workers)


def _jpeg_decoder(ray: str | None, devices: str | None, config: EngineConfig) -> str:
    """Choose the JPEG decoder of all workers: nvJPEG if requested, or if all their GPUs support it."""
    from maskjet.host.devices import choose
    from maskjet.sources.decoding import name_nvjpeg

    if config.decoder == "cpu" or (ray is not None and config.decoder == "auto"):
        return "cpu"
    name = name_nvjpeg()
    if ray is not None or name == "cpu":
        return name
    names = {place.device for place in choose(devices or every_device(config), config.check_cpu)}
    return name if "cpu" not in names and (config.decoder == "cuda" or _decode_jpegs(names)) else "cpu"


def _decode_jpegs(devices: Collection[str]) -> bool:
    """Whether GPUs can decode JPEGs; tested in a child process, as this one creates no CUDA context."""
    script = f"from maskjet.sources.nvjpeg import jpeg_decoder\nfor device in {sorted(devices)}: jpeg_decoder(device)"
    try:
        return not subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=_PROBE_S).returncode
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def _showing() -> Iterator[Any]:
    """Show a progress bar of segments on a terminal; yields a function that takes a `Progress`."""
    with progress_bars() as bars:
        bar = bars.add_task("segments", total=None)

        def show(progress: Progress) -> None:
            done = progress.done + progress.skipped + progress.failed
            counts = {"skipped": progress.skipped, "failed": progress.failed}
            notes = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
            total = progress.planned if progress.is_planned else None
            bars.update(bar, completed=done, total=total, description=f"segments{notes}")

        yield show


def _summary(found: Progress, out: str) -> str:
    from maskjet.jobs.folders import Folder
    from maskjet.jobs.manifest import FAILURES

    rate = f", {found.frames / found.seconds:.1f} frames/s" if found.frames and found.seconds else ""
    lines = [
        f"{found.done + found.skipped:,} of {found.planned:,} segments are in {out!r}: {found.done:,} written, "
        f"{found.skipped:,} existed before; {found.frames:,} frames, {found.detections:,} detections{rate}"
    ]
    if found.failures:
        what = "file or frame" if found.failures == 1 else "files or frames"
        lines.append(f"{found.failures:,} {what} failed: see {Folder(out).name(FAILURES)}")
    if not found.is_planned or found.done + found.skipped + found.failed < found.planned:
        lines.append("not all is done: run the same command again")
    return "\n".join(lines)


@add_command(job_app, _MERGE_EXAMPLES, "merge")
def merge(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Output folder of a job, or its URL.")],
    *,
    coco: Annotated[
        str | None, option("PATH", "A COCO data set to write, .json; or results, .segm.json or .bbox.json.")
    ] = None,
    jsonl: Annotated[str | None, option("PATH", "JSON lines to write, a frame in each.")] = None,
    incomplete: Annotated[bool, switch("--incomplete", "Merge the existing parts, though others are missing.")] = False,
) -> None:
    """Write a job's results as one COCO data set or JSON lines, with tracks."""
    from maskjet.jobs.merging import merge as write

    merged = write(folder, coco=coco, jsonl=jsonl, incomplete=incomplete)
    print_result(str(merged))

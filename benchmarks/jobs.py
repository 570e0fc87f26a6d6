"""What `maskjet job` costs over `Model.stream`, what more devices bring, and what it takes to plan a million files.

    python -m benchmarks.jobs --only images --images 20000 --out benchmarks/results/jobs_cpu.json
    python -m benchmarks.jobs --only planning --out benchmarks/results/jobs_planning_cpu.json
    python -m benchmarks.jobs --model rf-detr-seg-nano --devices cuda:0 --devices cuda:0,cuda:1 --decoder cuda

`stream` runs first, in a process of its own, over the same files, and is timed from its first result on; on a CPU once
more with one thread, which is what each segment of a job has, to be compared with `--streams 1`. A job's rate is that
between its first and last segments, when all lanes are busy, so that loading is in neither; its whole time is given
beside. Every file has links of other names, so that the page cache holds all: what is measured is work, not disks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Annotated, Any

import torch
import typer

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.reach_videos import repeat
from benchmarks.serve import draw_images, plant
from benchmarks.trend import Sampler, Trend
from maskjet import traffic
from maskjet.cli.options import ModelOption, WeightsOption, parse_size, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.host import devices
from maskjet.host.devices import SEGMENTS_PER_GPU
from maskjet.host.files import write_json
from maskjet.host.machine import describe_machine
from maskjet.jobs import cluster, driver
from maskjet.jobs.local import ONE_THREAD, LocalWorkers, choose_streams
from maskjet.jobs.planning import plan
from maskjet.jobs.ray import RayWorkers
from maskjet.jobs.segments import Settings
from maskjet.traffic import FPS

ONLY = ("images", "video", "planning")
"""What can be measured."""
_DRAWN, _DRAWN_S = 16, 4  # images, and seconds of video, of which the others are links and repetitions
_PER_FOLDER = 1_000  # links
_LONG_MINUTES = 60  # of a video that is planned


@dataclass(frozen=True)
class Stream:
    """`Model.stream` over the files."""

    what: str
    """The files."""
    device: str
    """The device, and the threads on a CPU."""
    frames: int
    """Frames."""
    frames_s: float
    """Frames per second after the first result."""


@dataclass(frozen=True)
class JobRun:
    """A job over the files."""

    what: str
    """The files."""
    devices: str
    """The devices, or the workers of a local Ray."""
    lanes: int
    """Segments that each process worked on at a time."""
    segments: int
    """Segments."""
    frames: int
    """Frames."""
    seconds: float
    """All of it, with loading the model in each process."""
    first_s: float
    """Until the first part was written."""
    frames_s: float
    """Frames per second while all lanes were busy."""
    frame_bytes: float
    """Bytes of the parts per frame."""
    driver_mib: Trend
    """Memory of the driver."""
    workers_mib: Trend
    """Memory of its workers together."""


@dataclass(frozen=True)
class Planning:
    """What planning took."""

    what: str
    """The files."""
    files: int
    """Files of the tree."""
    segments: int
    """Segments that they were cut into."""
    plan_s: float
    """Seconds of `maskjet.jobs.plan`."""
    job_s: float
    """Seconds with the digests, the file of segments, and reading it."""
    rss_mib: float
    """The most memory that the process had."""
    rss_before_mib: float
    """The most before it began."""


@dataclass(frozen=True)
class Crew:
    """Who works on a job."""

    name: str
    """The devices, or the workers of a local Ray."""
    size: int
    """Processes."""
    lanes: int
    """Segments that each works on at a time."""
    begin: Callable[[dict[str, Any]], LocalWorkers]
    """Start them."""


def local_crew(names: str, config: EngineConfig, lanes: int | None = None) -> Crew:
    """A process on each device.

    Args:
        names: Devices, as `--devices` of `maskjet job` has them.
        config: How they run.
        lanes: Segments that a process works on at a time; None as `maskjet job`.
    """
    places = devices.choose(names, config.check_cpu, None)
    lanes = lanes or choose_streams(places)
    return Crew(names, len(places), lanes, lambda orders: LocalWorkers(orders, places, lanes))


def ray_crew(workers: int, config: EngineConfig) -> Crew:
    """Workers of a Ray that is started on this machine."""
    gpus = torch.cuda.device_count() if config.resolve_device().type == "cuda" else 0
    pool = cluster.fit([{"CPU": os.cpu_count() or 1, "GPU": gpus}], config.device, workers)
    return Crew(f"Ray, {workers} workers", workers, pool.streams, lambda orders: RayWorkers(orders, "local", workers))


@dataclass
class Report:
    """What was measured."""

    machine: Any
    """The machine and its versions."""
    model: str
    """The model."""
    config: Any
    """How it runs."""
    streams: list[Stream] = field(default_factory=list)
    """`Model.stream` over the files."""
    jobs: list[JobRun] = field(default_factory=list)
    """Jobs over the same files."""
    planning: list[Planning] = field(default_factory=list)
    """Planning trees of several sizes."""
    load: float = 0.0
    """Load average of the minute before."""

    def __str__(self) -> str:
        lines = []
        lines += [f"{each.what}: stream on {each.device}: {each.frames_s:,.1f} frames/s" for each in self.streams]
        for each in self.jobs:
            shares = [each.frames_s / other.frames_s for other in self.streams if other.what == each.what]
            lines.append(
                f"{each.what}: job on {each.devices}: {each.frames_s:,.1f} frames/s, "
                f"{' and '.join(f'{share:.3f}' for share in shares)} of stream's; {each.lanes} segments at a time; "
                f"{each.frames:,} frames of {each.segments:,} segments in {each.seconds:.1f} s, the first after "
                f"{each.first_s:.1f} s; {each.frame_bytes:.0f} bytes a frame; "
                f"driver {each.driver_mib} MiB; workers {each.workers_mib} MiB"
            )
        lines += [
            f"planning {each.what}, {each.files:,} files: {each.plan_s:.1f} s, {each.job_s:.1f} s as a job does, "
            f"{each.segments:,} segments, memory {each.rss_before_mib:.0f} to {each.rss_mib:.0f} MiB"
            for each in self.planning
        ]
        return "\n".join([f"{self.model}, load {self.load}", *lines])


def measure_stream(
    what: str,
    folder: Path,
    model: Sequence[str],
    config: EngineConfig,
    seconds: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Stream:
    """Stream a folder's files for so long: images one after another, on a GPU several videos side by side."""
    code = "from benchmarks import jobs; import sys; jobs.stream_main(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, what, str(folder), json.dumps(asdict(config)), str(seconds), *model[1::2]],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, **variables},
    )
    return Stream(**json.loads(done.stdout.splitlines()[-1]))


def stream_main(what: str, folder: str, config: str, seconds: str, name: str, weights: str | None = None) -> None:
    """What `measure_stream` runs in a process of its own."""
    from maskjet.model import Model, read_network

    with Model(read_network(name, weights), EngineConfig(**json.loads(config))) as model:
        on_gpu = model.report().device.startswith("cuda")
        videos = sorted(map(str, Path(folder).glob("*.mp4")))
        together = SEGMENTS_PER_GPU if on_gpu else 1
        source: Any = [iter(videos[n::together]) for n in range(min(len(videos), together))]
        source = source or sorted(Path(folder).rglob("*.jpg"))
        frames, begin = 0, time.monotonic()
        results = model.stream(source, depth=4, batch=model.config.batch if on_gpu else 1)
        with closing(results):
            for _ in results:
                frames += 1
                if frames == 1:
                    begin = time.monotonic()
                if time.monotonic() - begin > float(seconds):
                    break
        rate = (frames - 1) / (time.monotonic() - begin)
        print(json.dumps(asdict(Stream(what, model.report().device, frames, round(rate, 1)))))


def measure_job(
    what: str, folder: Path, out: Path, settings: Settings, crew: Crew, *, seconds: float = 10.0, images: int = 128
) -> JobRun:
    """Run a job over all files of a folder.

    Args:
        what: Words for the files.
        folder: Where they are.
        out: Folder of the results.
        settings: What to do with them.
        crew: Who works on them.
        seconds: Length of a video's segment.
        images: Most images of a segment.

    Raises:
        InputError: There are too few segments for a rate, or one fails.
    """
    segments = plan(folder, recursive=True, seconds=seconds, images=images)
    seen: list[tuple[float, int]] = []  # seconds and frames at each segment's end

    def look(progress: driver.Progress) -> None:
        if progress.done > len(seen):
            seen.append((progress.seconds, progress.frames))

    with _sampled() as sampler:
        found = driver.run(segments, str(out), settings, crew.begin, threading.Event(), look)
    if not found.is_whole:
        raise InputError(f"All segments must succeed, {found.failed} of {found.planned} failed.")
    at_once = crew.lanes * crew.size
    if len(seen) < 4 * at_once:
        raise InputError(f"images, minutes or videos must give at least {4 * at_once} segments, got {len(seen)}.")
    (begin_s, before), (end_s, after) = seen[at_once - 1], seen[-at_once]
    return JobRun(
        what,
        crew.name,
        crew.lanes,
        found.planned,
        found.frames,
        round(found.seconds, 2),
        round(seen[0][0], 2),
        round((after - before) / (end_s - begin_s), 1),
        round(sum(path.stat().st_size for path in out.glob("parts/*/*.parquet")) / found.frames, 1),
        sampler.trend("rss_mib"),
        sampler.trend("workers_mib"),
    )


@contextmanager
def _sampled() -> Iterator[Sampler]:
    sampler = Sampler(os.getpid(), {"workers_mib": _workers_mib})
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def _workers_mib() -> float:
    """Memory of this process's children together."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    pages = 0
    for each in children:
        statm = Path(f"/proc/{each}/statm")
        pages += int(statm.read_text().split()[1]) if statm.exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_planning(what: str, folder: Path, out: Path) -> Planning:
    """Plan a tree in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.jobs_planning", str(folder), str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return Planning(what, **json.loads(done.stdout))


def link_images(files: Sequence[Path], folder: Path, count: int) -> None:
    """Make a tree of images: links to a few of them, a thousand in a folder."""
    for number in range(count):
        below = folder / f"{number // _PER_FOLDER:04}"
        if number % _PER_FOLDER == 0:
            below.mkdir(parents=True)
        os.link(files[number % len(files)], below / f"{number % _PER_FOLDER:03}.jpg")


def plant_tree(folder: Path, count: int) -> None:
    """Make a tree of files that are named as images: each folder has a file, and links to it."""
    for number in range(-(-count // _PER_FOLDER)):
        below = folder / f"{number:04}"
        below.mkdir(parents=True)
        (below / "000.jpg").write_bytes(b"\0")
        for other in range(1, min(_PER_FOLDER, count - number * _PER_FOLDER)):
            os.link(below / "000.jpg", below / f"{other:03}.jpg")


def link_videos(folder: Path, size_hw: tuple[int, int], count: int, minutes: float) -> None:
    """Make videos: links to one that repeats some seconds of a street."""
    part, video = folder.with_suffix(".part.mp4"), folder / "000.mp4"
    folder.mkdir()
    traffic.write_video(part, size_hw=size_hw, frames=round(_DRAWN_S * FPS), seed=7)
    repeat(part, video, max(1, round(60 * minutes / _DRAWN_S)))
    for number in range(1, count):
        os.link(video, folder / f"{number:03}.mp4")


@with_config("precision", "engine", "compile", "decoder", "max_detections")
def main(
    *,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    on: Annotated[
        list[str] | None, typer.Option("--devices", help="Devices of a job, as cuda:0,cuda:1; repeatable.")
    ] = None,
    ray_workers: Annotated[list[int] | None, typer.Option(help="Workers of a local Ray; repeatable.")] = None,
    streams: Annotated[int | None, typer.Option(help="Segments that a process works on at a time.")] = None,
    images: Annotated[int, typer.Option(help="Images.")] = 4_000,
    image_size: Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")] = "160x96",
    videos: Annotated[int, typer.Option(help="Videos.")] = 4,
    video_size: Annotated[str, typer.Option(help="312, 720p, 1080p or WIDTHxHEIGHT.")] = "312",
    minutes: Annotated[float, typer.Option(help="Length of a video.")] = 2.0,
    stream_seconds: Annotated[float, typer.Option(help="Most seconds of `stream`.")] = 120.0,
    segment_seconds: Annotated[float, typer.Option(help="Length of a video's segments, about.")] = 10.0,
    segment_images: Annotated[int, typer.Option(help="Most images of a segment.")] = 128,
    files: Annotated[
        list[int] | None, typer.Option(help="Files of a tree that is planned; repeatable.  [default: 10⁵, 3·10⁵, 10⁶]")
    ] = None,
    only: OnlyOption = None,
    config: EngineConfig,
    out: ReportOption = None,
) -> None:
    """Measure jobs beside `Model.stream`, and planning."""
    check_names(only or (), ONLY)
    one = str(config.resolve_device())
    on = on or ([] if ray_workers else [one])
    wanted = only or ONLY
    report = Report(describe_machine(), model, asdict(config), load=round(os.getloadavg()[0], 2))

    def keep() -> None:
        """Write what is known so far: a machine may be taken away before the end."""
        if out is not None:
            write_json(out, asdict(report))

    with TemporaryDirectory() as text:
        folder = Path(text)
        drawn = draw_images(folder, parse_size(image_size), _DRAWN)
        named = plant(model, weights, drawn, folder)
        own = replace(config, device=on[0].partition(",")[0] if on else one)
        crews = [local_crew(names, config, streams) for names in on]
        crews += [ray_crew(workers, config) for workers in ray_workers or ()]
        settings = Settings(model, named[3] if len(named) > 3 else None, config=config)
        sources: dict[str, Path] = {}
        if "images" in wanted:
            sources[f"{images:,} images {image_size}"] = folder / "images"
            link_images(drawn, folder / "images", images)
        if "video" in wanted:
            sources[f"{videos} videos {video_size}, {minutes:g} min each"] = folder / "videos"
            link_videos(folder / "videos", parse_size(video_size), videos, minutes)
        for what, tree in sources.items():
            for variables in ({}, *([ONE_THREAD] if own.device == "cpu" else [])):
                report.streams.append(measure_stream(what, tree, named, own, stream_seconds, variables))
                keep()
            for number, crew in enumerate(crews):
                results = folder / f"{tree.name}-{number}"
                job = measure_job(what, tree, results, settings, crew, seconds=segment_seconds, images=segment_images)
                report.jobs.append(job)
                keep()
        if "planning" in wanted:
            for count in files or (10**5, 3 * 10**5, 10**6):
                plant_tree(folder / f"tree{count}", count)
                report.planning.append(measure_planning("a tree", folder / f"tree{count}", folder / f"plan{count}"))
                keep()
            link_videos(folder / "long", traffic.SIZES_HW["312"], 1, _LONG_MINUTES)
            report.planning.append(
                measure_planning(f"an MP4 of {_LONG_MINUTES} min", folder / "long", folder / "plan-long")
            )
            keep()
    print_result(report, to_stdout=True)


if __name__ == "__main__":
    start(main)

"""Images in: folders of JPEGs to COCO RLE on the host, decoded by the GPU and by the CPU, beside the floors and peers.

    python -m benchmarks.images --out benchmarks/results/images_h200.json

All ways of a folder take turns in one process, on files in the page cache. Before anything is timed, streams must give
the files in order, and find what each image alone has: else that decoder is left out. The report is written after each
part; what fails, and what no time is left for, is a note. Without a GPU there are few files: this shows that the
benchmark works.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeVar

import torch
import typer
from safetensors.torch import save_file

from benchmarks.command import OnlyOption, ReportOption, check_names, start
from benchmarks.image_files import LARGE, SMALL, ImageSet, WrittenSet, mean_bytes, write_set
from benchmarks.image_report import Folder, ImageSpeed, ImagesReport, LongStream
from benchmarks.image_ways import BATCH, JPEGsBy, Peers, Sample, Way, check_stream, floors, our_ways, stream_long
from benchmarks.jobs import link_images, local_crew, measure_job
from benchmarks.planted import TINY, plant_network
from benchmarks.reach_speed import gpu_mib
from benchmarks.trend import Sampler
from maskjet.checks import check_count
from maskjet.cli.options import ModelOption, WeightsOption, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.errors import UnsupportedError, first_line
from maskjet.host import process
from maskjet.host.machine import describe_machine
from maskjet.host.timing import percentile
from maskjet.jobs.segments import Settings
from maskjet.model import Model, read_network
from maskjet.networks import Network
from maskjet.networks.rfdetr import RFDETR
from maskjet.sources.decoding import name_nvjpeg
from maskjet.spec import SPECS

PARTS = ("ways", "floors", "job", "long", "peers")
"""What can be measured, the most important first."""
_T = TypeVar("_T")
_MASKS = 33  # per image
_CHECKED = 32  # images whose results are compared before anything is timed
_SHORTER = 0.5  # of a run's time: floors and peers
_WINDOW_S = 2.0  # in which a job's workers are seen at their busiest


def run(
    path: Path | None = None,
    *,
    model: str = "rf-detr-seg-nano",
    weights: Path | None = None,
    config: EngineConfig | None = None,
    runs: int = 3,
    seconds: float = 2.0,
    limit_s: float = 420.0,
    job_images: int = 12_000,
    long_images: int = 20_000,
    names: Sequence[str] = (),
    only: Sequence[str] = (),
) -> ImagesReport:
    """Measure all parts.

    Args:
        path: A JSON file for the report, written after each part.
        model: A model of `maskjet.load`; a named size without weights gets random ones that find about 33 masks. "tiny"
            is a network that takes milliseconds on a CPU.
        weights: A weights file of `maskjet.load`.
        config: How to run it; its `batch` and `decoder` are not looked at. None for the defaults.
        runs: Runs of each way, in turns; the median counts.
        seconds: Most seconds of a run, which ends with the folder.
        limit_s: Seconds after which no measurement begins.
        job_images: Images of a job, links to those of the first folder.
        long_images: Images of a long stream.
        names: Folders to measure; empty for all.
        only: Of `PARTS`; empty for all.

    Returns:
        The report, which prints as a table.

    Raises:
        InputError: An argument is not as above.
    """
    began = time.monotonic()
    check_count("runs", runs)
    check_names(only, PARTS)
    config = replace(config or EngineConfig(), batch=BATCH)
    device = config.resolve_device()
    plan = LARGE if device.type == "cuda" else SMALL
    check_names(names, plan, "images")
    chosen = [each for name, each in plan.items() if not names or name in names]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        written = [write_set(each, folder / each.name.replace(" ", "_")) for each in chosen]
        network = _plant(model, weights, written[0])
        decoders: tuple[JPEGsBy, ...] = ("cuda", "cpu") if device.type == "cuda" else ("cpu",)
        models = {
            name: stack.enter_context(Model(deepcopy(network), replace(config, decoder=name))) for name in decoders
        }
        measuring = _Measuring(path, model, models, chosen, written, runs, seconds, began + limit_s)
        stack.enter_context(process.garbage_frozen())
        wanted = only or PARTS
        for images in written if {"ways", "floors"} & set(wanted) else ():
            measuring.measure_ways(images, has_ours="ways" in wanted, has_floors="floors" in wanted)
        if "job" in wanted:
            saved = _save_weights(network, model, weights, folder)
            jpegs = name_nvjpeg() if device.type == "cuda" else "cpu"  # as `maskjet job` chooses
            settings = Settings(model, saved, config=config, jpeg_decoder=jpegs)
            measuring.measure_job(settings, folder, job_images)
        if "long" in wanted:
            measuring.measure_long(long_images)
        if "peers" in wanted:
            measuring.measure_peers(network)
        return measuring.report


def _plant(model: str, weights: Path | None, images: WrittenSet) -> Network:
    specs = {**SPECS, TINY.name: TINY}
    if model not in specs or weights is not None:
        network: Network = read_network(model, weights)
        return network
    return plant_network(specs[model], images.streets, survivors=min(_MASKS, specs[model].queries // 2))


def _save_weights(network: Network, model: str, weights: Path | None, folder: Path) -> str | None:
    """The weights of a job's model: a file of the planted ones, or those that were given."""
    if model not in SPECS or weights is not None or not isinstance(network, RFDETR):
        return None if weights is None else str(weights)
    file = folder / "planted.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, file)
    return str(file)


class _Measuring:
    """Measures part by part, and writes what is known after each."""

    def __init__(
        self,
        path: Path | None,
        name: str,
        models: Mapping[JPEGsBy, Model],
        chosen: Sequence[ImageSet],
        written: Sequence[WrittenSet],
        runs: int,
        seconds: float,
        end: float,
    ) -> None:
        self._path, self._models, self._written = path, models, written
        self._runs, self._seconds, self._end = runs, seconds, end
        self._device = next(iter(models.values()))._engine.steps.device
        masks = statistics.median(len(models["cpu"].predict(path)) for path in written[0].paths[:16])
        folders = [
            Folder(each.name, len(images.paths), mean_bytes(images.paths), len(set(each.sizes_hw)))
            for each, images in zip(chosen, written, strict=True)
        ]
        self._notes: list[str] = []
        self.report = ImagesReport(describe_machine(), [], self._notes, model=name, masks=masks, folders=folders)

    def measure_ways(self, images: WrittenSet, *, has_ours: bool, has_floors: bool) -> None:
        """Ways of maskjet and their floors, in turns."""
        alone = [self._models["cpu"].predict(path) for path in images.paths[:_CHECKED]]
        checked = {
            decoder: model
            for decoder, model in self._models.items()
            if self._try(f"{images.name}: decoder {decoder}", partial(check_stream, model, images, alone))
        }
        if has_ours:
            self.measure(images, our_ways(checked, images), self._seconds)
        if has_floors:
            model = next(iter(self._models.values()))
            self.measure(images, floors(model, images, self._notes), _SHORTER * self._seconds)
        for decoder, model in self._models.items():
            for why, times in model.report().fallbacks.items():
                self._note(f"up to {images.name}, decoder {decoder}: {why}: {times}")

    def measure_peers(self, network: Network) -> None:
        """Other projects' loops over the folders."""
        peers = Peers(network, next(iter(self._models.values())))
        for images in self._written:
            self.measure(images, peers.ways(images), _SHORTER * self._seconds)

    def measure(self, images: WrittenSet, ways: Mapping[str, Way], seconds: float) -> None:
        """Measure ways in turns; each is warmed up by a run."""
        samples: dict[str, list[Sample]] = {name: [] for name in ways}
        for turn in range(self._runs + 1):
            for name in list(samples):
                found = self._try(f"{images.name}: {name}", partial(ways[name], seconds))
                if found is None and not samples[name]:
                    del samples[name]
                elif found is not None and turn:
                    samples[name].append(found)
        speeds = [_sum_up(images.name, name, each) for name, each in samples.items() if each]
        self._add(measurements=[*self.report.measurements, *speeds])

    def measure_job(self, settings: Settings, folder: Path, count: int) -> None:
        """A job on one GPU, and on two if there are two."""
        tree = folder / "job"
        link_images(self._written[0].paths, tree, count)
        one = "cuda:0" if self._device.type == "cuda" else "cpu"
        crews = [one, "cuda:0,cuda:1"] if one != "cpu" and torch.cuda.device_count() > 1 else [one]
        for crew in crews:
            name = f"job over {count:,} on {crew}, JPEGs by {settings.jpeg_decoder}"
            out = folder / f"out-{crew}"
            speed = self._try(name, partial(_time_job, self._written[0].name, name, tree, out, settings, crew))
            if speed is not None:
                self._add(measurements=[*self.report.measurements, speed])

    def measure_long(self, count: int) -> None:
        """Memory over a long stream, with each decoder."""
        for decoder, model in self._models.items():
            work = partial(_watch_long, decoder, model, self._written[0], count)
            found = self._try(f"{count:,} images, decoder {decoder}", work)
            if found is not None:
                self._add(long=[*self.report.long, found])

    def _try(self, what: str, measure: Callable[[], _T]) -> _T | None:
        """Measure if there is time; what fails must not cost the others their time on a machine that is lent."""
        try:
            if time.monotonic() < self._end:
                return measure()
            self._note(f"{what} left out: no time is left")
        except Exception as error:
            self._note(f"{what} left out: {type(error).__name__}: {first_line(error)}")
        return None

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)
            self.report.write(self._path)

    def _add(self, **fields: object) -> None:
        self.report = replace(self.report, **fields)  # type: ignore[arg-type]
        self.report.write(self._path)


def _sum_up(images: str, way: str, samples: Sequence[Sample]) -> ImageSpeed:
    rates = [each.images / each.seconds for each in samples]
    calls = [1000 * each for sample in samples for each in sample.calls_s]
    return ImageSpeed(
        images,
        way,
        round(statistics.median(rates), 1),
        [round(rate, 1) for rate in rates],
        round(statistics.median(each.cpu_s / each.seconds for each in samples), 2),
        round(statistics.median(calls), 3) if calls else None,
        round(percentile(calls, 0.99), 3) if calls else None,
    )


def _time_job(images: str, name: str, tree: Path, out: Path, settings: Settings, devices: str) -> ImageSpeed:
    """Run a job over a tree of images on these devices."""
    if settings.model == TINY.name:
        raise UnsupportedError("a job's workers load a model by its name.")
    with _sampled({"cpu_s": _workers_cpu_s}) as sampler:
        found = measure_job(name, tree, out, settings, local_crew(devices, settings.config))
    cores = _busiest(sampler.times_s, sampler.samples["cpu_s"])
    return ImageSpeed(images, name, found.frames_s, [found.frames_s], cores)


def _watch_long(decoder: str, model: Model, images: WrittenSet, count: int) -> LongStream:
    """Stream so many images, and watch the memory."""
    has_gpu = model._engine.steps.device.type == "cuda"
    begin = time.monotonic()
    with _sampled({"gpu_mib": lambda: gpu_mib(model) or 0.0}) as sampler:
        done = sum(1 for _ in stream_long(model, images, count))
    rate = round(done / (time.monotonic() - begin), 1)
    of_gpu = sampler.trend("gpu_mib") if has_gpu else None
    return LongStream(decoder, done, rate, sampler.trend("rss_mib"), of_gpu)


@contextmanager
def _sampled(more: Mapping[str, Callable[[], float]]) -> Iterator[Sampler]:
    sampler = Sampler(os.getpid(), more)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def _workers_cpu_s() -> float:
    """CPU time of this process's children together, in seconds."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    ticks = 0
    for each in children:
        stat = Path(f"/proc/{each}/stat")
        if stat.exists():
            ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))  # user's and system's
    return ticks / os.sysconf("SC_CLK_TCK")


def _busiest(times_s: Sequence[float], cpu_s: Sequence[float]) -> float:
    """The most cores that were busy over some seconds, from samples of the CPU time."""
    most = 0.0
    for number, begin in enumerate(times_s):
        for later in range(number + 1, len(times_s)):
            if times_s[later] - begin >= _WINDOW_S:
                most = max(most, (cpu_s[later] - cpu_s[number]) / (times_s[later] - begin))
                break
    return round(most, 2)


@with_config("device", "precision", "compile")
def main(
    *,
    model: ModelOption = "rf-detr-seg-nano",
    weights: WeightsOption = None,
    config: EngineConfig,
    runs: Annotated[int, typer.Option(help="Runs of each way.")] = 3,
    seconds: Annotated[float, typer.Option(help="Most seconds of a run.")] = 2.0,
    limit: Annotated[float, typer.Option(help="Seconds after which no measurement begins.")] = 420.0,
    job_images: Annotated[int, typer.Option(help="Images of a job.")] = 12_000,
    long: Annotated[int, typer.Option(help="Images of a long stream.")] = 20_000,
    images: Annotated[list[str] | None, typer.Option(help="720p, '200 sizes' or 1080p; may be repeated.")] = None,
    only: OnlyOption = None,
    out: ReportOption = None,
) -> None:
    """Measure folders of JPEGs, beside the floors of each figure and other projects' loops."""
    found = run(
        out,
        model=model,
        weights=weights,
        config=config,
        runs=runs,
        seconds=seconds,
        limit_s=limit,
        job_images=job_images,
        long_images=long,
        names=images or (),
        only=only or (),
    )
    print_result(found, to_stdout=True)


if __name__ == "__main__":
    start(main)

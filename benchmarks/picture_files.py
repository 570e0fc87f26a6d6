"""Video files to annotated MP4 by the whole engine, beside JSON alone, decoding and x264 alone, and supervision."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import av
import torch
from av.video.frame import PictureType

from benchmarks.peers.loading import load_module
from benchmarks.planted import plant_network
from benchmarks.reach_videos import repeat
from maskjet import load, traffic
from maskjet.checks import check_count
from maskjet.config import EngineConfig
from maskjet.drawing import Redaction, Style
from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.host import measuring, process
from maskjet.host.machine import describe_machine
from maskjet.model import Model
from maskjet.outputs.drawing_threads import DrawingThreads
from maskjet.outputs.encoders import DEFAULT_QUALITY, add_stream, share_cores
from maskjet.outputs.opening import check_outputs
from maskjet.sources.decoding import Decoding, choose_decoding
from maskjet.sources.frames import Source, open_source
from maskjet.sources.picture import Picture
from maskjet.spec import SPECS
from maskjet.traffic import FPS

_SIZES = ("720p", "1080p")
_SEED, _DENSITY = 7, 1.8  # about 12 detections per frame
_DRAWN, _TIMES = 60, 40  # frames that are drawn, and how often a file has them: more than any run gets through
_SIDE_BY_SIDE = 8  # videos
_RAGGED = 33  # masks of an untrained network, each of many islands
_CLOCK_HZ = 90_000
_FEWEST = 4  # frames of a video in a run


@dataclass(frozen=True)
class FileSpeed:
    """The speed of one way from a file to a file."""

    way: str
    """Videos, and what they become."""
    fps: float
    """Frames per second of all videos together: the median of all runs."""
    lowest: float
    """Slowest run."""
    highest: float
    """Fastest run."""
    cpu_ms: float
    """CPU time of all threads per frame; median."""
    masks: float
    """Mean number of masks per frame; 0 where nothing is detected."""


@dataclass(frozen=True)
class FilesReport(measuring.MeasuredReport):
    """The speeds of files; measurements are `FileSpeed`."""

    runs: int = 0
    """Runs of each way."""
    seconds: float = 0.0
    """Longest time of a run."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table: its header, then one row per way."""
        header = ("file to file", "frames/s", "lowest", "highest", "CPU, ms", "masks")
        return [
            header,
            *(
                (
                    each.way,
                    *(f"{value:.1f}" for value in (each.fps, each.lowest, each.highest)),
                    f"{each.cpu_ms:.2f}",
                    f"{each.masks:.1f}",
                )
                for each in self.measurements
            ),
        ]


@dataclass(frozen=True)
class _Sample:
    """One run of a way."""

    fps: float
    cpu_ms: float
    masks: float


Play = Callable[[float], _Sample]
"""Runs for some seconds."""


def run_files(path: Path | None = None, *, device: str = "auto", runs: int = 3, seconds: float = 2.0) -> FilesReport:
    """Time all ways in turns, after each was checked and warmed up.

    Args:
        path: A JSON file to write the report to.
        device: Where the models run; "auto", "cpu", "cuda" or "cuda:N".
        runs: Timed runs of each way, at least 1; the median counts.
        seconds: After these a run ends, its outputs closed.

    Raises:
        InputError: An argument is not as above.
        MaskjetError: A video does not have the frames that were written.
    """
    check_count("runs", runs)
    process.keep_freed_memory()  # as `maskjet run` does
    notes: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        files = _write_videos(folder)
        demo = stack.enter_context(load("demo", device=device))
        images = [traffic.sample(seed=seed, size_hw=traffic.SIZES_HW["720p"]).image for seed in range(4)]
        planted = plant_network(SPECS["rf-detr-seg-nano"], images, survivors=_RAGGED)
        ragged = stack.enter_context(Model(planted, EngineConfig(device=device)))
        ways = _ways(files, demo, ragged, folder)
        with process.garbage_frozen():
            for way, play in [*ways.items()]:
                try:
                    play(0.0)
                except UnsupportedError as error:
                    notes.append(f"{way} left out: {error}")
                    del ways[way]
            samples: dict[str, list[_Sample]] = {way: [] for way in ways}
            for turn in range(runs + 1):  # the first warms up: graphs, caches, encoders
                for way, play in ways.items():
                    sample = play(seconds if turn else min(seconds, 1.0))
                    samples[way] += [sample] if turn else []
    speeds = [_summarise(way, each) for way, each in samples.items()]
    report = FilesReport(describe_machine(), speeds, notes, runs, seconds)
    report.write(path)
    return report


def _summarise(way: str, samples: Sequence[_Sample]) -> FileSpeed:
    fps = [sample.fps for sample in samples]
    cpu_ms, masks = (median(getattr(sample, name) for sample in samples) for name in ("cpu_ms", "masks"))
    return FileSpeed(way, *(round(value, 2) for value in (median(fps), min(fps), max(fps), cpu_ms, masks)))


def _write_videos(folder: Path) -> dict[str, list[Path]]:
    """Noisy street videos by size, of a few seconds that come again and again: one long, and several shorter ones."""

    def write(size: str) -> list[Path]:
        part = folder / f"part_{size}.mp4"
        traffic.write_video(part, size_hw=traffic.SIZES_HW[size], frames=_DRAWN, seed=_SEED, density=_DENSITY)
        paths = [folder / f"street_{size}_{number}.mp4" for number in range(1 + _SIDE_BY_SIDE)]
        for path in paths:
            repeat(part, path, _TIMES if path is paths[0] else _TIMES // 4)
        return paths

    with ThreadPoolExecutor(len(_SIZES)) as pool:
        return dict(zip(_SIZES, pool.map(write, _SIZES), strict=True))


def _ways(files: Mapping[str, Sequence[Path]], demo: Model, ragged: Model, folder: Path) -> dict[str, Play]:
    """What is timed, by name."""
    hd, full, many = files["720p"][:1], files["1080p"][:1], files["1080p"][1:]
    mp4, jsonl = str(folder / "out" / "{}.mp4"), str(folder / "out" / "{}.jsonl")
    ways: dict[str, Play] = {}
    for name, videos, model in (
        ("1080p", full, demo),
        ("720p", hd, demo),
        ("720p, ragged masks", hd, ragged),
        (f"{_SIDE_BY_SIDE} × 1080p", many, demo),
    ):
        ways[f"{name}: annotated MP4"] = partial(_detect, model, videos, mp4)
        ways[f"{name}: JSON lines"] = partial(_detect, model, videos, jsonl)
    ways["1080p: redacted MP4"] = partial(_detect, demo, full, mp4, style=Redaction())
    ways["1080p: redacted MP4, blur"] = partial(_detect, demo, full, mp4, style=Redaction(replace_with="blur"))
    for name, videos in (("1080p", full), ("720p", hd), (f"{_SIDE_BY_SIDE} × 1080p", many)):
        ways[f"{name}: decoding and x264 alone"] = partial(_transcode, demo.config, videos, folder)
    for name, videos in (("1080p", full), ("720p", hd)):
        peer = partial(_annotate_by_supervision, demo, videos[0], folder / "peer.mp4")
        ways |= {f"{name}: MP4 by supervision, {kind} masks": partial(peer, kind) for kind in ("dense", "compact")}
    return ways


def _timed(items: Iterator[int], stop_after: float, close: Callable[[], object], videos: int = 1) -> _Sample:
    """Take numbers of masks per frame until the time is up; from the first frame until the outputs are closed."""
    masks = [next(items)]
    begun, cpu_begun = time.perf_counter(), time.process_time()
    for count in items:
        masks.append(count)
        if len(masks) > _FEWEST * videos and time.perf_counter() - begun > stop_after:
            break
    close()
    frames, seconds = len(masks) - 1, time.perf_counter() - begun
    return _Sample(frames / seconds, 1000 * (time.process_time() - cpu_begun) / frames, sum(masks) / len(masks))


def _open(config: EngineConfig, videos: Sequence[Path], stack: ExitStack) -> list[Source]:
    decoding = choose_decoding(config, len(videos))
    return [stack.enter_context(open_source(video, decoder=decoding)) for video in videos]


def _detect(
    model: Model, videos: Sequence[Path], out: str, stop_after: float, *, style: Style | None = None
) -> _Sample:
    """As `maskjet run --side-by-side` does."""
    with ExitStack() as stack:
        sources = _open(model.config, videos, stack)
        results = stack.enter_context(closing(model.stream(sources[0] if len(sources) == 1 else sources, depth=2)))
        sinks = stack.enter_context(check_outputs([out], sources, style=style).open())
        written = [0] * len(sources)

        def write() -> Iterator[int]:
            for frame, found in results:
                sinks.write(frame, found)
                written[frame.stream] += 1
                yield len(found)

        sample = _timed(write(), stop_after, sinks.close, len(videos))
        if stop_after == 0.0:
            _check(list(sinks.paths), written)
        return sample


def _check(paths: Sequence[str], written: Sequence[int]) -> None:
    """Raise MaskjetError unless each output has as many frames as were written to it."""
    for path, expected in zip(paths, written, strict=True):
        if path.endswith(".mp4"):
            with av.open(path) as container:
                found = sum(1 for _ in container.decode(video=0))
        else:
            found = len(Path(path).read_text().splitlines())
        if found != expected:
            raise MaskjetError(f"{path} must have {expected} frames, it has {found}; nothing was timed.")


def _transcode(config: EngineConfig, videos: Sequence[Path], folder: Path, stop_after: float) -> _Sample:
    """Decode and encode each video, in two threads; neither RGB nor detections between. From the first frames on."""
    threads, decoding = share_cores(len(videos)), choose_decoding(config, len(videos))
    begun: list[float] = []
    ready = threading.Barrier(len(videos), action=lambda: begun.extend((time.perf_counter(), time.process_time())))

    def transcode(number: int) -> int:
        with ExitStack() as stack:
            encoder, count = _Encoder(folder / f"floor{number}.mp4", threads), 0
            for picture in _decode(videos[number], decoding, stack):
                if count == 0:
                    ready.wait()
                encoder.add(picture)
                count += 1
                if count > _FEWEST and time.perf_counter() - begun[0] > stop_after:
                    break
            encoder.close()
            return count

    with ThreadPoolExecutor(len(videos)) as pool:
        frames = sum(pool.map(transcode, range(len(videos))))
    seconds, cpu_s = time.perf_counter() - begun[0], time.process_time() - begun[1]
    return _Sample(frames / seconds, 1000 * cpu_s / frames, 0.0)


def _decode(video: Path, decoding: Decoding, stack: ExitStack) -> Iterator[av.VideoFrame | Picture]:
    """Pictures as the decoder leaves them: on the host as FFmpeg's, on a GPU as ours."""
    source = stack.enter_context(open_source(video, decoder=decoding))
    if source.decoder != "cpu":  # a GPU is not worth it for few small videos
        for frame in source:
            assert isinstance(frame.pixels, Picture)
            yield frame.pixels
        return
    container = stack.enter_context(av.open(str(video)))
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    yield from container.decode(stream)


class _Encoder:
    """x264 as `AnnotatedVideo` sets it, of pictures as decoders leave them, in a thread of its own."""

    def __init__(self, path: Path, threads: int) -> None:
        self._container = av.open(str(path), "w", format="mp4")
        self._threads, self._thread = threads, DrawingThreads()
        self._stream: av.VideoStream | None = None
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self._count = 0

    def add(self, picture: av.VideoFrame | Picture) -> None:
        """Encode a picture, up to three behind."""
        self._thread.add(partial(self._encode, picture))

    def _encode(self, picture: av.VideoFrame | Picture) -> Iterator[None]:
        if isinstance(picture, Picture):
            if self._pinned.shape != picture.memory.shape:
                self._pinned = torch.empty(picture.memory.shape, dtype=torch.uint8, pin_memory=True)
            self._pinned.copy_(picture.memory)
            picture = av.VideoFrame.from_numpy_buffer(self._pinned.numpy(), format="nv12")
        yield
        if self._stream is None:
            size_hw = picture.height, picture.width
            encoding = {"quality": DEFAULT_QUALITY, "threads": self._threads}
            self._stream = add_stream(self._container, size_hw, Fraction(int(FPS)), **encoding)
            self._stream.pix_fmt = picture.format.name
            self._stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)
        picture.pts, picture.time_base = round(self._count * _CLOCK_HZ / FPS), Fraction(1, _CLOCK_HZ)
        picture.pict_type = PictureType.NONE  # the encoder's own choice
        self._count += 1
        self._container.mux(self._stream.encode(picture))

    def close(self) -> None:
        """Wait for all pictures and finish the file."""
        error = self._thread.close()
        if error is not None:
            raise error
        if self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def _annotate_by_supervision(model: Model, video: Path, path: Path, kind: Any, stop_after: float) -> _Sample:
    """The loop that supervision's users write, with maskjet's detections."""
    supervision = load_module("supervision", "supervision")
    masks, labels = supervision.MaskAnnotator(), supervision.LabelAnnotator()
    with ExitStack() as stack:
        (source,) = _open(model.config, [video], stack)
        results = stack.enter_context(closing(model.stream(source, depth=2)))
        height, width = source.size_hw or traffic.SIZES_HW["720p"]
        info = supervision.VideoInfo(width=width, height=height, fps=int(FPS))
        sink = supervision.VideoSink(str(path), info)
        sink.__enter__()

        def write() -> Iterator[int]:
            for frame, found in results:
                theirs = found.to_supervision(masks=kind)
                texts = [f"{name} {score:.2f}" for name, score in zip(found.class_name, found.confidence, strict=True)]
                scene = frame.image[..., ::-1].copy()
                sink.write_frame(labels.annotate(masks.annotate(scene, theirs), theirs, texts))
                yield len(found)

        return _timed(write(), stop_after, lambda: sink.__exit__(None, None, None))

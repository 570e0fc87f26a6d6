"""Ways to detect on a folder of JPEGs, the floors beside them, and the loops that users of other projects write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any, Literal

import cv2
import numpy as np
import torch
from PIL import Image as Pillow

from benchmarks.image_files import WrittenSet
from benchmarks.jpegs import GROUP, load_decoder
from benchmarks.peers import rfdetr
from benchmarks.peers.loading import load_module
from benchmarks.peers.pipeline import Pipeline
from maskjet.config import DEFAULT_THRESHOLD
from maskjet.detections import Detections
from maskjet.errors import MaskjetError, UnsupportedError, first_line
from maskjet.host.timing import play
from maskjet.model import Model
from maskjet.networks import Network
from maskjet.networks.rfdetr import RFDETR
from maskjet.parity.pair import Pairing, pair
from maskjet.sources.images import read_image
from maskjet.sources.plain_jpegs import check_jpeg

JPEGsBy = Literal["cuda", "cpu"]
"""What decodes JPEGs."""
BATCH = 16
"""Images of a batch, and of a list given to `predict`."""
DEPTH = 4
"""Batches in flight in `stream`."""
_KEPT = 256  # files whose bytes are held in memory for floors
_KEPT_IMAGES = 64  # images that are held decoded
_DECODING = 2  # threads that call the GPU's decoder: one fills its arguments while the other waits
_LEAST_MATCHED = 0.98  # detections beside those of each image alone: batches and decoders round otherwise


@dataclass(frozen=True)
class Sample:
    """What one run of a way took."""

    images: int
    """Images that were done."""
    seconds: float
    """Time on the clock."""
    cpu_s: float
    """CPU time of all threads of this process."""
    calls_s: Sequence[float] = field(default_factory=list)
    """Seconds of each call, where one call is one image."""


Way = Callable[[float], Sample]
"""Works for about so many seconds."""
_Detect = Callable[[Any], object]


def check_stream(model: Model, images: WrittenSet, alone: Sequence[Detections]) -> bool:
    """Check that a stream keeps the files' order and finds what each image has alone; returns True.

    Args:
        model: The model, with the decoder that is checked.
        images: The folder.
        alone: What the first files have alone, decoded by the CPU.

    Raises:
        MaskjetError: It doesn't.
    """
    found = list(islice(model.stream(str(images.folder), depth=DEPTH), len(alone)))
    if [frame.name for frame, _ in found] != list(map(str, images.paths[: len(alone)])):
        raise MaskjetError("A stream must give the files in their order.")
    pairing = Pairing()
    for expected, (_, actual) in zip(alone, found, strict=True):
        pairing.add(pair(expected, actual))
    if pairing.share < _LEAST_MATCHED:
        raise MaskjetError(f"A stream must find what each image has alone, {pairing.share:.1%} match.")
    return True


def our_ways(models: Mapping[JPEGsBy, Model], images: WrittenSet) -> dict[str, Way]:
    """Ways of maskjet, by name: over the folder, by paths one by one, and by lists of paths.

    Args:
        models: By decoder.
        images: The folder.
    """
    lists = _lists(images.paths)
    ways: dict[str, Way] = {}
    for decoder, model in models.items():
        ways[f"stream, decoder {decoder}"] = partial(_stream, model, images)
        predict = partial(model.predict, decoder=decoder)
        ways[f"predict of a path, decoder {decoder}"] = partial(_repeat, predict, images.paths)
        ways[f"predict of {BATCH} paths, decoder {decoder}"] = partial(_repeat, predict, lists, per_call=len(lists[0]))
    return ways


def _lists(items: Sequence[Any]) -> list[list[Any]]:
    whole = [list(items[start : start + BATCH]) for start in range(0, len(items) - BATCH + 1, BATCH)]
    return whole or [list(items)]


def _stream(model: Model, images: WrittenSet, seconds: float) -> Sample:
    """Stream over the folder, from its first file to its last or until the time is up."""

    def work() -> int:
        counts, _ = play(model.stream(str(images.folder), depth=DEPTH), seconds)
        return len(counts)

    return _timed(work)


def _timed(work: Callable[[], int]) -> Sample:
    wall, cpu = time.perf_counter(), time.process_time()
    count = work()
    return Sample(count, time.perf_counter() - wall, time.process_time() - cpu)


def _repeat(call: Callable[[Any], object], inputs: Sequence[Any], seconds: float, per_call: int = 1) -> Sample:
    """Call with each input in turn until the time is up."""
    times: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()
    now = start
    while now < start + seconds or not times:
        call(inputs[len(times) % len(inputs)])
        before, now = now, time.perf_counter()
        times.append(now - before)
    cpu_s = time.process_time() - cpu
    return Sample(len(times) * per_call, now - start, cpu_s, times if per_call == 1 else ())


def _in_threads(threads: int, call: Callable[[Any], object], inputs: Sequence[Any], per_input: int = 1) -> Way:
    """A way that calls in several threads."""

    def run(seconds: float) -> Sample:
        with ThreadPoolExecutor(threads) as pool:
            return _repeat(lambda every: list(pool.map(call, every)), [inputs], seconds, len(inputs) * per_input)

    return run


def floors(model: Model, images: WrittenSet, notes: list[str]) -> dict[str, Way]:
    """The parts of the work alone, by name; a part that can't run here is a note."""
    cores, device = len(os.sched_getaffinity(0)), model._engine.steps.device
    data = [path.read_bytes() for path in images.paths[:_KEPT]]
    ways = {
        f"reading, {cores} threads": _in_threads(cores, lambda path: path.read_bytes(), images.paths),
        f"OpenCV's decoder, {cores} threads": _in_threads(
            cores, lambda each: cv2.imdecode(np.frombuffer(each, np.uint8), cv2.IMREAD_COLOR), data
        ),
    }
    ways[f"check_jpeg, {cores} threads"] = _in_threads(cores, check_jpeg, data)
    plain = [found for found in map(check_jpeg, data) if not isinstance(found, str)]
    if len(plain) < len(data):
        notes.append(f"{images.name}: {len(data) - len(plain)} of {len(data)} files are for the CPU's decoder")
    try:
        decode = load_decoder(device).decode
        groups = [plain[start : start + GROUP] for start in range(0, len(plain) - GROUP + 1, GROUP)] or [plain]
        name = f"the GPU's decoder, groups of {len(groups[0])}, {_DECODING} threads"
        ways[name] = _in_threads(_DECODING, decode, groups, len(groups[0]))
    except MaskjetError as error:
        notes.append(f"{images.name}: floors of the GPU's decoder left out: {first_line(error)}")
    decoded: list[Any] = [read_image(path) for path in images.paths[:_KEPT_IMAGES]]
    ways[f"engine, lists of {BATCH} in host memory"] = partial(
        _repeat, model.predict, _lists(decoded), per_call=min(BATCH, len(decoded))
    )
    if device.type == "cuda":
        there = [torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in decoded]
        ways[f"engine, lists of {BATCH} in GPU memory"] = partial(
            _repeat, model.predict, _lists(there), per_call=min(BATCH, len(there))
        )
    return ways


class Peers:
    """Loops over a folder with rfdetr in its fastest mode, as the projects' docs show them.

    Each comes twice: with the dense masks that `predict` gives, and with these encoded as RLE.

    Args:
        network: The network whose weights they get.
        model: Ours, which detects on what torchvision decodes.
    """

    def __init__(self, network: Network, model: Model) -> None:
        self._network, self._model = network, model
        self._device = model._engine.steps.device

    def ways(self, images: WrittenSet) -> dict[str, Way]:
        """The loops, by name; one that can't run here raises UnsupportedError."""
        lists = _lists(images.paths)

        def decoded(call: _Detect) -> Way:
            return partial(_repeat, call, lists, per_call=len(lists[0]))

        ways: dict[str, Way] = {}
        for output in ("masks", "RLE"):
            detect = partial(self._rfdetr, output)
            ways |= {
                f"rfdetr: PIL, predict, {output}": partial(_repeat, partial(_by_pil, detect), images.paths),
                f"supervision: cv2.imread, rfdetr, {output}": partial(_by_supervision, detect, images),
                f"torchvision decode_jpeg on the GPU, rfdetr, {output}": decoded(partial(self._by_rfdetr, detect)),
            }
        return ways | {
            "torchvision decode_jpeg on the GPU, maskjet": decoded(self._by_maskjet),
            "torchvision decode_jpeg on the GPU alone": decoded(self._decode),
        }

    @cache  # noqa: B019 - as long as the benchmark
    def _pipeline(self) -> Pipeline:
        if not isinstance(self._network, RFDETR):
            raise UnsupportedError("rfdetr runs RF-DETR only.")
        return rfdetr.build_fastest(self._network.state_dict(), self._network.spec, self._device, DEFAULT_THRESHOLD)

    def _rfdetr(self, output: str, image: Any) -> object:
        pipeline = self._pipeline()
        return pipeline.predict(image) if output == "masks" else pipeline.detect(image)

    def _decode(self, paths: Sequence[Any]) -> list[torch.Tensor]:
        """Decode files on the GPU: uint8 [3, H, W] each, RGB."""
        if self._device.type != "cuda":
            raise UnsupportedError("nvJPEG needs a GPU, there is none.")
        io = load_module("torchvision.io", "torchvision")
        data = [io.read_file(str(path)) for path in paths]
        images: list[torch.Tensor] = io.decode_jpeg(data, mode=io.ImageReadMode.RGB, device=self._device)
        torch.cuda.synchronize(self._device)
        return images

    def _by_rfdetr(self, detect: _Detect, paths: Sequence[Any]) -> object:
        return [detect(image.float().div_(255)) for image in self._decode(paths)]

    def _by_maskjet(self, paths: Sequence[Any]) -> object:
        return self._model.predict([image.permute(1, 2, 0).contiguous() for image in self._decode(paths)])


def _by_pil(detect: _Detect, path: Any) -> object:
    with Pillow.open(path) as image:
        return detect(image.convert("RGB"))


def _by_supervision(detect: _Detect, images: WrittenSet, seconds: float) -> Sample:
    supervision = load_module("supervision", "supervision")
    paths = sorted(supervision.list_files_with_extensions(str(images.folder), extensions=["jpg"]))

    def read(path: Any) -> object:
        pixels: Any = cv2.imread(str(path))
        return detect(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))

    return _repeat(read, paths, seconds)


def stream_long(model: Model, images: WrittenSet, count: int) -> Iterator[int]:
    """Stream so many images, the folder's again and again; yields the number of detections of each."""
    paths = [images.paths[number % len(images.paths)] for number in range(count)]
    with closing(model.stream(paths, depth=DEPTH, batch=BATCH)) as results:
        for _, found in results:
            yield len(found)

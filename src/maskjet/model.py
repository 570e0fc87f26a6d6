"""Load a model, run it on images and streams, and ask for its report."""

from __future__ import annotations

import functools
import inspect
import os
import platform
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Union, overload

import torch

from maskjet import process
from maskjet.config import DEFAULT_THRESHOLD, Driver, EngineConfig, Implementation, Precision, Resample, Step
from maskjet.detections import Detections
from maskjet.engine import pipeline
from maskjet.engine.engine import Engine
from maskjet.engine.steps import Postprocessing
from maskjet.errors import InputError, suggest
from maskjet.media.frames import Frame, kind_of_source, split_sources
from maskjet.media.images import Origin, as_tensor, split_images, to_image
from maskjet.networks import Network, find_family, read_network
from maskjet.spec import ModelSpec, TwoStageSpec

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

__all__ = ["ImageLike", "Model", "Report", "Threshold", "load", "read_network"]


class SharesMemory(Protocol):
    """An array or tensor of any library that exports its memory by DLPack, as CuPy's and JAX's do."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Export the memory."""


ImageLike = Union["np.ndarray[Any, Any]", torch.Tensor, str, os.PathLike[str], "PILImage", SharesMemory]
"""uint8 [H, W, 3] RGB array or tensor, floating tensor [3, H, W] in 0..1, path, or PIL image."""

Threshold = float | Mapping[str, float]
"""One threshold for all classes, or one by class name; classes not named keep theirs."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_MOST_KEPT = 16  # choices of single calls, so that a loop with one of them uploads it once


@dataclass(frozen=True)
class Report:
    """How a model runs, and counts of its work so far.

    Examples:
        >>> import maskjet
        >>> report = maskjet.load("demo", device="cpu").report()
        >>> report.precision, report.images
        ('fp32', 0)
    """

    model: str
    """The spec's name."""
    device: str
    """The device, with its name."""
    precision: str
    """Precision of the network."""
    engine: str
    """Whether the steps run as graphs or one by one, and why."""
    network: str
    """Whether the network is compiled, for which batches and how long that took, or why not."""
    steps: Mapping[str, str]
    """Step to the implementation that serves it and why it was chosen."""
    graphs: Mapping[str, str]
    """Batch and frame size to the graph captured for it: launches by the host, kernels and copies on the GPU."""
    images: int
    """Images processed so far."""
    detections: int
    """Detections returned so far."""
    dropped: int
    """Frames dropped so far because newer ones had come."""
    fallbacks: Mapping[str, int]
    """Slower paths that this model took so far, by op and reason."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {
            "model": self.model,
            "device": self.device,
            "precision": self.precision,
            "engine": self.engine,
            "network": self.network,
            **self.steps,
            **{f"graph {kind}": what for kind, what in self.graphs.items()},
            "so far": f"{self.images} images, {self.detections} detections, {self.dropped} frames dropped",
            "fallbacks": ", ".join(f"{why}: {times}" for why, times in self.fallbacks.items()) or "none",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())


class Model:
    """A network with its pre- and postprocessing, ready to run; `load` makes it. May be called from several threads.

    Args:
        network: The network in eval mode, on the CPU; owned by the model, which moves and converts it.
        config: How to run it.
        threshold: A confidence must exceed it, 0..1.
        classes: Names of the classes to report; None for all.

    Examples:
        >>> import maskjet
        >>> with maskjet.load("demo") as model:
        ...     found = model(maskjet.traffic.sample(seed=3).image, threshold=0.6, classes=["car", "bus"])
        >>> set(found.class_name) <= {"car", "bus"}
        True
    """

    def __init__(
        self,
        network: Network,
        config: EngineConfig,
        *,
        threshold: Threshold = DEFAULT_THRESHOLD,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.spec = network.spec
        self.config = config
        everywhere = torch.full((self.spec.class_logits,), DEFAULT_THRESHOLD)
        self._as_loaded = Postprocessing(
            _thresholds(self.spec, threshold, everywhere), _class_map(self.spec, classes), config.max_detections
        )
        self._thresholds = _thresholds(self.spec, threshold, everywhere)  # of classes that are not reported, too
        self._chosen: dict[tuple[object, ...], Postprocessing] = {}
        self._engine = Engine(find_family(network).make_steps(network, config, self._as_loaded))

    @overload
    def predict(  # type: ignore[overload-overlap] # a str is a sequence
        self,
        images: ImageLike,
        *,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
    ) -> Detections: ...
    @overload
    def predict(
        self,
        images: Sequence[ImageLike],
        *,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
    ) -> list[Detections]: ...

    def predict(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
    ) -> Detections | list[Detections]:
        """Detect instances on one image or several; `model(images)` is the same.

        Floating tensors become bytes: × 255, rounded, halves to even. Checking that their values are in 0..1 waits for
        the GPU if they are there; bytes on the GPU are taken without a wait.

        Args:
            images: uint8 [H, W, 3] RGB array or tensor; floating tensor [3, H, W] in 0..1; path of an image; or PIL
                image. Or several: a list of these, of any sizes, a batch [N, H, W, 3] or a floating one [N, 3, H, W].
                Tensors may be on a GPU, and of any library that has `__dlpack__`.
            threshold: A confidence must exceed it, 0..1; or one by class name, where others keep theirs. None is what
                the model was loaded with; for this call alone, as the two below.
            classes: Names of the classes to report. None is what the model was loaded with.
            max_detections: Most detections per image, the most confident ones, up to what the model was loaded with.

        Returns:
            The detections, most confident first; for a list or a batch a list, one per image in its order. Type
            checkers take an array for one image: `list(batch)` is the same as `batch`, and they know it.

        Raises:
            InputError: An argument is not as above.
            SourceError: A file can't be read.
            UnsupportedError: The model is closed, or belongs to another process.
            DeviceError: The device failed.

        Examples:
            >>> import maskjet
            >>> model = maskjet.load("demo")
            >>> image = maskjet.traffic.sample(seed=3).image
            >>> few = model.predict(image, threshold=0.8)
            >>> len(few) <= len(model.predict(image))
            True
        """
        postprocessing = self._choose(threshold, classes, max_detections)
        several = images if isinstance(images, list | tuple) else split_images(images, "images")
        if several is None:
            one: Any = images
            (found,) = pipeline.predict(self._engine, lambda _: _to_tensor(one, "image"), 1, postprocessing)
            found.remember(Origin(images))
            return found
        every = pipeline.predict(
            self._engine, lambda number: _to_tensor(several[number], f"images[{number}]"), len(several), postprocessing
        )
        for number, found in enumerate(every):
            found.remember(Origin(several[number]) if several is images else Origin(images, number))
        return every

    __call__ = predict

    def stream(
        self,
        source: Any,
        *,
        depth: int = 2,
        batch: int | None = None,
        drop_late: bool = False,
        stop: threading.Event | None = None,
        threshold: Threshold | None = None,
        classes: Sequence[str] | None = None,
        max_detections: int | None = None,
    ) -> Generator[tuple[Frame, Detections]]:
        """Detect instances frame by frame.

        Each source is decoded in a thread of its own, a bounded number of frames ahead, so that decoding and detecting
        overlap and a slow consumer holds decoding back. On a GPU up to `depth` batches are in flight, and while the
        consumer works on results the next ones are made; on a CPU frames are decoded that far ahead.

        Args:
            source: Whatever `maskjet.media.frames.open_source` takes, or a source it returned: an image, folder, glob,
                video, camera, URL, array, or a list of images. A list of other things (videos, cameras, URLs, folders,
                sources) runs side by side; `Frame.stream` is the position in the list.
            depth: Batches in flight, 1 to 8.
            batch: Largest number of frames that the network sees at once. They have one size and come from all sources
                in turn; a batch never waits to be filled. None is the number of sources, up to `EngineConfig.batch`.
            drop_late: Whether a live source's waiting frames are dropped when a newer one comes. The drops are counted
                in `Source.frames_dropped` and `report()`. Else all frames wait in line.
            stop: Once it is set, the stream ends after the frames in flight, even if no frame comes.
            threshold: A confidence must exceed it; as in `predict`, for this stream alone.
            classes: Names of the classes to report; as in `predict`.
            max_detections: Most detections per frame; as in `predict`.

        Yields:
            Each frame with its detections, those of a source in order. A frame that can't be decoded is left out and
            recorded in the source's `bad_frames`.

        Raises:
            InputError: An argument is not as above, or an opened source is given twice or is read already.
            UnsupportedError: The model is closed, or belongs to another process.
            SourceError: A named file does not exist, before work starts; or a source can't be opened or breaks. With
                several sources the others go on, and the error is raised at the end.
            DeviceError: The device failed on a frame; the frames before it were yielded.

        Examples:
            >>> import maskjet
            >>> model = maskjet.load("demo")
            >>> images = [maskjet.traffic.sample(seed=seed).image for seed in range(2)]
            >>> [frame.index for frame, found in model.stream(images)]
            [0, 1]
        """
        postprocessing = self._choose(threshold, classes, max_detections)
        sources = split_sources(source)
        if batch is None:
            batch = min(len(sources), self.config.batch)
        if not 1 <= depth <= 8:
            raise InputError(f"depth must be 1..8, got {depth}.")
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        self._engine.check()
        self._engine.steps.prepare(batch)  # now, as it would delay the first frame
        return pipeline.stream(
            self._engine,
            sources,
            depth=depth,
            batch=batch,
            drops_late=drop_late,
            stop=stop,
            postprocessing=postprocessing,
        )

    def _choose(
        self, threshold: Threshold | None, classes: Sequence[str] | None, max_detections: int | None
    ) -> Postprocessing:
        """What a call reports; the same object for the same arguments, as slots tell changes by it."""
        if threshold is None and classes is None and max_detections is None:
            return self._as_loaded
        names = None if classes is None else _names(classes)
        most = self.config.max_detections
        if max_detections is not None:
            _check_most(max_detections, most)
        if isinstance(threshold, Mapping):
            threshold = {name: _number(value) for name, value in threshold.items()}
            key: tuple[object, ...] = (tuple(threshold.items()), names, max_detections)
        else:
            threshold = None if threshold is None else _number(threshold)
            key = (threshold, names, max_detections)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = Postprocessing(
                self._thresholds if threshold is None else _thresholds(self.spec, threshold, self._thresholds),
                self._as_loaded.class_map if names is None else _class_map(self.spec, names),
                most if max_detections is None else max_detections,
            )
            if len(self._chosen) >= _MOST_KEPT:
                self._chosen.clear()
            self._chosen[key] = chosen
        return chosen

    def report(self) -> Report:
        """The implementation of each step and why it was chosen, and counts of the work so far."""
        engine = self._engine
        steps, why_no_graph = engine.steps, engine.why_no_graph
        return Report(
            model=self.spec.name,
            device=_device_name(steps.device),
            precision=steps.precision,
            engine="one CUDA graph per batch" if why_no_graph is None else f"step by step (no graph: {why_no_graph})",
            network=str(steps.compiler),
            steps={name: f"{choice.name} ({choice.why})" for name, choice in steps.choices.items()},
            graphs=engine.graphs(),
            images=engine.done["images"],
            detections=engine.done["detections"],
            dropped=engine.done["dropped"],
            fallbacks=dict(steps.fallbacks),
        )

    def close(self) -> None:
        """Refuse new work, wait until the device is idle, and free it; may be called twice.

        Frames that a stream has in flight are still delivered on request; then the stream raises
        UnsupportedError.
        """
        self._engine.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _with_known_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function name the option that a misspelt one is close to."""
    known = [name for name, each in inspect.signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    positional = set(inspect.signature(function).parameters) - set(known)

    @functools.wraps(function)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for name in kwargs:
            if name not in known and name not in positional:
                end = suggest(name, known)
                raise InputError(f"{function.__name__}() must be given options that it has, got {name!r}{end}")
        return function(*args, **kwargs)

    return checked


@_with_known_options
def load(
    model: str | os.PathLike[str] | torch.nn.Module,
    *,
    weights: str | os.PathLike[str] | None = None,
    threshold: Threshold | None = None,
    classes: Sequence[str] | None = None,
    max_detections: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    engine: Driver = "auto",
    compile: bool | None = None,  # noqa: A002 - PyTorch's word
    implementation: Implementation | Mapping[Step, Implementation] = "auto",
    resample: Resample = "bilinear",
    batch: int = 8,
    graphs: int = 8,
    nvtx: bool = False,
) -> Model:
    """Load a model.

    Args:
        model: "demo" for the embedded one; a named size such as "rf-detr-seg-nano", with `weights`; the path of a
            checkpoint, whose size is then recognised; or torchvision's Faster or Mask R-CNN, which is copied. A plain
            one is first rewritten by `maskjet.rewrites.optimize`, which takes class names, too.
        weights: Path of the named size's checkpoint: rfdetr's .pt or .pth, or safetensors; fine-tuned ones bring their
            classes along.
        threshold: A confidence must exceed it, 0..1; or one by class name. None is 0.5, or a torchvision
            detector's own. `predict` and `stream` take others for one call; so with `classes` and `max_detections`.
        classes: Names of the classes to report; None for all.
        max_detections: Most detections per image, the most confident ones. None is 100, or a torchvision detector's
            own.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "fp32", "fp16" (GPU only) or "bf16"; "auto" is fp16 on a GPU and fp32 on a CPU.
        engine: "graph" makes a frame one CUDA graph, "eager" runs one step at a time; "auto" is a graph if all steps
            allow it.
        compile: Whether to make the network faster with `torch.compile`. The first time on a machine it takes 20 s for
            each batch size and, for torchvision detectors, each frame size. None compiles on a GPU, except torchvision
            detectors.
        implementation: Implementation of the steps around the network: "auto", "reference", "triton" or "cpu"; or by
            step, as in {"preprocess": "reference"}.
        resample: "bilinear" resizes floats, as rfdetr's predict; "cv2" resizes bytes, as cv2.resize.
        batch: Most images of one `predict` call, or frames of several sources, in one batch.
        graphs: Most CUDA graphs per slot, one per frame size and batch; the least recently used is dropped.
        nvtx: Whether to mark the host's work on each batch with NVTX ranges, for Nsight Systems (GPU).

    Returns:
        The model, ready to run.

    Raises:
        InputError: An argument is not as above.
        CheckpointError: The weights are missing, truncated, foreign or of another size.
        UnsupportedError: The device or precision is not available here, the torchvision detector is built in an
            unsupported way, or the process was forked from one where PyTorch's threads ran.

    Examples:
        >>> import maskjet
        >>> model = maskjet.load("demo")
        >>> len(model.predict(maskjet.traffic.sample(seed=3).image)) > 0
        True
    """
    process.check_fork()
    family = find_family(model)
    defaults = family.defaults(model)
    config = EngineConfig(
        device=device,
        precision=precision,
        engine=engine,
        compile=compile,
        implementation=implementation,
        resample=resample,
        max_detections=defaults.max_detections if max_detections is None else max_detections,
        batch=batch,
        graphs=graphs,
        nvtx=nvtx,
    )
    return Model(
        family.load(model, weights),
        config,
        threshold=defaults.threshold if threshold is None else threshold,
        classes=classes,
    )


def _class_ids(spec: ModelSpec | TwoStageSpec, names: Sequence[str], argument: str) -> list[int]:
    by_name = {name: class_id for class_id, name in spec.class_names.items()}
    for name in names:
        if name not in by_name:
            raise InputError(f"{argument} must name classes of {spec.name}, got {name!r}{suggest(name, by_name)}")
    return [by_name[name] for name in names]


def _thresholds(spec: ModelSpec | TwoStageSpec, threshold: Threshold, others: torch.Tensor) -> torch.Tensor:
    """The threshold of each class, float32 [class_logits]; `others` has those of classes that are not named."""
    if not isinstance(threshold, Mapping):
        return torch.full((spec.class_logits,), _number(threshold))
    thresholds = others.clone()
    for class_id, value in zip(_class_ids(spec, list(threshold), "threshold"), threshold.values(), strict=True):
        thresholds[class_id] = _number(value)
    return thresholds


def _number(threshold: Any) -> float:
    """Check one threshold."""
    try:
        value = float(threshold)
    except (TypeError, ValueError) as error:
        kind = type(threshold).__name__
        raise InputError(f"threshold must be a number 0..1, or one by class name, got {kind}.") from error
    if not 0 <= value <= 1:
        raise InputError(f"threshold must be 0..1, got {threshold}.")
    return value


def _check_most(max_detections: Any, most: int) -> None:
    """Check the most detections that a call asks for."""
    if isinstance(max_detections, bool) or not isinstance(max_detections, int):
        raise InputError(f"max_detections must be a whole number, got {max_detections!r}.")
    if not 1 <= max_detections <= most:
        raise InputError(
            f"max_detections must be 1..{most}, got {max_detections}; load(max_detections=...) sets the most."
        )


def _names(classes: Sequence[str]) -> tuple[str, ...]:
    """Check a list of class names."""
    if isinstance(classes, str) or not isinstance(classes, Iterable) or not all(isinstance(n, str) for n in classes):
        raise InputError(f"classes must be a list of names, at least one, got {classes!r}.")
    return tuple(classes)


def _class_map(spec: ModelSpec | TwoStageSpec, classes: Sequence[str] | None) -> torch.Tensor:
    """The class id to report for each class, int32 [class_logits]; -1 if it was not asked for."""
    everything = torch.arange(spec.class_logits, dtype=torch.int32)
    if classes is None:
        return everything
    if not (names := _names(classes)):
        raise InputError(f"classes must be a list of names, at least one, got {classes!r}.")
    chosen = torch.full_like(everything, -1)
    ids = _class_ids(spec, names, "classes")
    chosen[ids] = everything[ids]
    return chosen


def _to_tensor(image: ImageLike, name: str) -> torch.Tensor:
    """Convert an image to uint8 [H, W, 3], sharing its memory if possible."""
    image = as_tensor(image, name)
    if isinstance(image, torch.Tensor) and image.is_cuda:
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise InputError(f"{name} must be uint8 [H, W, 3] RGB, got {image.dtype} {list(image.shape)}.")
        return image
    try:
        array = to_image(image, name)
    except InputError as error:
        kind = kind_of_source(image)
        if kind is None:
            raise
        raise type(error)(f"{error} To detect in {kind}, use model.stream({image!r}).") from error
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    facts = (platform.machine(), f"{torch.get_num_threads()} threads", *process.notes())
    return f"cpu ({', '.join(facts)})"

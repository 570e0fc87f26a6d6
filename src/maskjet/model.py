"""Load a model, run it on images and streams, and ask for its report."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Union, overload

import torch

from maskjet import process
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig, Implementation, Precision
from maskjet.detections import Detections
from maskjet.engine import pipeline
from maskjet.engine.engine import Engine
from maskjet.engine.steps import Postprocessing
from maskjet.errors import InputError
from maskjet.media.frames import Frame, split_sources
from maskjet.media.images import to_image
from maskjet.networks import Network, find_family, read_network
from maskjet.spec import ModelSpec, TwoStageSpec

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

    from maskjet.networks.torchvision.detector import StaticDetector

__all__ = ["ImageLike", "Model", "Report", "Threshold", "load", "read_network"]

ImageLike = Union["np.ndarray[Any, Any]", torch.Tensor, str, os.PathLike[str], "PILImage"]
"""uint8 [H, W, 3] RGB array or tensor, path, or PIL image."""

Threshold = float | Mapping[str, float]
"""One threshold for all classes, or one by class name; classes not named keep the default."""


@dataclass(frozen=True)
class Report:
    """How a model runs, and counts of its work so far."""

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
    """A network with its pre- and postprocessing, ready to run; see `load`.

    Args:
        network: The network in eval mode, on the CPU; owned by the model, which moves and converts it.
        config: How to run it.
        threshold: A confidence must exceed it, 0..1.
        classes: Names of the classes to report; None for all.
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
        postprocessing = Postprocessing(_thresholds(self.spec, threshold), _class_map(self.spec, classes))
        self._engine = Engine(find_family(network).make_steps(network, config, postprocessing))

    @overload
    def predict(self, images: ImageLike) -> Detections: ...  # type: ignore[overload-overlap] # a str is a sequence
    @overload
    def predict(self, images: Sequence[ImageLike]) -> list[Detections]: ...

    def predict(self, images: ImageLike | Sequence[ImageLike]) -> Detections | list[Detections]:
        """Detect instances on one image or several.

        Args:
            images: uint8 [H, W, 3] RGB array or tensor, path or PIL image; or a list of these, of any sizes.

        Returns:
            The detections, most confident first; for a list, one per image in its order.

        Raises:
            InputError: An image is not as above.
            SourceError: A file can't be read.
            UnsupportedError: The model is closed, or belongs to another process.
            DeviceError: The device failed.
        """
        if not isinstance(images, list | tuple):
            return pipeline.predict(self._engine, lambda _: _to_tensor(images, "image"), 1)[0]  # type: ignore[arg-type]
        return pipeline.predict(
            self._engine, lambda number: _to_tensor(images[number], f"images[{number}]"), len(images)
        )

    def stream(
        self,
        source: Any,
        *,
        depth: int = 2,
        batch: int | None = None,
        drop_late: bool = False,
        stop: threading.Event | None = None,
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

        Yields:
            Each frame with its detections, those of a source in order. A frame that can't be decoded is left out and
            recorded in the source's `bad_frames`.

        Raises:
            InputError: An argument is not as above, or an opened source is given twice or is read already.
            UnsupportedError: The model is closed, or belongs to another process.
            SourceError: A named file does not exist, before work starts; or a source can't be opened or breaks. With
                several sources the others go on, and the error is raised at the end.
            DeviceError: The device failed on a frame; the frames before it were yielded.
        """
        sources = split_sources(source)
        if batch is None:
            batch = min(len(sources), self.config.batch)
        if not 1 <= depth <= 8:
            raise InputError(f"depth must be 1..8, got {depth}.")
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}.")
        self._engine.check()
        self._engine.steps.prepare(batch)  # now, as it would delay the first frame
        return pipeline.stream(self._engine, sources, depth=depth, batch=batch, drops_late=drop_late, stop=stop)

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


def load(
    model: str | os.PathLike[str] | StaticDetector,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    threshold: Threshold | None = None,
    max_detections: int | None = None,
    classes: Sequence[str] | None = None,
    implementation: Implementation = "auto",
    compile: bool | None = None,  # noqa: A002 - PyTorch's word
) -> Model:
    """Load a model.

    Args:
        model: "demo" for the embedded one; a named size such as "rf-detr-seg-nano", with `weights`; the path of a
            checkpoint, whose size is then recognised; or a torchvision detector that `maskjet.rewrites.optimize` made,
            which is copied.
        weights: Path of the named size's checkpoint: rfdetr's .pt or .pth, or safetensors; fine-tuned ones bring their
            classes along.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "fp32", "fp16" (GPU only) or "bf16"; "auto" is fp16 on a GPU and fp32 on a CPU.
        threshold: A confidence must exceed it, 0..1; or one by class name. None is 0.5, or a torchvision
            detector's own.
        max_detections: Most detections per image, the most confident ones. None is 100, or a torchvision detector's
            own.
        classes: Names of the classes to report; None for all.
        implementation: Implementation of the steps around the network: "auto", "reference", "triton" or "cpu".
        compile: Whether to make the network faster with `torch.compile`. The first time on a machine it takes 20 s for
            each batch size and, for torchvision detectors, each frame size. None compiles on a GPU, except torchvision
            detectors.

    Returns:
        The model, ready to run.

    Raises:
        InputError: An argument is not as above.
        CheckpointError: The weights are missing, truncated, foreign or of another size.
        UnsupportedError: The device or precision is not available here, or the process was forked from one where
            PyTorch's threads ran.

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
        max_detections=defaults.max_detections if max_detections is None else max_detections,
        implementation=implementation,
        compile=compile,
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
            raise InputError(f"{argument} must name classes of {spec.name}, got {name!r}; known: {', '.join(by_name)}.")
    return [by_name[name] for name in names]


def _thresholds(spec: ModelSpec | TwoStageSpec, threshold: Threshold) -> torch.Tensor:
    """The threshold of each class, float32 [class_logits]."""
    by_name = threshold if isinstance(threshold, Mapping) else {}
    everywhere = DEFAULT_THRESHOLD if isinstance(threshold, Mapping) else threshold
    for value in (everywhere, *by_name.values()):
        if not 0 <= value <= 1:
            raise InputError(f"threshold must be 0..1, got {value}.")
    thresholds = torch.full((spec.class_logits,), float(everywhere))
    for class_id, value in zip(_class_ids(spec, list(by_name), "threshold"), by_name.values(), strict=True):
        thresholds[class_id] = value
    return thresholds


def _class_map(spec: ModelSpec | TwoStageSpec, classes: Sequence[str] | None) -> torch.Tensor:
    """The class id to report for each class, int32 [class_logits]; -1 if it was not asked for."""
    everything = torch.arange(spec.class_logits, dtype=torch.int32)
    if classes is None:
        return everything
    if isinstance(classes, str) or not classes:
        raise InputError(f"classes must be a list of names, at least one, got {classes!r}.")
    chosen = torch.full_like(everything, -1)
    ids = _class_ids(spec, classes, "classes")
    chosen[ids] = everything[ids]
    return chosen


def _to_tensor(image: ImageLike, name: str) -> torch.Tensor:
    """Convert an image to uint8 [H, W, 3], sharing its memory if possible."""
    if isinstance(image, torch.Tensor) and image.is_cuda:
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise InputError(f"{name} must be uint8 [H, W, 3] RGB, got {image.dtype} {list(image.shape)}.")
        return image
    array = to_image(image, name)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    facts = (platform.machine(), f"{torch.get_num_threads()} threads", *process.notes())
    return f"cpu ({', '.join(facts)})"

"""Load a model, run it on images and streams, and ask it what it runs on."""

from __future__ import annotations

import os
import platform
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, overload

import torch

from maskjet import ops
from maskjet.config import EngineConfig, Precision
from maskjet.detections import Detections
from maskjet.engine.decoding import decode_ahead
from maskjet.engine.eager import EagerEngine, Postprocessing
from maskjet.errors import InputError, UnsupportedError
from maskjet.frames import Frame
from maskjet.images import to_image
from maskjet.networks.rfdetr.checkpoint import Checkpoint, load_network, read_checkpoint, resolve_spec
from maskjet.networks.rfdetr.network import RFDETR
from maskjet.ops.record import Implementation
from maskjet.spec import SPECS, ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

ImageLike = Union["np.ndarray[Any, Any]", torch.Tensor, str, os.PathLike[str], "PILImage"]
"""uint8 [H, W, 3] RGB array or tensor, path, or PIL image."""

Threshold = float | Mapping[str, float]
"""One threshold for all classes, or one by class name; classes not named keep the default."""

DEFAULT_THRESHOLD = 0.5
_DEMO = "demo"


@dataclass(frozen=True)
class Report:
    """What a model runs on, and what went through it so far."""

    model: str
    """The spec's name."""
    device: str
    """The device, with its name."""
    precision: str
    """Of the network."""
    engine: str
    """What drives the steps."""
    steps: Mapping[str, str]
    """Step to the implementation that serves it and why it was chosen."""
    images: int
    """Images processed so far."""
    detections: int
    """Detections returned so far."""
    fallbacks: Mapping[str, int]
    """What took a slower path in this process so far, by op and reason."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        rows = {
            "model": self.model,
            "device": self.device,
            "precision": self.precision,
            "engine": self.engine,
            **self.steps,
            "so far": f"{self.images} images, {self.detections} detections",
            "fallbacks": ", ".join(f"{why}: {times}" for why, times in self.fallbacks.items()) or "none",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())


class Model:
    """A network with its pre- and postprocessing, ready to run; see `load`.

    Args:
        network: In eval mode, on the CPU.
        config: How to run it.
        threshold: What a confidence must exceed, 0..1.
        classes: Names of the classes to report; None for all.
    """

    def __init__(
        self,
        network: RFDETR,
        config: EngineConfig,
        *,
        threshold: Threshold = DEFAULT_THRESHOLD,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.spec = network.spec
        self.config = config
        self._engine: EagerEngine | None = EagerEngine(
            network, config, Postprocessing(_thresholds(self.spec, threshold), _class_map(self.spec, classes))
        )

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
            UnsupportedError: The model is closed.
        """
        if not isinstance(images, list | tuple):
            return self._running().run([_to_tensor(images, "image")])[0]  # type: ignore[arg-type]
        found: list[Detections] = []
        for start in range(0, len(images), self.config.batch):
            batch = images[start : start + self.config.batch]
            found += self._running().run([_to_tensor(image, f"images[{start + i}]") for i, image in enumerate(batch)])
        return found

    def stream(self, source: Any, *, depth: int = 2) -> Generator[tuple[Frame, Detections]]:
        """Detect instances frame by frame.

        Frames are decoded ahead in a thread of their own, at most `depth` of them, so that decoding and detecting
        overlap and a slow consumer holds decoding back.

        Args:
            source: Whatever `maskjet.frames.open_source` takes, or a source it returned: an image, folder, glob, video,
                camera, URL, array, or a list of these.
            depth: Frames in flight, 1 to 8.

        Yields:
            Each frame with its detections, in order. A frame that can't be decoded is left out and recorded in the
            source's `bad_frames`.

        Raises:
            SourceError: The source can't be opened.
            InputError: depth is out of range.
        """
        if not 1 <= depth <= 8:
            raise InputError(f"depth must be 1..8, got {depth}.")
        with closing(decode_ahead(source, depth)) as frames:
            for frame in frames:
                yield frame, self.predict(frame.image)

    def report(self) -> Report:
        """What each step runs on and why, and what was done so far."""
        engine = self._running()
        return Report(
            model=self.spec.name,
            device=_device_name(engine.device),
            precision=self.config.precision,
            engine="eager, step by step",
            steps={name: f"{choice.name} ({choice.why})" for name, choice in engine.choices.items()},
            images=engine.done["images"],
            detections=engine.done["detections"],
            fallbacks=dict(ops.FALLBACKS),
        )

    def close(self) -> None:
        """Free the network; may be called twice."""
        self._engine = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> EagerEngine:
        if self._engine is None:
            raise UnsupportedError("The model is closed; load it again.")
        return self._engine


def load(
    model: str | os.PathLike[str],
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    threshold: Threshold = DEFAULT_THRESHOLD,
    max_detections: int = 100,
    classes: Sequence[str] | None = None,
    implementation: Implementation = "auto",
) -> Model:
    """Load a model.

    Args:
        model: "demo" for the embedded one; a named size such as "rf-detr-seg-nano", with `weights`; or the path of a
            checkpoint, whose size is then recognised.
        weights: Path of the named size's checkpoint: rfdetr's .pt or .pth, or safetensors; fine-tuned ones bring their
            classes along.
        device: "auto", "cpu", "cuda" or "cuda:N".
        precision: "fp32", "fp16" (GPU only) or "bf16".
        threshold: What a confidence must exceed, 0..1; or one by class name.
        max_detections: Most detections per image, the most confident ones.
        classes: Names of the classes to report; None for all.
        implementation: Of the steps around the network: "auto", "reference" or "cpu".

    Returns:
        The model, ready to run.

    Raises:
        InputError: An argument is not as above.
        CheckpointError: The weights are missing, truncated, foreign or of another size.
        UnsupportedError: The device or precision is not to be had here.

    Example:
        >>> import maskjet
        >>> model = maskjet.load("demo")
        >>> len(model.predict(maskjet.traffic.sample(seed=3).image)) > 0
        True
    """
    config = EngineConfig(
        device=device, precision=precision, max_detections=max_detections, implementation=implementation
    )
    return Model(read_network(model, weights), config, threshold=threshold, classes=classes)


def read_network(model: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> RFDETR:
    """Find and read the network that `load` was asked for.

    Args:
        model: As for `load`.
        weights: As for `load`.

    Returns:
        The network in eval mode, float32, on the CPU.

    Raises:
        InputError: Neither a known name nor a file; or a name without weights, or weights without a name.
        CheckpointError: As for `load`.
    """
    name = os.fspath(model)
    if name in SPECS:
        if weights is None:
            raise InputError(
                f"weights must be the path of a checkpoint for {name!r}, got None; maskjet downloads none."
            )
        checkpoint = read_checkpoint(Path(weights))
        return load_network(resolve_spec(checkpoint, SPECS[name]), checkpoint)
    if weights is not None:
        raise InputError(f"model must be a named size when weights are given, got {name!r}; known: {', '.join(SPECS)}.")
    if name == _DEMO:
        with as_file(files("maskjet.networks.demo") / "weights.safetensors") as path:
            return _fill(read_checkpoint(path))
    if not Path(name).exists():
        raise InputError(f"model must be a name or a checkpoint's path, got {name!r}; names: demo, {', '.join(SPECS)}.")
    return _fill(read_checkpoint(Path(name)))


def _fill(checkpoint: Checkpoint) -> RFDETR:
    return load_network(resolve_spec(checkpoint), checkpoint)


def _class_ids(spec: ModelSpec, names: Sequence[str], argument: str) -> list[int]:
    by_name = {name: class_id for class_id, name in spec.class_names.items()}
    for name in names:
        if name not in by_name:
            raise InputError(f"{argument} must name classes of {spec.name}, got {name!r}; known: {', '.join(by_name)}.")
    return [by_name[name] for name in names]


def _thresholds(spec: ModelSpec, threshold: Threshold) -> torch.Tensor:
    """float32 [class_logits]."""
    by_name = threshold if isinstance(threshold, Mapping) else {}
    everywhere = DEFAULT_THRESHOLD if isinstance(threshold, Mapping) else threshold
    for value in (everywhere, *by_name.values()):
        if not 0 <= value <= 1:
            raise InputError(f"threshold must be 0..1, got {value}.")
    thresholds = torch.full((spec.class_logits,), float(everywhere))
    for class_id, value in zip(_class_ids(spec, list(by_name), "threshold"), by_name.values(), strict=True):
        thresholds[class_id] = value
    return thresholds


def _class_map(spec: ModelSpec, classes: Sequence[str] | None) -> torch.Tensor:
    """int32 [class_logits]: every class as itself, or -1 if it was not asked for."""
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
    """uint8 [H, W, 3], sharing memory where it can."""
    if isinstance(image, torch.Tensor) and image.is_cuda:
        if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[-1] != 3:
            raise InputError(f"{name} must be uint8 [H, W, 3] RGB, got {image.dtype} {list(image.shape)}.")
        return image
    array = to_image(image, name)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"

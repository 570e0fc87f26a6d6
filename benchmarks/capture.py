"""Save the ops' calls of a run, with the references' results, in a folder; read them to replay them.

A folder holds capture.json (format version, source, constant arguments) and one safetensors file per frame: the frame
as PNG, the network's output, and the references' results. Only the detections' mask logits are kept; those of the other
queries, which no op reads, are zeros when a call is read.

    python -m benchmarks.capture street.mp4 --out captured
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from benchmarks.command import DeviceOption, start
from maskjet import __version__, ops
from maskjet.cli.options import ModelOption, print_result, progress
from maskjet.config import DEFAULT_THRESHOLD, EngineConfig
from maskjet.engine.slot import EagerSlot
from maskjet.errors import InputError, SourceError
from maskjet.host.files import write_json
from maskjet.model import read_network
from maskjet.networks.rfdetr import RFDETR, family
from maskjet.postprocessing import Postprocessing
from maskjet.sources.frames import open_source

FORMAT = 1
"""Version of the folder's format."""
_MANIFEST = "capture.json"
_SELECTION = ("count", "query", "class_id", "confidence", "xyxy")
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """One call of an op, as an engine made it."""

    op: str
    """The op's name."""
    inputs: dict[str, Any]
    """Keyword arguments of the op's public function; tensors on the CPU."""
    expected: Any
    """The reference's result; tensors on the CPU."""


@torch.inference_mode()
def write(
    source: Any,
    out: Path,
    *,
    model: str = "demo",
    frames: int = 100,
    device: str = "auto",
    on_progress: Callable[[], None] = lambda: None,
) -> int:
    """Run a model over a source with the reference implementations and save every call.

    Args:
        source: A source that `maskjet.open_source` takes.
        out: The folder to write; must hold no capture yet.
        model: A model of `maskjet.load`; it must have masks.
        frames: Frames to save, at least 1; fewer if the source ends.
        device: "auto", "cpu", "cuda" or "cuda:N". The references' results hold for this device: on another, scores
            that differ in the last bit may rank differently.
        on_progress: Called after each frame.

    Returns:
        The number of saved frames.

    Raises:
        InputError: An argument is not as above.
        SourceError: The source can't be opened, or has no frame.
    """
    if frames < 1:
        raise InputError(f"frames must be at least 1, got {frames}.")
    if (out / _MANIFEST).exists():
        raise InputError(f"out must be a folder without a capture, got {str(out)!r}.")
    resolved = EngineConfig(device=device).resolve_device()
    network = read_network(model)
    if not network.spec.has_masks:
        raise InputError(f"model must have masks, {model!r} has none.")
    arguments = _arguments(network)
    recorder = _Recorder(network, arguments, str(resolved))
    saved = 0
    with open_source(source) as opened:
        out.mkdir(parents=True, exist_ok=True)
        for frame in islice(opened, frames):
            tensors = recorder.run(np.ascontiguousarray(frame.image))
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, _path(out, saved))
            saved += 1
            on_progress()
    if not saved:
        raise SourceError(f"source must have a frame that can be decoded, {opened.name!r} has none.")
    spec = network.spec
    manifest = {
        "format": FORMAT,
        "maskjet": __version__,
        "model": spec.name,
        "source": opened.name,
        "device": str(resolved),
        "frames": saved,
        "masks": [spec.queries, *spec.mask_hw],
        "arguments": arguments,
    }
    write_json(out / _MANIFEST, manifest, "out")
    return saved


def _arguments(network: RFDETR) -> dict[str, dict[str, Any]]:
    """Arguments that an engine passes to each op besides a frame's tensors, as JSON types."""
    spec = network.spec
    return {
        "preprocess": {"size": [*spec.input_hw], "mean": list(spec.mean), "std": list(spec.std)},
        "select": {
            "threshold": [DEFAULT_THRESHOLD] * spec.class_logits,
            "class_map": list(range(spec.class_logits)),
            "max_detections": 100,
            "num_select": spec.selected_pairs,
        },
        "encode_masks": {},
    }


class _Recorder:
    """Runs an engine's steps with the reference implementations, and keeps the last call of each op."""

    def __init__(self, network: RFDETR, arguments: Mapping[str, Any], device: str) -> None:
        config = EngineConfig(
            device=device, precision="fp32", engine="eager", compile=False, implementation="reference"
        )
        per_class = arguments["select"]
        postprocessing = Postprocessing(
            torch.tensor(per_class["threshold"]),
            torch.tensor(per_class["class_map"], dtype=torch.int32),
            per_class["max_detections"],
        )
        self._steps = family.make_steps(network, config, postprocessing)
        self._slot = EagerSlot(self._steps)
        self._calls: dict[str, tuple[tuple[Any, ...], Any]] = {}
        for name, choice in self._steps.choices.items():
            self._steps.choices[name] = replace(choice, run=self._recorded(name, choice.run))

    def _recorded(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def record(*given: Any, **options: Any) -> Any:
            returned = run(*given, **options)
            self._calls[name] = given, options.get("out", returned)
            return returned

        return record

    def run(self, image: np.ndarray[Any, Any]) -> Tensors:
        """Run the steps on one frame; returns the ops' inputs and results."""
        self._slot.submit([torch.from_numpy(image)], 1)
        self._slot.result()
        _, inputs = self._calls["preprocess"]
        (logits, boxes, _), selection = self._calls["select"]
        (mask_logits, _, _), (strings,) = self._calls["encode_masks"]
        rows = torch.unique(selection.queries()[0])
        _, png = cv2.imencode(".png", image)  # RGB instead of OpenCV's BGR, and RGB again when read
        return {
            "preprocess.png": torch.from_numpy(png.reshape(-1)),
            "preprocess.out": inputs,
            "select.logits": logits,
            "select.boxes": boxes,
            **{f"select.{name}": getattr(selection, name).clone() for name in _SELECTION},
            "encode_masks.rows": rows,
            "encode_masks.mask_logits": mask_logits[0, rows.long()],
            "encode_masks.strings": torch.tensor(list(b"".join(strings)), dtype=torch.uint8),
            "encode_masks.lengths": torch.tensor([len(text) for text in strings], dtype=torch.int64),
        }


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a capture's folder.

    Raises:
        InputError: The folder holds no capture, or one in another format.
    """
    try:
        read = json.loads((folder / _MANIFEST).read_text())
        manifest = {name: read[name] for name in ("format", "frames", "masks", "arguments")}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"capture must be a folder that benchmarks.capture wrote, got {str(folder)!r}.") from error
    if manifest["format"] != FORMAT:
        raise InputError(f"{str(folder)!r} must be a capture in format {FORMAT}, got {manifest['format']!r}.")
    return manifest


def read_calls(folder: Path, manifest: Mapping[str, Any], index: int) -> list[Call]:
    """Read the calls of a frame, in the order in which they were made.

    Args:
        folder: The capture.
        manifest: The manifest that `read_manifest` returned.
        index: Position of the frame, from 0.

    Raises:
        InputError: The frame's file is missing or damaged.
    """
    path = _path(folder, index)
    try:
        return _calls(load_file(path), manifest)
    except (OSError, KeyError, ValueError, RuntimeError, cv2.error, SafetensorError) as error:
        raise InputError(f"{str(path)!r} must be a whole frame of a capture, got {error!r}.") from error


def _calls(tensors: Tensors, manifest: Mapping[str, Any]) -> list[Call]:
    arguments, per_class = manifest["arguments"], manifest["arguments"]["select"]
    frames = torch.from_numpy(cv2.imdecode(tensors["preprocess.png"].numpy(), cv2.IMREAD_COLOR))
    sizes = [(frames.shape[0], frames.shape[1])]
    selection = ops.Selection(**{name: tensors[f"select.{name}"] for name in _SELECTION})
    masks = torch.zeros(1, *manifest["masks"])
    masks[0, tensors["encode_masks.rows"].long()] = tensors["encode_masks.mask_logits"]
    predictions = {"logits": tensors["select.logits"], "boxes": tensors["select.boxes"], "image_sizes": sizes}
    as_tensors = {  # as an engine passes them
        "threshold": torch.tensor(per_class["threshold"]),
        "class_map": torch.tensor(per_class["class_map"], dtype=torch.int32),
    }
    found = {"mask_logits": masks, "query": selection, "image_sizes": sizes}
    strings = _split(bytes(tensors["encode_masks.strings"].tolist()), tensors["encode_masks.lengths"].tolist())
    return [
        Call("preprocess", {"frames": frames, **arguments["preprocess"]}, tensors["preprocess.out"]),
        Call("select", {**predictions, **arguments["select"], **as_tensors}, selection),
        Call("encode_masks", found, [strings]),
    ]


def _split(joined: bytes, lengths: list[int]) -> list[bytes]:
    parts, start = [], 0
    for length in lengths:
        parts.append(joined[start : start + length])
        start += length
    return parts


def _path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.safetensors"


def main(
    source: Annotated[str, typer.Argument(help="Image, folder, glob, video, camera number or URL.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    model: ModelOption = "demo",
    frames: Annotated[int, typer.Option(help="Frames to save; fewer if the source ends.")] = 100,
    device: DeviceOption = "auto",
) -> None:
    """Save the ops' calls of a run, with the references' results, for benchmarks.replay."""
    with progress("capturing", frames) as advance:
        saved = write(source, out, model=model, frames=frames, device=device, on_progress=advance)
    print_result(f"wrote {saved} frames to {out}")


if __name__ == "__main__":
    start(main)

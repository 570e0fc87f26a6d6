"""The contract between the engine and a network family: the steps of a frame, with their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.calls import Postprocessing
from maskjet.config import EngineConfig, Step, torch_dtype
from maskjet.detections import Detections, assemble
from maskjet.engine.runtime import Runtime
from maskjet.ops.canvas import Canvas, Region
from maskjet.ops.encode_masks.strings import Cut, Strings
from maskjet.ops.preprocess import check_frames
from maskjet.ops.preprocess.yuv import YUVFrames
from maskjet.ops.select import check_rows
from maskjet.ops.selection import MaskQueries, Selection, SizeTable, check_image_sizes
from maskjet.spec import ModelSpec, TwoStageSpec

_CPU = torch.device("cpu")
_NO_RANGE = nullcontext()


class Rules:
    """A slot's own copy of a `Postprocessing`, on the device that reads it; captured graphs read it at each replay.

    Args:
        postprocessing: The first values.
        device: Device of the step that chooses detections.
    """

    def __init__(self, postprocessing: Postprocessing, device: torch.device) -> None:
        self.current = postprocessing
        """What the tensors hold; its own tensors live at least as long as a copy of them is under way."""
        with torch.inference_mode():  # compiled networks tell such tensors from others
            self.thresholds = postprocessing.thresholds.to(device, copy=True)
            self.class_map = postprocessing.class_map.to(device, copy=True)

    def take(self, postprocessing: Postprocessing) -> None:
        """Copy other values to the device, ordered on the current stream, while no batch of the slot is under way."""
        self.thresholds.copy_(postprocessing.thresholds, non_blocking=True)
        self.class_map.copy_(postprocessing.class_map, non_blocking=True)
        self.current = postprocessing


class Steps(ABC):
    """A network on its device, and the ops before and after it; shared by all slots of an engine.

    Args:
        spec: Describes the network.
        config: How to run; its device must exist here.
        postprocessing: What is reported unless a call asks for something else.
        named: Steps whose implementation the config may choose, each with the type of its first tensor.
        precision: Name of the precision of a network that has its own; None for the config's.
    """

    resizing = "stretch"
    """How frames become inputs, for people."""
    runtime: Runtime
    """Runs the network."""

    def __init__(
        self,
        spec: ModelSpec | TwoStageSpec,
        config: EngineConfig,
        postprocessing: Postprocessing,
        named: Mapping[Step, torch.dtype],
        precision: str | None = None,
    ) -> None:
        self.spec, self.config, self.postprocessing = spec, config, postprocessing
        self.device = config.resolve_device()
        self.precision = precision or config.resolve_precision(self.device)
        self.dtype = torch_dtype(self.precision)
        self.choices: dict[str, ops.Choice] = {}
        """The implementation that serves each step, ready to run on tensors of the device."""
        self.devices: dict[str, torch.device] = {}
        """The device of each step: the network's, or the CPU if that was asked for."""
        self.fallbacks: Counter[str] = Counter()
        """Slower paths taken, by step and reason."""
        self.mark: Callable[..., AbstractContextManager[Any]] = torch.cuda.nvtx.range if config.nvtx else _no_range
        """Makes an NVTX range if those were asked for, else an empty context; takes a name, as `str.format` does."""
        for step, dtype in named.items():
            asked = config.implementation_of(step)
            where = self.devices[step] = _CPU if asked == "cpu" else self.device
            choice = ops.RECORDS[step].choose(asked, torch.empty(0, dtype=dtype, device=where))
            self.choices[step] = choice if where == self.device else replace(choice, run=_on_cpu(choice.run))

    @abstractmethod
    def prepare(self, batch: int) -> None:
        """Make the network ready for this batch size before the first frame."""

    @abstractmethod
    def work(self, batch: int, size_hw: tuple[int, int], rules: Rules) -> Work:
        """Allocate buffers for batches of frames of one size, and make them ready to run; `rules` is shared."""

    def rules(self, postprocessing: Postprocessing | None = None) -> Rules:
        """Copy a postprocessing, or else the model's own, to the device that chooses detections."""
        return Rules(postprocessing or self.postprocessing, self.devices.get("select", self.device))

    def preprocessing(self, region: Region) -> Mapping[str, Any]:
        """Options of preprocess that resize frames to a part of the input and normalise them for this network."""
        return {
            "region": region,
            "mean": self.spec.mean,
            "std": self.spec.std,
            "order": "rgb",
            "resample": self.config.resample,
        }


def _no_range(_name: str, *_values: object) -> AbstractContextManager[None]:
    return _NO_RANGE


def _on_cpu(run: Callable[..., Any]) -> Callable[..., None]:
    """Wrap a CPU implementation so that it takes and fills tensors on a GPU; waits for the GPU."""

    def run_on_cpu(*given: Any, out: Any, **options: Any) -> None:
        on_host = out.to(_CPU) if hasattr(out, "to") else out  # strings are on the host already
        run(*(value.to(_CPU) for value in given), out=on_host, **options)
        if on_host is not out:
            out.copy_(on_host)

    return run_on_cpu


class Work(ABC):
    """The steps of one kind of batch, with their buffers; detections and strings share one piece of memory.

    Args:
        steps: The network and its ops.
        batch: Frames that the network sees at once.
        size_hw: (height, width) of each frame, in pixels.
        rules: Which detections are reported; its values may change between batches.
        marks: Number of 32-bit words after the detections, for the family's own use.
        canvas: What the network's input shows; None for the frame.

    Raises:
        InputError: The frames, or batch times `max_detections`, are too large.
    """

    def __init__(
        self,
        steps: Steps,
        batch: int,
        size_hw: tuple[int, int],
        rules: Rules,
        *,
        marks: int = 0,
        canvas: Canvas | None = None,
    ) -> None:
        check_frames(torch.empty(batch, *size_hw, 3, dtype=torch.uint8, device="meta"))
        self._rows = rows = steps.config.max_detections
        check_rows(batch, rows)
        self.steps, self.batch, self.size_hw, self.rules = steps, batch, size_hw, rules
        canvases = [canvas or Canvas.of(size_hw)] * batch
        self.sizes = SizeTable.of(check_image_sizes([size_hw] * batch, batch), steps.device, canvases)
        self._length, self._fields = Selection.length(batch, rows), Selection.slices(batch, rows)
        lead = 4 * (self._length + marks)
        self.strings: Strings | None = None
        choice = steps.choices.get("encode_masks")
        if choice is not None and choice.allocate is not None:
            self.strings = choice.allocate(batch, rows, size_hw[1], steps.device, lead=lead, fallbacks=steps.fallbacks)
        self.results = (
            torch.empty(lead, dtype=torch.uint8, device=steps.device) if self.strings is None else self.strings.memory
        )
        """uint8: the caller copies it to the host after `run`."""
        self.words = self.results[:lead].view(torch.int32)
        """int32: the selection, then the marks."""
        self.selection = Selection.within(self.words[: self._length], batch, rows)
        """The detections; `run` writes them."""

    @abstractmethod
    def run(self, frames: torch.Tensor | YUVFrames) -> None:
        """Detect on uint8 [B, H, W, 3] or NV12, on `devices["preprocess"]` and the current stream.

        If all steps run as Triton's kernels it never waits, and can be captured in a CUDA graph.
        """

    def encode_masks(self, mask_logits: torch.Tensor, boxes: torch.Tensor | None = None) -> None:
        """Encode the masks of the selection.

        Args:
            mask_logits: [B, Q, h, w].
            boxes: The box that each mask fills; see `MaskQueries.boxes`.
        """
        queries = MaskQueries(self.selection.count, self.selection.query, mask_logits.shape[1], boxes)
        with self.steps.mark("encode_masks"):
            self.steps.choices["encode_masks"].run(mask_logits, queries, self.sizes, out=self.strings)

    def read(self, copied: NDArray[np.uint8], images: int) -> list[Detections]:
        """Read the detections of the first images of the batch; they share one copy of its results.

        What did not fit into the buffers is worked on again, on the current stream, and waited for.

        Args:
            copied: Finished copy of `results` on the host; not kept.
            images: How many images to read.
        """
        kept = copied.copy() if self.strings is None else self.strings.keep(copied)
        words = kept[: 4 * self._length].view(np.int32)
        floats = words.view(np.float32)
        counts, _, class_ids, scores, corners = self._fields
        class_id, confidence, xyxy = words[class_ids], floats[scores], floats[corners].reshape(-1, 4)
        size_hw, names, wanted = self.size_hw, self.steps.spec.class_names, self.rules.current.max_detections
        cuts = None if self.strings is None else self.strings.read(kept, images)
        found = []
        for image, count in enumerate(words[counts][:images].tolist()):
            start = image * self._rows
            rows = slice(start, start + min(count, wanted))
            cut_rle = None if cuts is None else partial(_to_rle, cuts[image], size_hw, wanted)
            found.append(assemble(size_hw, xyxy[rows], confidence[rows], class_id[rows], names, cut_rle))
        return found


def _to_rle(cut: Cut, size_hw: tuple[int, int], wanted: int) -> list[dict[str, Any]]:
    """COCO RLEs of an image's first strings."""
    return [{"size": [*size_hw], "counts": text} for text in cut()[:wanted]]

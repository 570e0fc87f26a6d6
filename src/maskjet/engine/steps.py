"""Interface between the engine and a network family: the steps of a batch and their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.config import EngineConfig, Step, torch_dtype
from maskjet.detections import Detections, assemble
from maskjet.engine.duplicates import drop_duplicates
from maskjet.engine.runtime import Runtime
from maskjet.ops.canvas import Canvas, Region
from maskjet.ops.frame_table import NO_CHROMA, ROW, DeviceFrames, FrameTable, pack_row
from maskjet.ops.memory import Scratch, pin
from maskjet.ops.preprocess import check_frames
from maskjet.ops.preprocess.yuv import YUVFrames
from maskjet.ops.select import check_rows
from maskjet.ops.selection import MaskQueries, Selection, check_image_sizes
from maskjet.postprocessing import Postprocessing
from maskjet.spec import ModelSpec, TwoStageSpec

if TYPE_CHECKING:
    from maskjet.ops.encode_masks.triton import Cut, DeviceStrings

WIDTH = 4096
"""Widest frames, averaged over a batch, in pixels, whose mask edges fit into a captured graph's buffers."""
_NO_RANGE = nullcontext()
_MOST_SIZES = 4096  # cached frame sizes with their table rows
_UNKNOWN = (0, 0, 0)  # placeholder strides: frames passed as tensors carry their own

Frames = DeviceFrames | Sequence[torch.Tensor | YUVFrames]
"""A batch: a table of addresses on the GPU, or one tensor per frame, uint8 [1, H, W, 3] RGB or YUV."""


class Place(NamedTuple):
    """Where a frame of some size lies in the network's input."""

    region: Region
    """Rectangle of the network's input that the frame fills, in input pixels."""
    canvas: Canvas
    """The area that the input shows, in pixels of the frame."""


class PostprocessBuffers:
    """A slot's thresholds and class map on the device; captured graphs read them at each replay."""

    def __init__(self, postprocessing: Postprocessing, device: torch.device) -> None:
        self.current = postprocessing
        """The values that were uploaded last; held so that their tensors outlive an asynchronous copy."""
        with torch.inference_mode():  # compiled networks treat inference tensors as another type
            self.thresholds = postprocessing.thresholds.to(device, copy=True)
            self.class_map = postprocessing.class_map.to(device, copy=True)

    def upload(self, postprocessing: Postprocessing) -> None:
        """Replace the values on the device, on the current stream; no batch of the slot may be in flight."""
        self.thresholds.copy_(postprocessing.thresholds, non_blocking=True)
        self.class_map.copy_(postprocessing.class_map, non_blocking=True)
        self.current = postprocessing


class WorkOptions(NamedTuple):
    """Batch and input size of a `Work`, and the buffers it shares with other works of its slot."""

    batch: int
    """Batch size of the network, in frames."""
    input_hw: tuple[int, int]
    """Size of the network's input, (height, width) in pixels."""
    postprocess: PostprocessBuffers
    """Thresholds and class map; their values may change between batches."""
    scratch: Scratch
    """Memory for intermediate results, shared by works that never run at the same time."""
    width: int = WIDTH
    """Widest frames, averaged over the batch, in pixels, that the buffers serve; see `Work.fits`."""


class Steps(ABC):
    """A network on its device, and the ops before and after it; shared by all slots of an engine.

    Args:
        spec: Describes the network.
        config: How to run; its device must exist here.
        postprocessing: What is reported unless a call asks for something else.
        named: Steps whose implementation the config may choose, each with the dtype of its first tensor.
        precision: Name of the network's own precision; None takes the config's.
        dtype: Type of its input; None is that of the precision.
    """

    resizing = "stretch"
    """How frames are resized to the input, in words, for the report."""
    can_rehearse = False
    """Whether `Work.run` works without launching kernels: it never reads their outputs on the host."""
    runtime: Runtime
    """Runs the network."""

    def __init__(
        self,
        spec: ModelSpec | TwoStageSpec,
        config: EngineConfig,
        postprocessing: Postprocessing,
        named: Mapping[Step, torch.dtype],
        precision: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.spec, self.config, self.postprocessing = spec, config, postprocessing
        self.device = config.resolve_device()
        self.precision = precision or config.resolve_precision(self.device)
        self.dtype = dtype or torch_dtype(self.precision)
        trained = "antialias" if spec.antialias else "bilinear"
        self.resample = trained if config.resample == "auto" else config.resample
        """How pixels are weighted where frames are resized."""
        self.choices: dict[str, ops.Choice] = {}
        """The implementation of each step, which takes and fills tensors of the device."""
        self.fallbacks: Counter[str] = Counter()
        """Slower paths taken, by step and reason."""
        self.mark: Callable[..., AbstractContextManager[Any]] = (
            torch.cuda.nvtx.range if config.nvtx else lambda *_: _NO_RANGE
        )
        """Opens an NVTX range with the arguments of `str.format`; an empty context unless `config.nvtx`."""
        for step, dtype in named.items():
            sample = torch.empty(0, dtype=dtype, device=self.device)
            self.choices[step] = ops.RECORDS[step].choose(config.implementation_of(step), sample)
        self._described: dict[tuple[tuple[int, ...], ...], tuple[bytes, Place]] = {}

    @abstractmethod
    def prepare(self, batch: int) -> None:
        """Make the network ready for this batch size before the first frame."""

    @abstractmethod
    def input_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """The size of the network's input for a frame of some size; frames of equal ones may share a batch."""

    @abstractmethod
    def place(self, size_hw: tuple[int, int]) -> Place:
        """Where a frame of some size, (height, width) in pixels, lies in its input."""

    @abstractmethod
    def work(self, options: WorkOptions) -> Work:
        """Allocate buffers for batches of frames of any sizes; see `Work`."""

    def describe(
        self, size_hw: tuple[int, int], strides: tuple[int, ...] = _UNKNOWN, chroma: tuple[int, ...] = NO_CHROMA
    ) -> tuple[bytes, Place]:
        """A frame's table row without its address, and its place in the input; see `pack_row`.

        Raises:
            InputError: The frame is too large.
        """
        key = (size_hw, strides, chroma)
        if key not in self._described:
            check_frames(torch.empty(1, *size_hw, 3, dtype=torch.uint8, device="meta"))
            check_image_sizes([size_hw], 1)
            place = self.place(size_hw)
            if len(self._described) >= _MOST_SIZES:
                self._described.clear()
            self._described[key] = pack_row(size_hw, strides, place.region, place.canvas, chroma), place
        return self._described[key]

    def postprocess_buffers(self, postprocessing: Postprocessing | None = None) -> PostprocessBuffers:
        """Copy thresholds and class map to the device; by default the model's own."""
        return PostprocessBuffers(postprocessing or self.postprocessing, self.device)

    def preprocessing(self) -> Mapping[str, Any]:
        """Options of `preprocess` for this network, except the region."""
        return {"mean": self.spec.mean, "std": self.spec.std, "order": "rgb", "resample": self.resample}


class Work(ABC):
    """The steps and buffers for one batch size; detections and RLE strings share one buffer.

    After the detections come `marks` 32-bit words for the family's own use.

    Raises:
        InputError: Batch times `max_detections` is too large.
    """

    def __init__(self, steps: Steps, options: WorkOptions, *, marks: int = 0) -> None:
        batch, input_hw, postprocess, scratch, width = options
        self._rows = rows = steps.config.max_detections
        check_rows(batch, rows)
        self.steps, self.batch, self.input_hw, self.postprocess = steps, batch, input_hw, postprocess
        on_host = (
            pin((batch, 4 * ROW))
            if steps.device.type == "cuda"
            else torch.zeros(batch, 4 * ROW, dtype=torch.uint8, device="cpu")
        )
        self.frames = FrameTable(on_host.view(torch.int32), steps.device, steps.place(input_hw).region.padding)
        """Describes the frames of the batch; `put` or the caller writes it before `run`."""
        self._preprocessing = steps.preprocessing()
        self._length, self._fields = Selection.length(batch, rows), Selection.slices(batch, rows)
        lead = 4 * (self._length + marks)
        self.strings: DeviceStrings | None = None
        self._encoded: list[list[bytes]] | None = None  # strings of the last batch, if they were made on the host
        choice = steps.choices.get("encode_masks")
        if choice is not None and choice.allocate is not None:
            self.strings = choice.allocate(
                batch, rows, width, steps.device, lead=lead, fallbacks=steps.fallbacks, scratch=scratch
            )
        self.results = (
            torch.empty(lead, dtype=torch.uint8, device=steps.device) if self.strings is None else self.strings.memory
        )
        """uint8: the selection, the marks and the strings, which the caller copies to the host after `run`."""
        self.words = self.results[:lead].view(torch.int32)
        """int32: the selection, then the marks."""
        self.selection = Selection.within(self.words[: self._length], batch, rows)
        """The detections; `run` writes them."""

    def fits(self, sizes_hw: Sequence[tuple[int, int]]) -> bool:
        """Whether the buffers have room for frames of these sizes, (height, width) in pixels."""
        return self.strings is None or self.strings.fits(sizes_hw)

    @abstractmethod
    def run(self, frames: Frames) -> None:
        """Detect on frames that `self.frames` describes; those given one by one lie on the device.

        Runs on the current stream. If all steps are Triton kernels, it never waits and can be captured in a CUDA graph.
        """

    def preprocess(self, frames: Frames, out: torch.Tensor) -> None:
        """Write the network's input, [B, 3, h, w]."""
        run = self.steps.choices["preprocess"].run
        with self.steps.mark("preprocess"):
            if isinstance(frames, DeviceFrames):
                run(frames, out=out, **self._preprocessing)
                return
            for number, frame in enumerate(frames):
                place = self.steps.describe(self.frames.sizes.hw[number])[1]
                run(frame, out=out[number : number + 1], region=place.region, **self._preprocessing)

    def encode_masks(self, mask_logits: torch.Tensor, boxes: torch.Tensor | None = None) -> None:
        """Encode the selection's masks from logits [B, Q, h, w]; for `boxes` see `MaskQueries.boxes`."""
        queries = MaskQueries(self.selection.count, self.selection.query, mask_logits.shape[1], boxes)
        out = {} if self.strings is None else {"out": self.strings}
        with self.steps.mark("encode_masks"):
            self._encoded = self.steps.choices["encode_masks"].run(mask_logits, queries, self.frames.sizes, **out)

    def read(self, copied: NDArray[np.uint8], images: int) -> list[Detections]:
        """Read the detections of the first `images` images from a host copy of the results.

        `copied` is a finished copy of `results` on the host, and may be overwritten afterwards. Masks that did not fit
        into the buffers are encoded again on the current stream, which waits for the device.
        """
        strings = self.strings if self._encoded is None else None
        kept = copied.copy() if strings is None else strings.keep(copied)
        words = kept[: 4 * self._length].view(np.int32)
        floats = words.view(np.float32)
        counts, _, class_ids, scores, corners = self._fields
        class_id, confidence, xyxy = words[class_ids], floats[scores], floats[corners].reshape(-1, 4)
        names, config, chosen = self.steps.spec.class_names, self.steps.config, self.postprocess.current
        most = chosen.max_detections if chosen.nms >= 1 else self._rows
        cuts: list[Cut] | None = None if strings is None else strings.read(kept, images)
        if self._encoded is not None:
            cuts = [partial(list, each) for each in self._encoded]
        found = []
        for image, count in enumerate(words[counts][:images].tolist()):
            size_hw, start = self.frames.sizes.hw[image], image * self._rows
            rows = slice(start, start + min(count, most))
            cut_rle = None if cuts is None else partial(_to_rle, cuts[image], size_hw, most)
            each = assemble(size_hw, xyxy[rows], confidence[rows], class_id[rows], names, cut_rle)
            if chosen.nms < 1:  # else a slice would make the RLEs of every frame, which nobody may ask for
                each = drop_duplicates(each, chosen.nms, config)[: chosen.max_detections]
            found.append(each)
        return found


def _to_rle(cut: Cut, size_hw: tuple[int, int], wanted: int) -> list[dict[str, Any]]:
    """COCO RLEs of an image's first strings."""
    return [{"size": [*size_hw], "counts": text} for text in cut()[:wanted]]

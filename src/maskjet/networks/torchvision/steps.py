"""The steps of torchvision's two-stage detectors: preprocess, network, scaling to the image, encode_masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from maskjet import ops
from maskjet.config import EngineConfig, Step
from maskjet.detections import Detections
from maskjet.engine.compilation import Compiler
from maskjet.engine.isolation import isolated
from maskjet.engine.steps import Frames, Place, Steps, Work, WorkOptions
from maskjet.networks.torchvision.detector import StaticDetector, StaticOutput
from maskjet.ops.canvas import Canvas, Region
from maskjet.ops.frame_table import HEIGHT, REGION
from maskjet.ops.gpu import on_device
from maskjet.ops.memory import Scratch
from maskjet.ops.selection import Selection
from maskjet.postprocessing import Postprocessing
from maskjet.spec import TwoStageSpec

_HALF = 0.5  # the probability above which a pixel is inside


class TwoStage(Steps):
    """Faster or Mask R-CNN on its device: a detector in float32, which is moved and converted as the config says."""

    spec: TwoStageSpec
    resizing = "torchvision's own rule"

    def __init__(self, network: StaticDetector, config: EngineConfig, postprocessing: Postprocessing) -> None:
        named: dict[Step, torch.dtype] = {"preprocess": torch.uint8}
        if network.spec.has_masks:
            named["encode_masks"] = torch.float32
        super().__init__(network.spec, config, postprocessing, named)
        for op, dtype in (("roi_align", self.dtype), ("nms", torch.float32)):
            self.choices[op] = ops.RECORDS[op].choose("auto", torch.empty(0, dtype=dtype, device=self.device))
            network.implementations[op] = self.choices[op].name
        network.heads.detections_per_img = config.max_detections
        self._layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        self.network = network.to(self.device).to(memory_format=self._layout).cast(self.dtype)
        self.runtime = Compiler(
            self.network,
            lambda batch, *size_hw: (
                self.inputs(batch, *size_hw),
                torch.tensor([size_hw] * batch, dtype=torch.float32, device=self.device),
                self.postprocess_buffers().thresholds,
            ),
            config,
            why_not_by_default="it takes ten seconds and more for each frame size; compile=True does it",
        )

    def prepare(self, batch: int) -> None:
        """Do nothing: compilation needs the frames' size; see `Steps`."""

    def inputs(self, batch: int, height: int, width: int, scratch: Scratch | None = None) -> Tensor:
        """Allocate the network's input from scratch memory; uninitialised."""
        scratch = scratch or Scratch(self.device)
        memory = scratch.take("inputs", batch * 3 * height * width, self.dtype)
        if self._layout is torch.channels_last:
            return memory.view(batch, height, width, 3).permute(0, 3, 1, 2)
        return memory.view(batch, 3, height, width)

    def input_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Size of the padded input, which depends on the frame's size; see `Steps`."""
        return self.spec.padded_hw(size_hw)

    def place(self, size_hw: tuple[int, int]) -> Place:
        """Where a frame lies; see `Steps`. Padding is the mean colour, zero after normalisation, as in torchvision."""
        red, green, blue = self.spec.mean
        region = Region(0, 0, *self.spec.resized_hw(size_hw), (red, green, blue))
        return Place(region, Canvas.of(size_hw))

    def work(self, options: WorkOptions) -> Work:
        """Allocate buffers; see `Steps`."""
        return _Work(self, options, self.runtime.for_batch(options.batch, *options.input_hw))


class _Work(Work):
    """See `Work`; its marks, int32 [B], flag images with more NMS candidates than rows."""

    steps: TwoStage

    def __init__(self, steps: TwoStage, options: WorkOptions, network: Callable[..., StaticOutput]) -> None:
        super().__init__(steps, options, marks=options.batch)
        self._network = network
        self._inputs = steps.inputs(self.batch, *self.input_hw, options.scratch)

    def run(self, frames: Frames) -> None:
        self.preprocess(frames, self._inputs)
        self._detect(self._inputs)

    def _detect(self, inputs: Tensor) -> None:
        """Detect on preprocessed images [B, 3, h, w]."""
        with self.steps.mark("network"):
            rows = self.frames.rows
            resized, originals = rows[:, REGION + 2 : REGION + 4].float(), rows[:, HEIGHT : HEIGHT + 2].float()
            output = self._network(inputs, resized, self.postprocess.thresholds)
            selection, masks, boxes = _to_image(output, resized, originals)
            torch.cat([*selection.words(), (~output.is_exact).int()], out=self.words)
        if masks is not None:
            self.encode_masks(masks, boxes)

    def read(self, copied: NDArray[np.uint8], images: int) -> list[Detections]:
        """Read the detections; images with more candidates than rows are run again, slower. See `Work`."""
        detections = super().read(copied, images)
        marks = copied[: 4 * len(self.words)].view(np.int32)[-self.batch :]
        for image in np.flatnonzero(marks[:images]).tolist():
            detections[image] = self._detect_alone(image)
        return detections

    @isolated()
    def _detect_alone(self, image: int) -> Detections:
        """Detect on an image of the last batch with room for every candidate, and wait for the result."""
        self.steps.fallbacks["two-stage detector: an image with more candidates than fixed rows"] += 1
        every_candidate = partial(self.steps.network, candidates=np.iinfo(np.int32).max)
        with on_device(self.steps.device):
            options = WorkOptions(1, self.input_hw, self.postprocess, Scratch(self.steps.device))
            alone = _Work(self.steps, options, every_candidate)
            alone.frames.take(self.frames, image)
            alone._detect(self._inputs[image : image + 1])
            (found,) = alone.read(alone.results.cpu().numpy(), 1)
        return found


def _to_image(output: StaticOutput, sizes: Tensor, originals: Tensor) -> tuple[Selection, Tensor | None, Tensor | None]:
    """Convert boxes and masks to the pixels of images, as torchvision's transform and paste do.

    Args:
        output: Output of the network.
        sizes: float32 [B, 2]: (height, width) of the images as the network saw them.
        originals: float32 [B, 2]: (height, width) of the images themselves.

    Returns:
        The detections of B images, K rows each; their masks, float32 [B, K, m + 2, m + 2], positive inside, with a
        border that is outside; and the box that each mask fills, int32 [B, K, 4]: left, top, width and height. The last
        two are None without a mask head.
    """
    batch, rows = output.class_id.shape
    xyxy = output.xyxy * (originals / sizes).flip(1).repeat(1, 2)[:, None]
    row = torch.arange(rows, dtype=torch.int32, device=xyxy.device).expand(batch, rows)
    selection = Selection(output.counts, row, output.class_id, output.confidence, xyxy)
    if output.mask_logits is None:
        return selection, None, None
    masks = F.pad(output.mask_logits.float().sigmoid() - _HALF, (1, 1, 1, 1), value=-_HALF)
    # The border of one logit enlarges the box, whose corners are then rounded towards zero.
    half = (xyxy[..., 2:] - xyxy[..., :2]) * 0.5 * (masks.shape[3] / output.mask_logits.shape[3])
    centre = (xyxy[..., 2:] + xyxy[..., :2]) * 0.5
    first, last = (centre - half).int(), (centre + half).int()
    boxes = torch.cat((first, (last - first + 1).clamp(min=1)), dim=2)
    return selection, masks, boxes

"""The steps of torchvision's two-stage detectors: preprocess, network, boxes and masks to the image, encode_masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from maskjet import ops
from maskjet.config import EngineConfig, Step
from maskjet.detections import Detections
from maskjet.engine.compilation import Compiler
from maskjet.engine.steps import Postprocessing, Steps, Work
from maskjet.networks.torchvision.detector import StaticDetector, StaticOutput
from maskjet.ops.gpu import sizes_table
from maskjet.ops.record import FALLBACKS
from maskjet.ops.selection import Selection
from maskjet.spec import TwoStageSpec

_NEVER = 2.0  # exceeded by no score
_HALF = 0.5  # the probability above which a pixel is inside


class Found(NamedTuple):
    """Detections of B images, K rows each, in the pixels of the images."""

    selection: Selection
    masks: torch.Tensor | None
    """float32 [B, K, m + 2, m + 2]: positive inside, with a border that is outside."""
    boxes: torch.Tensor | None
    """int32 [B, K, 4]: left, top, width and height of what each mask fills."""
    is_exact: torch.Tensor
    """bool [B]: as in `StaticOutput`."""


class TwoStage(Steps):
    """Faster or Mask R-CNN on its device.

    Args:
        network: Float32; moved and converted to what the config says.
        config: The choices; its device must be resolvable here.
        postprocessing: Thresholds and class map, on the CPU.
    """

    spec: TwoStageSpec

    def __init__(self, network: StaticDetector, config: EngineConfig, postprocessing: Postprocessing) -> None:
        named: dict[Step, torch.dtype] = {"preprocess": torch.uint8}
        if network.spec.has_masks:
            named["encode_masks"] = torch.float32
        super().__init__(network.spec, config, named)
        for op in ("roi_align", "nms"):
            self.choices[op] = ops.RECORDS[op].choose("auto", torch.empty(0, device=self.device))
        thresholds = postprocessing.thresholds.where(postprocessing.class_map >= 0, _NEVER)
        network.thresholds.copy_(thresholds)
        network.heads.detections_per_img = config.max_detections
        self._layout = torch.channels_last if self.device.type == "cuda" else torch.contiguous_format
        self._network = network.to(self.device).to(memory_format=self._layout).cast(self.dtype)
        self.compiler = Compiler(
            self._network,
            lambda batch, *size_hw: (self.inputs(batch, *size_hw), self.sizes(batch, size_hw)),
            config.compile,
            why_not_by_itself="it takes ten seconds and more for each frame size; compile=True does it",
        )

    def prepare(self, batch: int) -> None:
        """Nothing: what is to be done depends on the frames; see `Steps`."""

    def inputs(self, batch: int, height: int, width: int) -> torch.Tensor:
        """Images for the network, to be written to; what stays zero is the mean, with which torchvision pads."""
        inputs = torch.zeros(batch, 3, height, width, dtype=self.dtype, device=self.device)
        return inputs.contiguous(memory_format=self._layout)

    def sizes(self, batch: int, size_hw: tuple[int, ...]) -> torch.Tensor:
        """float32 [B, 2]: one size, for each image."""
        return torch.tensor([size_hw] * batch, dtype=torch.float32, device=self.device)

    def run(self, inputs: torch.Tensor, sizes: torch.Tensor, originals: torch.Tensor) -> Found:
        """Detect on preprocessed images of sizes [B, 2] that had others before; never waits."""
        batch, _, height, width = inputs.shape
        network = self.compiler.for_batch(batch, height, width)
        return _to_image(network(inputs, sizes), sizes, originals)

    def detect(self, images: Sequence[torch.Tensor]) -> list[Detections]:
        """Run the steps one after the other; see `Steps`."""
        size_hw = (images[0].shape[0], images[0].shape[1])
        batch, (height, width) = len(images), self.spec.resized_hw(size_hw)
        inputs = self.inputs(batch, *self.spec.padded_hw(size_hw))
        self.preprocess_each(images, inputs[:, :, :height, :width])
        with self.mark("network"):
            found = self.run(inputs, self.sizes(batch, (height, width)), self.sizes(batch, size_hw))
        detections = self._read(found, size_hw)
        return self.complete(detections, found.is_exact.tolist(), inputs, size_hw)

    def complete(
        self, detections: list[Detections], is_exact: Sequence[bool], inputs: torch.Tensor, size_hw: tuple[int, int]
    ) -> list[Detections]:
        """Detect again, slower and counted, on those images that had more candidates than there are rows for.

        Args:
            detections: Of each image; replaced.
            is_exact: Of each image, as in `StaticOutput`.
            inputs: [B, 3, h, w], preprocessed; more images may follow.
            size_hw: Of the images.
        """
        for image in [number for number in range(len(detections)) if not is_exact[number]]:
            FALLBACKS["two-stage detector: an image with more candidates than fixed rows"] += 1
            sizes, originals = self.sizes(1, self.spec.resized_hw(size_hw)), self.sizes(1, size_hw)
            output = self._network(inputs[image : image + 1], sizes, candidates=np.iinfo(np.int32).max)
            (detections[image],) = self._read(_to_image(output, sizes, originals), size_hw)
        return detections

    def _read(self, found: Found, size_hw: tuple[int, int]) -> list[Detections]:
        sizes = [size_hw] * len(found.selection.count)
        strings = self.encode_masks(found.masks, found.selection, sizes, found.boxes)
        return self.detections(found.selection.rows(), strings, sizes)

    def work(self, batch: int, size_hw: tuple[int, int]) -> Work:
        """Buffers, and what works on them; see `Steps`."""
        return _Work(self, batch, size_hw)


class _Work:
    """See `steps.Work`."""

    def __init__(self, steps: TwoStage, batch: int, size_hw: tuple[int, int]) -> None:
        from maskjet.engine.results import Results  # brings Triton

        self._steps, self._size_hw = steps, size_hw
        height, width = steps.spec.resized_hw(size_hw)
        self._inputs = steps.inputs(batch, *steps.spec.padded_hw(size_hw))
        self._inner = self._inputs[:, :, :height, :width]
        # Kept: what a graph reads must not move.
        self._table = sizes_table([size_hw] * batch, steps.device)
        self._sizes, self._originals = steps.sizes(batch, (height, width)), steps.sizes(batch, size_hw)
        self._results = Results(
            batch, steps.config.max_detections, size_hw, steps.device, has_masks=steps.spec.has_masks, has_marks=True
        )
        self.results = self._results.memory

    def run(self, frames: torch.Tensor) -> None:
        steps = self._steps
        steps.preprocess(frames, self._inner)
        found = steps.run(self._inputs, self._sizes, self._originals)
        self._results.fill(found.selection, ~found.is_exact)
        if found.masks is not None:
            self._results.encode(found.masks, self._table, found.boxes)

    def read(self, results: NDArray[np.uint8], images: int) -> list[Detections]:
        found, strings = self._results.read(results, images)
        detections = self._steps.detections(found, strings, [self._size_hw] * images)
        marked = self._results.marked(results, images)
        return self._steps.complete(detections, [not mark for mark in marked], self._inputs, self._size_hw)


def _to_image(output: StaticOutput, sizes: torch.Tensor, originals: torch.Tensor) -> Found:
    """Boxes and masks of the network's input to those of images, as torchvision's transform and paste do.

    Args:
        output: Of the network.
        sizes: float32 [B, 2]: (height, width) of the images as the network saw them.
        originals: float32 [B, 2]: of the images themselves.
    """
    batch, rows = output.class_id.shape
    xyxy = output.xyxy * (originals / sizes).flip(1).repeat(1, 2)[:, None]
    row = torch.arange(rows, dtype=torch.int32, device=xyxy.device).expand(batch, rows)
    selection = Selection(output.counts, row, output.class_id, output.confidence, xyxy)
    if output.mask_logits is None:
        return Found(selection, None, None, output.is_exact)
    masks = F.pad(output.mask_logits.float().sigmoid() - _HALF, (1, 1, 1, 1), value=-_HALF)
    # The border of one makes the box larger, which is then rounded towards zero.
    half = (xyxy[..., 2:] - xyxy[..., :2]) * 0.5 * (masks.shape[3] / output.mask_logits.shape[3])
    centre = (xyxy[..., 2:] + xyxy[..., :2]) * 0.5
    first, last = (centre - half).int(), (centre + half).int()
    boxes = torch.cat((first, (last - first + 1).clamp(min=1)), dim=2)
    return Found(selection, masks, boxes, output.is_exact)

"""The steps of RF-DETR: preprocess, network, select, encode_masks."""

from __future__ import annotations

import torch

from maskjet.checks import parse_color
from maskjet.config import EngineConfig, Step
from maskjet.engine.runtime import Runtime
from maskjet.engine.steps import Frames, Place, Steps, Work, WorkOptions
from maskjet.errors import InputError
from maskjet.ops.canvas import Canvas, Letterbox, stretch
from maskjet.postprocessing import Postprocessing
from maskjet.spec import ModelSpec


def choose_letterbox(spec: ModelSpec, config: EngineConfig) -> Letterbox | None:
    """Letterbox settings from the config, or else as the network was trained; None to stretch frames.

    Raises:
        InputError: The config has a choice for letterboxes, but frames are stretched.
    """
    if (spec.resize if config.resize == "auto" else config.resize) == "stretch":
        for name in ("letterbox_color", "letterbox_place"):
            if getattr(config, name) != "auto":
                raise InputError(f"{name} must be left out unless resize='letterbox', got {getattr(config, name)!r}.")
        return None
    color = spec.letterbox_color if config.letterbox_color == "auto" else config.letterbox_color
    place = spec.letterbox_place if config.letterbox_place == "auto" else config.letterbox_place
    return Letterbox(parse_color("letterbox_color", color), place)


class OneStage(Steps):
    """The steps of RF-DETR; `runtime` returns a `NetworkOutput` per batch. For other arguments see `Steps`."""

    spec: ModelSpec
    can_rehearse = True

    def __init__(
        self,
        spec: ModelSpec,
        runtime: Runtime,
        config: EngineConfig,
        postprocessing: Postprocessing,
        precision: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        named: dict[Step, torch.dtype] = {"preprocess": torch.uint8, "select": torch.float32}
        if spec.has_masks:
            named["encode_masks"] = torch.float32
        super().__init__(spec, config, postprocessing, named, precision, dtype)
        self.letterbox = choose_letterbox(spec, config)
        if self.letterbox is not None:
            self.resizing = str(self.letterbox)
        self.runtime = runtime

    def prepare(self, batch: int) -> None:
        """Make the network ready; see `Steps`."""
        self.runtime.for_batch(batch)

    def input_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:  # noqa: ARG002
        """The size of the input, the same for all frames; see `Steps`."""
        return self.spec.input_hw

    def place(self, size_hw: tuple[int, int]) -> Place:
        """Where a frame lies; see `Steps`."""
        input_hw = self.spec.input_hw
        if self.letterbox is None:
            return Place(stretch(input_hw), Canvas.of(size_hw))
        region = self.letterbox.region(size_hw, input_hw)
        return Place(region, region.canvas(size_hw, input_hw))

    def work(self, options: WorkOptions) -> Work:
        """Allocate buffers; see `Steps`."""
        return _Work(self, options)


class _Work(Work):
    steps: OneStage

    def __init__(self, steps: OneStage, options: WorkOptions) -> None:
        super().__init__(steps, options)
        self._inputs = torch.empty(self.batch, 3, *steps.spec.input_hw, dtype=steps.dtype, device=steps.device)
        self._network = steps.runtime.for_batch(self.batch)
        self._selecting = {
            "thresholds": self.postprocess.thresholds,
            "class_map": self.postprocess.class_map,
            "max_detections": steps.config.max_detections,
            "num_select": min(steps.spec.selected_pairs, steps.spec.queries * steps.spec.class_logits),
        }

    def run(self, frames: Frames) -> None:
        steps = self.steps
        self.preprocess(frames, self._inputs)
        with steps.mark("network"):
            output = self._network(self._inputs)
        with steps.mark("select"):
            steps.choices["select"].run(
                output.logits, output.boxes_cxcywh, self.frames.sizes, out=self.selection, **self._selecting
            )
        if output.mask_logits is not None:
            self.encode_masks(output.mask_logits)

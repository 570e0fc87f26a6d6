"""The steps of RF-DETR: preprocess, network, select, encode_masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from maskjet import ops
from maskjet.config import EngineConfig, Step
from maskjet.detections import Detections
from maskjet.engine.compilation import Compiler
from maskjet.engine.steps import Postprocessing, Steps
from maskjet.networks.rfdetr import RFDETR
from maskjet.ops.gpu import sizes_table
from maskjet.spec import ModelSpec


class OneStage(Steps):
    """RF-DETR on its device.

    Args:
        network: In eval mode, float32; moved and converted to what the config says.
        config: The choices; its device must be resolvable here.
        postprocessing: Thresholds and class map, on the CPU.
    """

    spec: ModelSpec

    def __init__(self, network: RFDETR, config: EngineConfig, postprocessing: Postprocessing) -> None:
        named: dict[Step, torch.dtype] = {"preprocess": torch.uint8, "select": torch.float32}
        if network.spec.has_masks:
            named["encode_masks"] = torch.float32
        super().__init__(network.spec, config, named)
        self.thresholds = postprocessing.thresholds.to(self.device)
        self.class_map = postprocessing.class_map.to(self.device)
        self.compiler = Compiler(
            network.to(self.device).cast(self.dtype),
            lambda batch: (self.inputs(batch),),
            config.compile,
            why_not_by_itself="" if self.device.type == "cuda" else "on a CPU it gains nothing",  # 160 ms for 164
        )

    def inputs(self, batch: int) -> torch.Tensor:
        """What the network takes, to be written to: [batch, 3, S, S]."""
        side = self.spec.input_size
        return torch.empty(batch, 3, side, side, dtype=self.dtype, device=self.device)

    def prepare(self, batch: int) -> None:
        """Compile the network; see `Steps`."""
        self.compiler.for_batch(batch)

    def detect(self, images: Sequence[torch.Tensor]) -> list[Detections]:
        """Run the steps one after the other; see `Steps`."""
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        inputs = self.inputs(len(images))
        self.preprocess_each(images, inputs)
        with self.mark("network"):
            output = self.compiler.for_batch(len(images))(inputs)
        with self.mark("select"):
            where = self.devices["select"]
            selection = ops.select(
                output.logits.to(where),
                output.boxes_cxcywh.to(where),
                sizes,
                threshold=self.thresholds,
                class_map=self.class_map,
                max_detections=self.config.max_detections,
                num_select=self.spec.selected_pairs,
                implementation=self.choices["select"].name,  # type: ignore[arg-type]
            )
        strings = self.encode_masks(output.mask_logits, selection, sizes)
        return self.detections(selection.rows(), strings, sizes)

    def work(self, batch: int, size_hw: tuple[int, int]) -> _Work:
        """Buffers, and what works on them; see `Steps`."""
        return _Work(self, batch, size_hw)


class _Work:
    """See `steps.Work`."""

    def __init__(self, steps: OneStage, batch: int, size_hw: tuple[int, int]) -> None:
        from maskjet.engine.results import Results  # brings Triton

        self._steps, self._batch = steps, batch
        self._sizes = [size_hw] * batch
        self._sizes_table = sizes_table(self._sizes, steps.device)  # kept: what a graph reads must not move
        self._inputs = steps.inputs(batch)
        self._results = Results(
            batch, steps.config.max_detections, size_hw, steps.device, has_masks=steps.spec.has_masks
        )
        self.results = self._results.memory

    def run(self, frames: torch.Tensor) -> None:
        from maskjet.ops.select import triton as select

        steps = self._steps
        steps.preprocess(frames, self._inputs)
        output = steps.compiler.for_batch(self._batch)(self._inputs)
        select.launch(
            output.logits,
            output.boxes_cxcywh,
            self._sizes_table,
            self._results.selection,
            thresholds=steps.thresholds,
            class_map=steps.class_map,
            num_select=min(steps.spec.selected_pairs, output.logits[0].numel()),
        )
        if output.mask_logits is not None:
            self._results.encode(output.mask_logits, self._sizes_table)

    def read(self, results: NDArray[np.uint8], images: int) -> list[Detections]:
        found, strings = self._results.read(results, images)
        return self._steps.detections(found, strings, self._sizes[:images])

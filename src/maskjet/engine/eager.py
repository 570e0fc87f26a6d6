"""The slot that runs on any device: the five steps of a frame as plain function calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from maskjet import ops
from maskjet.detections import Detections
from maskjet.engine.steps import Steps

_PATIENCE_S = 60.0  # for a batch that another thread is working on


class EagerSlot:
    """Upload, preprocess, network, select, encode_masks, download, done when the result is asked for.

    Args:
        steps: What to run.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._images: Sequence[torch.Tensor] = ()
        self._is_working = threading.Lock()

    def submit(self, images: Sequence[torch.Tensor], batch: int, *, all_cores: bool = False) -> None:  # noqa: ARG002
        """Take a batch, which is neither padded nor copied; see `Slot`."""
        self._images = images

    def result(self) -> list[Detections]:
        """Run the batch; see `Slot`."""
        with self._is_working:
            return self._run(self._images)

    def drain(self) -> None:
        """Wait for a result that another thread is waiting for; see `Slot`."""
        if self._is_working.acquire(timeout=_PATIENCE_S):
            self._is_working.release()

    @torch.inference_mode()
    def _run(self, images: Sequence[torch.Tensor]) -> list[Detections]:
        steps = self._steps
        side, sizes = steps.spec.input_size, [(image.shape[0], image.shape[1]) for image in images]
        where = steps.devices["preprocess"]
        inputs = torch.empty(len(images), 3, side, side, dtype=steps.dtype, device=where)
        with steps.mark("preprocess"):
            for image, one in zip(images, inputs, strict=True):
                steps.preprocess(image.to(where, non_blocking=True)[None], one[None])
        with steps.mark("network"):
            output = steps.compiler.for_batch(len(images))(inputs.to(steps.device))
        with steps.mark("select"):
            where = steps.devices["select"]
            selection = ops.select(
                output.logits.to(where),
                output.boxes_cxcywh.to(where),
                sizes,
                threshold=steps.thresholds,
                class_map=steps.class_map,
                max_detections=steps.config.max_detections,
                num_select=steps.spec.queries,
                implementation=steps.choices["select"].name,  # type: ignore[arg-type]
            )
        strings = None
        if output.mask_logits is not None:
            with steps.mark("encode_masks"):
                strings = ops.encode_masks(
                    output.mask_logits.to(steps.devices["encode_masks"]),
                    selection,
                    sizes,
                    implementation=steps.choices["encode_masks"].name,  # type: ignore[arg-type]
                )
        return steps.detections(selection.rows(), strings, sizes)

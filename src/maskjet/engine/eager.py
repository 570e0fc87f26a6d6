"""The slot that runs on any device: the steps of a frame as plain function calls."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

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
        with self._is_working, torch.inference_mode():
            return self._steps.detect(self._images)

    def drain(self) -> None:
        """Wait for a result that another thread is waiting for; see `Slot`."""
        if self._is_working.acquire(timeout=_PATIENCE_S):
            self._is_working.release()

"""The engine that runs on any device: the five steps of a frame as plain function calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from maskjet import ops
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.networks.rfdetr import RFDETR, NetworkOutput


@dataclass(frozen=True)
class Postprocessing:
    """What makes detections of a network's output; per class of its class head."""

    thresholds: torch.Tensor
    """float32 [C]: what a score must exceed."""
    class_map: torch.Tensor
    """int32 [C]: the class id to report, -1 to drop."""


class EagerEngine:
    """Turns images into detections: upload, preprocess, network, select, encode_masks, download.

    Args:
        network: In eval mode, float32; moved and converted to what the config says.
        config: The choices; its device must be resolvable here.
        postprocessing: Thresholds and class map, on the CPU.
    """

    def __init__(self, network: RFDETR, config: EngineConfig, postprocessing: Postprocessing) -> None:
        self.config = config
        self.spec = network.spec
        self.device = config.resolve_device()
        self.network = network.to(self.device, config.dtype)
        self.thresholds = postprocessing.thresholds.to(self.device)
        self.class_map = postprocessing.class_map.to(self.device)
        self.choices = self._choose()
        self.done: Counter[str] = Counter()
        """How many images and detections went through."""

    def _choose(self) -> Mapping[str, ops.Choice]:
        """Which implementation serves each step of this engine's frames."""
        floats = torch.empty(0, device=self.device)
        samples = {"preprocess": floats.to(torch.uint8), "select": floats}
        if self.spec.has_masks:
            samples["encode_masks"] = floats
        return {name: ops.RECORDS[name].choose(self.config.implementation, sample) for name, sample in samples.items()}

    @torch.inference_mode()
    def run(self, images: Sequence[torch.Tensor]) -> list[Detections]:
        """Detect on a batch.

        Args:
            images: uint8 [H, W, 3] RGB each, of any sizes, on any device.

        Returns:
            The detections of each image.
        """
        output = self.network(self._preprocess(images))
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        selection = ops.select(
            output.logits,
            output.boxes_cxcywh,
            sizes,
            threshold=self.thresholds,
            class_map=self.class_map,
            max_detections=self.config.max_detections,
            num_select=self.spec.queries,
            implementation=self.choices["select"].name,  # type: ignore[arg-type]
        )
        return self._download(selection, self._encode(output, selection, sizes), sizes)

    def _preprocess(self, images: Sequence[torch.Tensor]) -> torch.Tensor:
        side = self.spec.input_size
        inputs = torch.empty(len(images), 3, side, side, dtype=self.config.dtype, device=self.device)
        for image, one in zip(images, inputs, strict=True):
            ops.preprocess(
                image.to(self.device, non_blocking=True),
                one[None],
                size=(side, side),
                mean=self.spec.mean,
                std=self.spec.std,
                resample=self.config.resample,
                implementation=self.choices["preprocess"].name,  # type: ignore[arg-type]
            )
        return inputs

    def _encode(
        self, output: NetworkOutput, selection: ops.Selection, sizes: list[tuple[int, int]]
    ) -> list[list[bytes]] | None:
        if output.mask_logits is None:
            return None
        return ops.encode_masks(
            output.mask_logits,
            selection,
            sizes,
            implementation=self.choices["encode_masks"].name,  # type: ignore[arg-type]
        )

    def _download(
        self, selection: ops.Selection, counts: list[list[bytes]] | None, sizes: list[tuple[int, int]]
    ) -> list[Detections]:
        found, class_id = selection.count.tolist(), selection.class_id.cpu().numpy()
        confidence, xyxy = selection.confidence.cpu().numpy(), selection.xyxy.cpu().numpy()
        self.done.update(images=len(sizes), detections=sum(found))
        return [
            Detections(
                image_size=size,
                xyxy=xyxy[image, :count],
                confidence=confidence[image, :count],
                class_id=class_id[image, :count],
                rle=None if counts is None else [{"size": list(size), "counts": text} for text in counts[image]],
                class_names=self.spec.class_names,
            )
            for image, (size, count) in enumerate(zip(sizes, found, strict=True))
        ]

"""select for an exported file: static shapes, no sorting of all pairs, the same detections as `ops.select`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maskjet.calls import Postprocessing

FIELDS = ("count", "query", "class_id", "confidence", "xyxy")
"""Names of the outputs, those of `ops.selection.Selection`."""
MASKS = "selected_mask_logits"
"""Name of the output with the masks of the detections."""
SIZES = "image_sizes"
"""Name of the input with (height, width) of each image in pixels."""
_NAN = 2.0  # score of NaN logits, which rank first and never pass


class Select(nn.Module):
    """Choose each image's detections; what `ops.select` does, for a file. The best `pairs` may become detections.

    Ties rank by ascending index where the file runs, as ONNX's TopK is defined, not in PyTorch.
    """

    def __init__(self, postprocessing: Postprocessing, pairs: int) -> None:
        super().__init__()
        self.pairs, self.rows = pairs, min(postprocessing.max_detections, pairs)
        self.register_buffer("thresholds", postprocessing.thresholds.clone())
        self.register_buffer("class_map", postprocessing.class_map.clone())
        self.thresholds: Tensor
        self.class_map: Tensor

    def forward(self, logits: Tensor, boxes: Tensor, image_sizes: Tensor, masks: Tensor | None = None) -> list[Tensor]:
        """Choose detections.

        Args:
            logits: float32 [B, Q, C].
            boxes: float32 [B, Q, 4] cxcywh, 0..1 of the image.
            image_sizes: int32 [B, 2], (height, width) in pixels.
            masks: [B, Q, h, w]; None without masks.

        Returns:
            `FIELDS`, with K = `rows`: int32 [B], [B, K] and [B, K], float32 [B, K] and [B, K, 4]; with masks, those
            of the rows, [B, K, h, w].
        """
        classes = logits.shape[2]
        pairs = logits.flatten(1)
        # NaN is looked for before the sigmoid, which on some devices makes a number of it.
        ranked, flat = torch.where(pairs.isnan(), _NAN, pairs.sigmoid()).topk(self.pairs, dim=1)
        query = flat // classes
        label = flat - query * classes
        is_detection = (ranked > self.thresholds[label]) & (ranked <= 1)
        # The ranks of detections, then of the others: distinct, so that a runtime's order of ties does not count.
        place = torch.arange(self.pairs, dtype=torch.float32, device=logits.device)
        rank = torch.where(is_detection, -place, -place - self.pairs).topk(self.rows, dim=1).indices
        query, label, confidence = (each.gather(1, rank) for each in (query, label, ranked))
        rows = query[..., None]
        found = [
            is_detection.sum(1, dtype=torch.int32).clamp(max=self.rows),
            query.to(torch.int32),
            self.class_map[label],
            confidence,
            _to_pixels(boxes.gather(1, rows.expand(-1, -1, 4)), image_sizes),
        ]
        if masks is not None:
            size = masks.shape[2:]
            flat_masks = masks.flatten(2)
            chosen = flat_masks.gather(1, rows.expand(-1, -1, flat_masks.shape[2]))
            found.append(chosen.reshape(*chosen.shape[:2], *size))
        return found


def _to_pixels(boxes_cxcywh: Tensor, image_sizes: Tensor) -> Tensor:
    """As `ops.select.reference.to_pixels`, for all images: boxes [B, K, 4] to xyxy in pixels, clamped to the image."""
    centre, size = boxes_cxcywh[..., :2], boxes_cxcywh[..., 2:]
    half = 0.5 * torch.where(size < 0, 0.0, size)  # NaN stays
    height, width = image_sizes.float()[:, None, :].chunk(2, dim=2)
    scale = torch.cat((width, height, width, height), dim=2)
    xyxy = torch.cat((centre - half, centre + half), dim=2) * scale
    return torch.where(xyxy > 0, xyxy, 0.0).minimum(scale)

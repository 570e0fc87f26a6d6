"""torchvision's two-stage detectors with static shapes, which never wait for the GPU.

The backbone, the heads and the predictors are torchvision's own modules. The steps between them are rewritten:
proposals and detections fill a fixed number of rows, with a mask of the valid ones. Other rows hold empty boxes, which
suppress nothing. So the detector compiles without a graph break, and can be captured in one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskjet import ops
from maskjet.errors import UnsupportedError
from maskjet.networks.torchvision.layers.matching import is_pixelwise
from maskjet.networks.torchvision.ownership import MASK_PARTS, PARTS, check_parts
from maskjet.spec import TwoStageSpec

CANDIDATES = 8192
"""Default number of box-class pairs per image that NMS considers; `StaticOutput.is_exact` says whether they suffice."""
_MOST_ON_GPU = 2**15  # boxes of an image; NMS takes a bit per pair, 128 MB here
_SMALLEST_DETECTION = 1e-2  # pixels a side, as in torchvision


class StaticOutput(NamedTuple):
    """Detections of B images, K rows each, most confident first; rows at and past an image's count are empty."""

    counts: Tensor
    """int32 [B]: detections per image."""
    xyxy: Tensor
    """float32 [B, K, 4]: pixels of the network's input."""
    confidence: Tensor
    """float32 [B, K]: 0..1."""
    class_id: Tensor
    """int32 [B, K]: torchvision's label, 1 for the first class."""
    mask_logits: Tensor | None
    """[B, K, m, m]: logits for the detection's class; None without a mask head."""
    is_exact: Tensor
    """bool [B]: whether NMS considered all candidates, or the others could not change the result."""


@torch.library.custom_op("maskjet::keep_boxes", mutates_args=())
def _keep_boxes(
    boxes: Tensor, count: Tensor, groups: Tensor, iou_threshold: float, max_output: int, implementation: str
) -> tuple[Tensor, Tensor]:
    where = boxes.device
    if boxes.shape[1] > _MOST_ON_GPU:
        where, implementation = torch.device("cpu"), "auto"
    kept = ops.nms(
        boxes.to(where),
        count.to(where),
        groups=groups.to(where),
        iou_threshold=iou_threshold,
        max_output=max_output,
        implementation=implementation,  # type: ignore[arg-type]
    )
    return kept.count.to(boxes.device), kept.index.to(boxes.device)


@_keep_boxes.register_fake
def _(
    boxes: Tensor, count: Tensor, groups: Tensor, _threshold: float, max_output: int, _name: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(count), groups.new_empty(len(boxes), max_output)


@torch.library.custom_op("maskjet::pool_boxes", mutates_args=())
def _pool_boxes(boxes: Tensor, features: list[Tensor], scales: list[float], size: int, implementation: str) -> Tensor:
    return ops.roi_align(boxes, features, scales=scales, size=size, implementation=implementation)  # type: ignore[arg-type]


@_pool_boxes.register_fake
def _(boxes: Tensor, features: list[Tensor], _scales: list[float], size: int, _name: str) -> Tensor:
    shape = (boxes.shape[0] * boxes.shape[1], features[0].shape[1], size, size)
    return features[0].new_empty(shape).contiguous(memory_format=torch.channels_last)


class StaticDetector(nn.Module):
    """A Faster or Mask R-CNN with fixed shapes; see `maskjet.rewrites.optimize`.

    It shares the modules of torchvision's detector, which is in eval mode. Class names are by label.

    Raises:
        UnsupportedError: The model is built in an unsupported way, which the message names.
    """

    def __init__(self, model: Any, class_names: Mapping[int, str] | None = None) -> None:
        super().__init__()
        check(model)
        self.backbone, self.heads, self.rpn_head = model.backbone, model.roi_heads, model.rpn.head
        self._rpn = model.rpn
        self.implementations = {"roi_align": "auto", "nms": "auto"}
        """The implementation of each op; set by the engine."""
        self.spec = _read_spec(model, class_names or {})
        thresholds = torch.full((self.spec.class_logits,), self.spec.threshold, dtype=torch.float32, device="cpu")
        self.thresholds = nn.Buffer(thresholds)
        """float32 [labels]: default thresholds, which scores must exceed; the background's is not used."""
        anchors = model.rpn.anchor_generator.cell_anchors
        self._cells = [f"_cell{level}" for level in range(len(anchors))]
        for name, cell in zip(self._cells, anchors, strict=True):
            self.register_buffer(name, cell.detach().clone().float(), persistent=False)

    def cast(self, dtype: torch.dtype) -> StaticDetector:
        """Convert the weights to a precision, in place, except those of the box predictor. Returns the detector."""
        for module in (self.backbone, self.rpn_head, self.heads):
            module.to(dtype)
        self.heads.box_predictor.float()
        return self

    def forward(
        self, images: Tensor, sizes: Tensor, thresholds: Tensor | None = None, candidates: int = CANDIDATES
    ) -> StaticOutput:
        """Detect on normalised images.

        Args:
            images: [B, 3, H, W], padded to a multiple of 32, in the precision of `cast`.
            sizes: float32 [B, 2]: (height, width) of each image without its padding, on the images' device.
            thresholds: float32 [labels], on the images' device; None for the detector's own.
            candidates: Number of most confident box-class pairs per image that NMS considers, at least 1.
        """
        thresholds = self.thresholds if thresholds is None else thresholds
        features = self.backbone(images)
        boxes, is_proposal = self._propose(list(features.values()), images.shape[2:], sizes)
        pooled = self._pool(self.heads.box_roi_pool, features, boxes, images.shape[2])
        logits, codes = self.heads.box_predictor(self.heads.box_head(pooled).float())
        found = self._choose(logits, codes, boxes, is_proposal, sizes, thresholds, candidates)
        counts, xyxy, confidence, class_id, is_exact = found
        mask_logits = None
        if self.heads.has_mask():
            rows = _rows_to_mask(counts, class_id.shape[1])
            pooled = self._pool(self.heads.mask_roi_pool, features, xyxy[:, :rows], images.shape[2])
            mask_logits = self._predict_masks(self.heads.mask_head(pooled), class_id[:, :rows])
            if rows < class_id.shape[1]:
                mask_logits = F.pad(mask_logits, (0, 0, 0, 0, 0, class_id.shape[1] - rows))
        return StaticOutput(counts, xyxy, confidence, class_id, mask_logits, is_exact)

    def _propose(self, features: Sequence[Tensor], padded_hw: Sequence[int], sizes: Tensor) -> tuple[Tensor, Tensor]:
        """Propose boxes [B, N, 4] in pixels, by descending objectness; also returns which rows are valid."""
        rpn = self._rpn
        logits, codes = map(_by_cell, self.rpn_head(list(features)))
        batch = len(logits)
        logits, codes = logits.reshape(batch, -1), codes.reshape(batch, -1, 4)
        anchors = [self._anchors(level, each.shape[2:], padded_hw) for level, each in enumerate(features)]
        where = _best_by_level(logits, [len(each) for each in anchors], rpn.pre_nms_top_n())
        _, levels, rows = where.shape
        where = where.reshape(batch, levels * rows)
        is_valid, where = where >= 0, where.clamp(min=0)
        scores = logits.gather(1, where).float().sigmoid()
        chosen = codes.gather(1, where[..., None].expand(-1, -1, 4)).float()
        boxes = _clip(_decode(chosen, torch.cat(anchors)[where], rpn.box_coder), sizes)
        is_valid &= _is_large(boxes, rpn.min_size) & (scores >= rpn.score_thresh)
        boxes = torch.where(is_valid[..., None], boxes, 0)  # empty boxes suppress nothing
        one_group = torch.zeros(batch * levels, rows, dtype=torch.int32, device=boxes.device)
        kept, index = torch.ops.maskjet.keep_boxes(
            boxes.reshape(batch * levels, rows, 4),
            one_group.new_full([batch * levels], rows),
            one_group,
            rpn.nms_thresh,
            rows,
            self.implementations["nms"],
        )
        stays = _marked(kept, index).reshape(batch, levels * rows) & is_valid
        marked, order = torch.where(stays, scores, -1.0).sort(dim=1, descending=True, stable=True)
        most = min(rpn.post_nms_top_n(), order.shape[1])
        is_valid, order = marked[:, :most] >= 0, order[:, :most]
        proposals = boxes.gather(1, order[..., None].expand(-1, -1, 4))
        return torch.where(is_valid[..., None], proposals, 0), is_valid

    def _anchors(self, level: int, grid_hw: Sequence[int], padded_hw: Sequence[int]) -> Tensor:
        """Anchors of one level, float32 [cells × anchors, 4], row by row."""
        cell: Tensor = getattr(self, self._cells[level])
        steps = [_count_to(n, cell.device) * (side // n) for n, side in zip(grid_hw, padded_hw, strict=True)]
        y, x = torch.meshgrid(*steps, indexing="ij")
        shifts = torch.stack((x, y, x, y), dim=-1).reshape(-1, 1, 4)
        return (shifts + cell).reshape(-1, 4)

    def _pool(self, pooler: Any, features: Any, boxes: Tensor, height: int) -> Tensor:
        levels = [feature for name, feature in features.items() if name in pooler.featmap_names]
        halvings = [round(math.log2(height / level.shape[2])) for level in levels]
        used = halvings[-1] - halvings[0] + 1  # of two levels with equal scale the second is unused
        scales = [2.0**-halving for halving in halvings[:used]]
        chosen = self.implementations["roi_align"]
        pooled: Tensor = torch.ops.maskjet.pool_boxes(boxes, levels[:used], scales, pooler.output_size[0], chosen)
        return pooled

    def _choose(
        self,
        logits: Tensor,
        codes: Tensor,
        proposals: Tensor,
        is_proposal: Tensor,
        sizes: Tensor,
        thresholds: Tensor,
        candidates: int,
    ) -> tuple[Tensor, ...]:
        """Select detections by NMS; returns counts, boxes, confidences, classes, `StaticOutput.is_exact`."""
        heads = self.heads
        batch, rows = is_proposal.shape
        things = logits.shape[1] - 1  # classes without the background
        scores = logits.softmax(dim=1)[:, 1:].reshape(batch, rows * things)
        boxes = _decode(codes.reshape(batch * rows, -1, 4), proposals.reshape(-1, 1, 4), heads.box_coder)
        boxes = _clip(boxes[:, 1:].reshape(batch, rows * things, 4), sizes)
        is_valid = (scores > thresholds[1:].repeat(rows)) & _is_large(boxes, _SMALLEST_DETECTION)
        is_valid &= is_proposal[..., None].expand(-1, -1, things).reshape(batch, -1)
        # A stable sort keeps ties in the order of boxes and classes.
        best, where = torch.where(is_valid, scores, -1.0).sort(dim=1, descending=True, stable=True)
        is_candidate, where = best[:, :candidates] >= 0, where[:, :candidates]
        boxes = torch.where(is_candidate[..., None], boxes.gather(1, where[..., None].expand(-1, -1, 4)), 0)
        label = (where % things + 1).int()
        most = heads.detections_per_img
        found = is_candidate.sum(dim=1, dtype=torch.int32)
        chosen = self.implementations["nms"]
        kept, index = torch.ops.maskjet.keep_boxes(boxes, found, label, heads.nms_thresh, most, chosen)
        is_kept = _count_to(most, kept.device) < kept[:, None]
        index = torch.where(is_kept, index, 0).long()
        xyxy = torch.where(is_kept[..., None], boxes.gather(1, index[..., None].expand(-1, -1, 4)), 0)
        confidence = torch.where(is_kept, scores.gather(1, where.gather(1, index)), 0)
        class_id = torch.where(is_kept, label.gather(1, index), 0)
        is_exact = (is_valid.sum(dim=1) <= candidates) | (kept == most)
        return kept, xyxy, confidence, class_id, is_exact

    def _predict_masks(self, features: Tensor, class_id: Tensor) -> Tensor:
        """Predict masks [B, K, m, m] of each detection's class only, from features [B × K, C, h, w]."""
        *layers, last = self.heads.mask_predictor
        for layer in layers:
            features = layer(features)
        label = class_id.flatten()
        weight = last.weight.flatten(1)[label][:, None]
        logits = torch.baddbmm(last.bias[label][:, None, None], weight, features.flatten(2))
        return logits.reshape(*class_id.shape, *features.shape[2:])


def _read_spec(model: Any, class_names: Mapping[int, str]) -> TwoStageSpec:
    transform, heads = model.transform, model.roi_heads
    return TwoStageSpec(
        name=type(model).__name__,
        shortest=transform.min_size[-1],
        longest=transform.max_size,
        fixed_hw=None if transform.fixed_size is None else tuple(transform.fixed_size[::-1]),
        divisor=transform.size_divisible,
        has_masks=heads.has_mask(),
        class_logits=heads.box_predictor.cls_score.out_features,
        threshold=heads.score_thresh,
        max_detections=heads.detections_per_img,
        mean=tuple(transform.image_mean),
        std=tuple(transform.image_std),
        class_names=dict(class_names),
    )


def check(model: Any) -> None:
    """Check that a detector's parts are those of torchvision's own builders.

    The backbone, the RPN's head, the box and mask heads and the box predictor may be anything: they are only called.

    Raises:
        UnsupportedError: A part is not; the message names it.
    """
    heads, rpn = getattr(model, "roi_heads", None), getattr(model, "rpn", None)
    if heads is None or rpn is None:
        raise UnsupportedError(f"model must be a Faster or Mask R-CNN of torchvision, got {type(model).__name__}.")
    if model.training:
        raise UnsupportedError("model must be in eval mode: call model.eval().")
    check_parts(model, PARTS)
    if model.transform._skip_resize:
        raise UnsupportedError("model.transform must resize, got one made with _skip_resize.")
    if heads.keypoint_roi_pool is not None:
        raise UnsupportedError("model must not have a keypoint head, which is not rewritten.")
    if not isinstance(getattr(heads.box_predictor, "cls_score", None), nn.Linear):
        raise UnsupportedError(
            "model must have a linear layer roi_heads.box_predictor.cls_score, as torchvision's FastRCNNPredictor has."
        )
    predictor = heads.mask_predictor
    poolers = [heads.box_roi_pool]
    if heads.has_mask():
        if not (isinstance(predictor, nn.Sequential) and is_pixelwise(predictor[-1])):
            raise UnsupportedError(
                "model must have layers roi_heads.mask_predictor of which the last is a convolution of one pixel with "
                "a bias, as torchvision's MaskRCNNPredictor has."
            )
        check_parts(model, MASK_PARTS)
        poolers.append(heads.mask_roi_pool)
    for pooler in poolers:
        known = (pooler.sampling_ratio, pooler.canonical_scale, pooler.canonical_level)
        if known != (2, 224, 4) or len(set(pooler.output_size)) != 1:
            raise UnsupportedError(
                "model must pool square bins of 2 × 2 samples, with a canonical scale of 224 at level 4, got a "
                f"sampling ratio, scale and level of {known} and bins of {tuple(pooler.output_size)}."
            )


def _rows_to_mask(counts: Tensor, most: int) -> int:
    """Rows per image that need masks: all on a GPU, only those in use on a CPU, where reading counts is free."""
    if counts.device.type != "cpu" or torch.compiler.is_compiling():
        return most
    return int(counts.max())


def _by_cell(levels: Sequence[Tensor]) -> Tensor:
    """Concatenate levels [B, C, H, W] to [B, cells, C], row by row."""
    return torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)


def _best_by_level(values: Tensor, counts: Sequence[int], most: int) -> Tensor:
    """Find the positions of the largest values of each level.

    All are sorted by value, then by level. On a GPU that is faster than selecting level by level, and stable.

    Args:
        values: [B, N], level by level.
        counts: Number of values in each level; N in all.
        most: Largest number to find in each level.

    Returns:
        int64 [B, levels, rows]: largest first, NaN before all, ties in order; -1 past a level's last value.
    """
    descending = values.sort(dim=1, descending=True, stable=True).indices
    fill = [torch.full_like(descending[0, :count], level, dtype=torch.uint8) for level, count in enumerate(counts)]
    order = descending.gather(1, torch.cat(fill)[descending].sort(dim=1, stable=True).indices)
    rows = min(most, max(counts))
    found = []
    for level in torch.split(order, [*counts], dim=1):
        found += [level[:, :rows], order.new_full((len(order), max(rows - level.shape[1], 0)), -1)]
    return torch.cat(found, dim=1).reshape(len(order), len(counts), rows)


def _decode(codes: Tensor, boxes: Tensor, coder: Any) -> Tensor:
    """Decode boxes [..., 4] from codes [..., 4] and the reference boxes they are relative to, which broadcast."""
    sides = boxes[..., 2:] - boxes[..., :2]
    centres = boxes[..., :2] + 0.5 * sides
    wx, wy, ww, wh = coder.weights
    dx, dy, dw, dh = codes.unbind(dim=-1)
    shift = torch.stack((dx / wx, dy / wy), dim=-1)
    growth = torch.stack((dw / ww, dh / wh), dim=-1).clamp(max=coder.bbox_xform_clip)
    centre, half = shift * sides + centres, 0.5 * (growth.exp() * sides)
    return torch.cat((centre - half, centre + half), dim=-1)


def _clip(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Clip boxes [B, N, 4] to images of (height, width) [B, 2]."""
    limits = sizes.flip(1).repeat(1, 2)[:, None]
    return boxes.clamp(min=0).minimum(limits)


def _is_large(boxes: Tensor, least: float) -> Tensor:
    sides = boxes[..., 2:] - boxes[..., :2]
    return (sides >= least).all(dim=-1)


def _count_to(end: int, device: torch.device) -> Tensor:
    return torch.arange(end, dtype=torch.int64, device=device)


def _marked(count: Tensor, index: Tensor) -> Tensor:
    """Mark the positions named by the first `count` entries of index [B, N]; bool [B, N]."""
    batch, most = index.shape
    is_used = _count_to(most, index.device) < count[:, None]
    marks = torch.zeros(batch, most + 1, dtype=torch.bool, device=index.device)
    return marks.scatter(1, torch.where(is_used, index, most).long(), value=True)[:, :most]

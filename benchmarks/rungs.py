"""The rungs of the ablation: one postprocess in several versions, from plain PyTorch to two kernels.

Each takes RF-DETR-Seg Nano's output for one image and returns its detections. The plain one is written well for one
image on a GPU: no loop over images, constants made once, one wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F

from benchmarks.workloads import CLASSES, MASK_SIDE, QUERIES, draw_logits
from maskjet import ops
from maskjet.errors import UnsupportedError
from maskjet.masks import coco_rle
from tests.ops.cases.paste_masks import blobs

THRESHOLD = 0.5
Output = Literal["masks", "rle"]
"""Form of a rung's masks: dense on the device, or COCO RLE strings on the host."""


@dataclass(frozen=True)
class Request:
    """The network's output for one image, and the constants that an engine makes once."""

    logits: torch.Tensor
    """Class logits, float32 [1, Q, C]."""
    boxes: torch.Tensor
    """Boxes cxcywh, 0..1, float32 [1, Q, 4]."""
    mask_logits: torch.Tensor
    """Mask logits, float32 [1, Q, h, w]."""
    size_hw: tuple[int, int]
    """(height, width) of the image, in pixels."""
    scale: torch.Tensor
    """Scale from boxes 0..1 to pixels, float32 [4]: width, height, width, height."""
    thresholds: torch.Tensor
    """Threshold of each class, float32 [C]."""
    class_map: torch.Tensor
    """Identity mapping of classes, int32 [C]."""


@dataclass(frozen=True)
class Instances:
    """Instances detected on one image; rows from `count` on are undefined."""

    count: torch.Tensor | int
    """Number of detections."""
    query: torch.Tensor | None
    """Query of each detection, [K]; None if the rung does not return it."""
    class_id: torch.Tensor
    """Class of each detection, [K]."""
    confidence: torch.Tensor
    """Confidences, descending, float32 [K]."""
    xyxy: torch.Tensor
    """Boxes xyxy in pixels, float32 [K, 4]."""
    masks: torch.Tensor | list[bytes]
    """Masks: bool or uint8 [K, H, W] on the device, or COCO RLE strings."""


Postprocess = Callable[[Request], Instances]


@dataclass(frozen=True)
class Rung:
    """One version of the postprocess."""

    name: str
    """Name in tables and on the command line."""
    what: str
    """One line that describes the rung."""
    build: Callable[[torch.device], Postprocess]
    """Builds the postprocess for a device; raises UnsupportedError, with the reason, where it can't run."""
    output: Output = "masks"
    """Form of the masks before any further encoding."""
    tolerance: float = 1.0
    """Largest difference allowed, in multiples of the ops' tolerance."""
    rounds_boxes: bool = False
    """Whether the rung rounds boxes to whole pixels."""


def plant_request(seed: int, survivors: int, size_hw: tuple[int, int], device: torch.device) -> Request:
    """Draw a network output with blobs as masks, of which exactly `survivors` queries pass the threshold.

    Args:
        seed: Same seed, same request.
        survivors: Number of detections, 0 to 100.
        size_hw: (height, width) of the image, in pixels.
        device: Device of the tensors.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = draw_logits(QUERIES, survivors, generator)
    height, width = size_hw
    return Request(
        logits=logits.to(device),
        boxes=torch.rand(1, QUERIES, 4, generator=generator).to(device),
        mask_logits=blobs(1, QUERIES, (MASK_SIDE, MASK_SIDE), generator).to(device),
        size_hw=size_hw,
        scale=torch.tensor([width, height, width, height], dtype=torch.float32, device=device),
        thresholds=torch.full((CLASSES,), THRESHOLD, device=device),
        class_map=torch.arange(CLASSES, dtype=torch.int32, device=device),
    )


def encode_on_host(found: Instances) -> Instances:
    """Copy dense masks to the host and encode them there, with pycocotools where it is installed.

    RLE runs along columns. Masks are transposed on the device, where that costs nothing compared with the copy.
    """
    assert isinstance(found.masks, torch.Tensor)
    masks = found.masks[: int(found.count)].view(torch.uint8).transpose(1, 2).contiguous().cpu()
    columns = masks.numpy().transpose(2, 1, 0)  # [H, W, n], in Fortran's order
    try:
        from pycocotools import mask as pycoco_mask
    except ImportError:
        rles = coco_rle.encode(columns.transpose(2, 0, 1))
    else:
        rles = pycoco_mask.encode(columns) if columns.shape[2] else []
    return replace(found, masks=[rle["counts"] for rle in rles])


def _rank(
    logits: torch.Tensor, boxes: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rank the 100 best query-class pairs: number that pass, queries, classes, scores, boxes; all shapes are fixed."""
    scores, flat = logits.sigmoid().flatten().sort(descending=True, stable=True)
    scores, flat = scores[:QUERIES], flat[:QUERIES]
    query = flat // CLASSES
    centre, size = boxes[0, query].chunk(2, dim=-1)
    half = 0.5 * size
    xyxy = (torch.cat((centre - half, centre + half), dim=-1) * scale).clamp(min=0).minimum(scale)
    return (scores > THRESHOLD).sum(), query, flat % CLASSES, scores, xyxy


def _upsample(mask_logits: torch.Tensor, query: torch.Tensor, height: int, width: int) -> torch.Tensor:
    chosen = mask_logits[0, query][:, None]
    return F.interpolate(chosen, size=(height, width), mode="bilinear", align_corners=False)[:, 0] > 0


def _eager(
    logits: torch.Tensor, boxes: torch.Tensor, mask_logits: torch.Tensor, scale: torch.Tensor, size_hw: tuple[int, int]
) -> tuple[Any, ...]:
    passing, query, class_id, scores, xyxy = _rank(logits, boxes, scale)
    count = int(passing)  # the one wait; pairs that pass rank first
    query = query[:count]
    masks = _upsample(mask_logits, query, *size_hw)
    return count, query, class_id[:count], scores[:count], xyxy[:count], masks


def _fixed(
    logits: torch.Tensor, boxes: torch.Tensor, mask_logits: torch.Tensor, scale: torch.Tensor, size_hw: tuple[int, int]
) -> tuple[Any, ...]:
    passing, query, class_id, scores, xyxy = _rank(logits, boxes, scale)
    return passing, query, class_id, scores, xyxy, _upsample(mask_logits, query, *size_hw)


def _spread(function: Callable[..., tuple[Any, ...]]) -> Postprocess:
    return lambda r: Instances(*function(r.logits, r.boxes, r.mask_logits, r.scale, r.size_hw))


def _build_hybrid(_device: torch.device) -> Postprocess:
    rank = torch.compile(_rank, fullgraph=True, dynamic=False)

    def run(request: Request) -> Instances:
        passing, query, class_id, scores, xyxy = rank(request.logits, request.boxes, request.scale)
        count = int(passing)
        query = query[:count]
        masks = _upsample(request.mask_logits, query, *request.size_hw)
        return Instances(count, query, class_id[:count], scores[:count], xyxy[:count], masks)

    return run


def _select(request: Request) -> ops.Selection:
    return ops.select(
        request.logits,
        request.boxes,
        [request.size_hw],
        threshold=request.thresholds,
        class_map=request.class_map,
        num_select=QUERIES,
        implementation="triton",
    )


def _encode_triton(request: Request) -> Instances:
    selection = _select(request)
    (strings,) = ops.encode_masks(request.mask_logits, selection, [request.size_hw], implementation="triton")
    return as_instances(selection, strings)


def as_instances(selection: ops.Selection, masks: torch.Tensor | list[bytes]) -> Instances:
    """Combine a selection of one image with its masks."""
    s = selection
    return Instances(s.count[0], s.query[0], s.class_id[0], s.confidence[0], s.xyxy[0], masks)


def _with_kernels(run: Postprocess, *names: str) -> Callable[[torch.device], Postprocess]:
    """Wrap a postprocess as `Rung.build`, which checks that the named ops' Triton implementations can run."""

    def build(device: torch.device) -> Postprocess:
        for name in names:
            reason = ops.RECORDS[name].variants["triton"].refuse(torch.empty(0, device=device))
            if reason is not None:
                raise UnsupportedError(f"no Triton for ops.{name}: {reason}")
        return run

    return build


RUNGS: Mapping[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung("eager", "plain PyTorch, one wait for the count", lambda _: _spread(_eager)),
        Rung(
            "compiled",
            "torch.compile of eager, with its graph breaks",
            lambda _: _spread(torch.compile(_eager)),
        ),
        Rung(
            "compiled_fixed",
            "fixed shapes in one graph: all 100 masks upsampled",
            lambda _: _spread(torch.compile(_fixed, fullgraph=True, dynamic=False)),
        ),
        Rung(
            "compiled_hybrid",
            "ranking and boxes compiled, survivors upsampled eagerly",
            _build_hybrid,
        ),
        Rung(
            "triton_rle",
            "ops.select and ops.encode_masks: no full-size mask",
            _with_kernels(_encode_triton, "select", "encode_masks"),
            output="rle",
        ),
    )
}
"""Rungs by name, in the order of the ablation."""

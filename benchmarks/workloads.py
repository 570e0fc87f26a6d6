"""Inputs of the ops' benchmark: usual camera sizes, and the shapes of RF-DETR-Seg Nano's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from maskjet.ops import Letterbox, Selection, YUVFrames, encode_masks, yuv_conversion
from maskjet.spec import IMAGENET_MEAN, IMAGENET_STD
from maskjet.traffic import SIZES_HW
from tests.ops.cases.paste_masks import blobs

Inputs = dict[str, Any]
"""The keyword arguments of an op's public function."""
Workload = Callable[[torch.Generator], Inputs]
"""Builds inputs on the CPU; same seed, same inputs."""

QUERIES, CLASSES, MASK_SIDE = 100, 91, 78
"""Queries, classes, and height and width of a mask, of RF-DETR-Seg Nano."""


def draw_logits(queries: int, found: int, generator: torch.Generator) -> torch.Tensor:
    """Draw class logits [1, queries, CLASSES] of which exactly `found` queries pass 0.5, each with one class.

    Passing logits are evenly spaced, so that their order does not depend on how a sigmoid is rounded.
    """
    logits = (1.5 * torch.randn(1, queries, CLASSES, generator=generator) - 6).clamp(max=-1)
    where = torch.randperm(queries, generator=generator)[:found]
    classes = torch.randint(0, CLASSES, (found,), generator=generator)
    logits[0, where, classes] = 0.5 + torch.arange(found, dtype=torch.float32) / queries
    return logits


def _frames(size: str, *, batch: int = 1, **options: Any) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        frames = torch.randint(0, 256, (batch, *SIZES_HW[size], 3), dtype=torch.uint8, generator=generator)
        return {"frames": frames, "size": (312, 312), "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **options}

    return build


def _yuv_frames(size: str, *, batch: int = 1, **options: Any) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        height, width = SIZES_HW[size]
        memory = torch.randint(0, 256, (batch, height * 3 // 2, width), dtype=torch.uint8, generator=generator)
        frames = YUVFrames.within(memory, yuv_conversion("bt709", full_range=False))
        return {"frames": frames, "size": (312, 312), "mean": IMAGENET_MEAN, "std": IMAGENET_STD, **options}

    return build


def _predictions(queries: int, *, found: int = 25, **options: Any) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        logits = draw_logits(queries, found, generator)
        boxes = torch.rand(1, queries, 4, generator=generator)
        return {"logits": logits, "boxes": boxes, "image_sizes": [SIZES_HW["1080p"]], **options}

    return build


def _masks(size: str, masks: int = 25, *, is_noise: bool = False) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        side = (MASK_SIDE, MASK_SIDE)
        logits = torch.randn(1, QUERIES, *side, generator=generator) if is_noise else blobs(1, QUERIES, side, generator)
        order = torch.randperm(QUERIES, generator=generator, dtype=torch.int32)
        query = Selection(  # as the engine passes it, without waiting for the count
            count=torch.tensor([masks], dtype=torch.int32),
            query=order[None],
            class_id=torch.zeros(1, QUERIES, dtype=torch.int32),
            confidence=torch.zeros(1, QUERIES),
            xyxy=torch.zeros(1, QUERIES, 4),
        )
        return {"mask_logits": logits, "query": query, "image_sizes": [SIZES_HW[size]]}

    return build


def _letterboxed(workload: Workload) -> Workload:
    """The same inputs, of images that were letterboxed into 312 × 312."""
    side = (312, 312)

    def build(generator: torch.Generator) -> Inputs:
        inputs = workload(generator)
        sizes = inputs["image_sizes"]
        return {**inputs, "canvases": [Letterbox().region(size, side).canvas(size, side) for size in sizes]}

    return build


def _boxes(batch: int, count: int, classes: int, **options: Any) -> Workload:
    """Boxes around 40 objects, as a detector proposes them: many slightly different ones per object."""

    def build(generator: torch.Generator) -> Inputs:
        things = torch.rand(batch, 40, 2, generator=generator) * torch.tensor([1333.0, 800.0])
        thing = torch.randint(40, (batch, count, 1), generator=generator).expand(-1, -1, 2)
        corner = things.gather(1, thing) + 12 * torch.randn(batch, count, 2, generator=generator)
        side = 40 + 60 * torch.rand(batch, count, 2, generator=generator)
        groups = torch.randint(classes, (batch, count), dtype=torch.int32, generator=generator)
        return {"boxes": torch.cat((corner, corner + side), dim=2), "groups": groups, **options}

    return build


def pyramid(boxes: int, size: int) -> Workload:
    """Boxes of all sizes on the feature pyramid of an image of 800 × 1333 pixels.

    Args:
        boxes: Number of boxes.
        size: Bins along each side of a pooled box.
    """

    def build(generator: torch.Generator) -> Inputs:
        sides = [(200 >> level, 336 >> level) for level in range(4)]
        features = [torch.randn(1, 256, *side, generator=generator) for side in sides]
        corner = torch.rand(1, boxes, 2, generator=generator) * torch.tensor([1000.0, 600.0])
        side = 2 ** (4 + 5 * torch.rand(1, boxes, 2, generator=generator))
        scales = [0.25 / 2**level for level in range(4)]
        layout = torch.channels_last
        features = [feature.contiguous(memory_format=layout) for feature in features]
        return {
            "boxes": torch.cat((corner, corner + side), dim=2),
            "features": features,
            "scales": scales,
            "size": size,
        }

    return build


def _layer(rows: int, inputs: int, outputs: int, *, has_norm: bool = False, has_residual: bool = False) -> Workload:
    """A linear layer of a vision transformer in float16, with a norm and a GELU or with a residual and sums."""

    def build(generator: torch.Generator) -> Inputs:
        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        x = draw(rows, inputs).half()
        given: Inputs = {"x": x, "weight": (draw(outputs, inputs) * inputs**-0.5).half(), "bias": draw(outputs)}
        if has_norm:
            sums = torch.stack((x.float().sum(dim=1), x.float().square().sum(dim=1)), dim=1)
            given |= {"sums": sums[..., None].contiguous(), "activation": "gelu"}
        if has_residual:
            given |= {"residual": draw(rows, outputs).half(), "gives": "sums"}
        return given

    return build


# Of RF-DETR-Seg Nano: 26 × 26 tokens, 256 channels, 100 queries.


def _patches(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        return {
            "images": torch.randn(batch, 3, 312, 312, generator=generator).half(),
            "weight": (torch.randn(384, 432, generator=generator) / 20).half(),
            "positions": torch.randn(677, 384, generator=generator),
            "windows": 1,
        }

    return build


def _scores(batch: int) -> Workload:
    return lambda generator: {"scores": torch.randn(batch, 676, 3, generator=generator), "count": QUERIES}


def _moves(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        return {
            "hidden": torch.randn(batch * QUERIES, 256, generator=generator).half(),
            "weight": torch.randn(4, 256, generator=generator) / 50,
            "bias": torch.zeros(4),
            "references": torch.rand(676, 4, generator=generator),
            "rows": torch.randint(0, batch * 676, (batch * QUERIES,), generator=generator).int(),
            "offsets": torch.randn(QUERIES, 4, generator=generator) / 50,
            "frequencies": 6.28 / 10000 ** (torch.arange(128) // 2 / 64),
        }

    return build


def _points(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        return {
            "projections": torch.randn(batch, QUERIES, 2, 3, 16, generator=generator).half(),
            "boxes": torch.rand(batch, QUERIES, 4, generator=generator),
            "values": torch.randn(batch, 26, 26, 256, generator=generator).half(),
        }

    return build


def _tokens(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        image = torch.randn(batch, 26, 26, 256, generator=generator).half()
        return {"image": image, "size": (MASK_SIDE, MASK_SIDE)}

    return build


def _image(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        return {
            "image": torch.randn(batch, 78, 78, 256, generator=generator).half(),
            "weight": torch.randn(9, 256, generator=generator),
            "bias": torch.randn(256, generator=generator),
        }

    return build


def _queries(batch: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        return {
            "queries": torch.randn(batch, QUERIES, 320, generator=generator).half(),
            "pixels": torch.randn(batch, 78, 78, 256, generator=generator).half(),
        }

    return build


def projections(batch: int, length: int) -> Workload:
    """Projections of six heads of 64, in float16."""

    def build(generator: torch.Generator) -> Inputs:
        projections = torch.randn(batch, length, 3, 6, 64, generator=generator)
        projections[:, :, 0] *= 0.2
        return {"projections": projections.half()}

    return build


def _painted(size: str, masks: int) -> Workload:
    def build(generator: torch.Generator) -> Inputs:
        image = torch.randint(0, 256, (*SIZES_HW[size], 3), dtype=torch.uint8, generator=generator)
        logits = blobs(1, masks, (MASK_SIDE, MASK_SIDE), generator)
        (strings,) = encode_masks(logits, [torch.arange(masks)], [SIZES_HW[size]])
        rles = [{"size": list(SIZES_HW[size]), "counts": counts} for counts in strings]
        colours = torch.randint(0, 256, (masks, 3), dtype=torch.uint8, generator=generator)
        return {"image": image, "masks": rles, "colours": colours, "opacity": 108, "line": 2}

    return build


WORKLOADS: Mapping[str, Mapping[str, Workload]] = {
    "preprocess": {"1080p to 312 × 312": _frames("1080p")},
    "select": {"100 queries, 91 classes, 25 found": _predictions(QUERIES)},
    "encode_masks": {
        **{f"{size}, 25 masks": _masks(size) for size in SIZES_HW},
        "1080p, 25 masks of noise": _masks("1080p", is_noise=True),
    },
    "nms": {
        "5 levels of 1,000 proposals": _boxes(5, 1000, 1, iou_threshold=0.7),
        "500 candidates of 90 classes, 100 stay": _boxes(1, 500, 90, iou_threshold=0.5, max_output=100),
    },
    "roi_align": {"100 boxes, 14 × 14": pyramid(100, 14)},
    "paint": {"1080p, 12 masks": _painted("1080p", 12)},
    "linear": {"677 tokens, 384 to 1,536, norm and GELU": _layer(677, 384, 1536, has_norm=True)},
    "attention": {"677 tokens": projections(1, 677)},
    "embed_patches": {"312 × 312, patches of 12": _patches(1)},
    "rank_tokens": {"100 of 676 tokens": _scores(1)},
    "refine_boxes": {"100 boxes with sines": _moves(1)},
    "deformable_attention": {"100 queries, 2 points of 16 heads": _points(1)},
    "resize_pixels": {"26 × 26 to 78 × 78, 256 channels": _tokens(1)},
    "depthwise_norm": {"78 × 78, 256 channels": _image(1)},
    "mask_logits": {"100 queries, 78 × 78": _queries(1)},
}
"""Workloads by op and name."""

GPU_WORKLOADS: Mapping[str, Mapping[str, Workload]] = {
    "preprocess": {
        "312 × 176 to 312 × 312": _frames("312"),
        "720p to 312 × 312": _frames("720p"),
        "1080p, as cv2 resizes": _frames("1080p", resample="cv2"),
        "8 × 720p, float16 out": _frames("720p", batch=8, dtype=torch.float16),
        "1080p, NV12": _yuv_frames("1080p"),
        "8 × 720p, NV12, float16 out": _yuv_frames("720p", batch=8, dtype=torch.float16),
        "1080p, letterbox": _frames("1080p", letterbox=Letterbox()),
        "1080p, NV12, letterbox": _yuv_frames("1080p", letterbox=Letterbox()),
    },
    "select": {
        "300 queries, 91 classes, all pass": _predictions(300, threshold=0.0, max_detections=300, num_select=300),
        "100 queries, 91 classes, 25 found, letterbox": _letterboxed(_predictions(QUERIES)),
    },
    "encode_masks": {
        **{f"1080p, {masks} masks": _masks("1080p", masks) for masks in (5, 100)},
        "1080p, 25 masks, letterbox": _letterboxed(_masks("1080p")),
        "1080p, 25 masks of noise, letterbox": _letterboxed(_masks("1080p", is_noise=True)),
    },
    "nms": {"5,000 candidates of 90 classes, 100 stay": _boxes(1, 5000, 90, iou_threshold=0.5, max_output=100)},
    "roi_align": {"1,000 boxes, 7 × 7": pyramid(1000, 7)},
    "paint": {"720p, 33 masks": _painted("720p", 33)},
    "linear": {
        "677 tokens, 1,536 to 384, residual and sums": _layer(677, 1536, 384, has_residual=True),
        "16 × 677 tokens, 384 to 1,536, norm and GELU": _layer(16 * 677, 384, 1536, has_norm=True),
        "16 × 677 tokens, 1,536 to 384, residual and sums": _layer(16 * 677, 1536, 384, has_residual=True),
    },
    "attention": {"16 × 677 tokens": projections(16, 677)},
    "embed_patches": {"16 × 312 × 312, patches of 12": _patches(16)},
    "rank_tokens": {"16 × 100 of 676 tokens": _scores(16)},
    "refine_boxes": {"1,600 boxes with sines": _moves(16)},
    "deformable_attention": {"16 × 100 queries, 2 points of 16 heads": _points(16)},
    "resize_pixels": {"16 × 26 × 26 to 78 × 78, 256 channels": _tokens(16)},
    "depthwise_norm": {"16 × 78 × 78, 256 channels": _image(16)},
    "mask_logits": {"16 × 100 queries, 78 × 78": _queries(16)},
}
"""Further workloads for GPUs, by op and name."""


def to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors of inputs, or of one of them, to a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Selection):
        return Selection(**to_device(vars(value), device))
    if isinstance(value, YUVFrames):
        return value.to(device)
    if isinstance(value, dict):
        return {name: to_device(item, device) for name, item in value.items()}
    if isinstance(value, list):
        return [to_device(item, device) for item in value]
    return value


def as_listed(inputs: Inputs) -> Inputs:
    """Replace a `Selection` in inputs by the list of its queries, as an op's record expects them."""
    query = inputs.get("query")
    return {**inputs, "query": query.queries()} if isinstance(query, Selection) else inputs

"""Capture a torchvision detector as one graph of ATen operators, with a custom operator for each NMS.

torch.export refuses unmodified models: `batched_nms`, `BoxCoder.decode` and batch norms branch on the number of boxes,
and the pooler calls `len` on a tensor of symbolic length. `capture` replaces these during the export.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import boxes as box_ops
from torchvision.ops import poolers

from maskjet.errors import InputError, UnsupportedError
from maskjet.networks.torchvision.ownership import check_parts

Detections = list[dict[str, torch.Tensor]]
"""Detections of each image as torchvision returns them: boxes, labels, scores and, from Mask R-CNN, masks."""

_torchvision_batched_nms = box_ops.batched_nms
_LOCK = threading.Lock()


@torch.library.custom_op("maskjet::batched_nms", mutates_args=())
def batched_nms(boxes: torch.Tensor, scores: torch.Tensor, classes: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Torchvision's `batched_nms` as one node of a graph; may keep any number of boxes, even none.

    Args:
        boxes: [N, 4] xyxy.
        scores: [N].
        classes: int64 [N]; boxes of different classes don't suppress each other.
        iou_threshold: A box is suppressed if its IoU with a kept one is larger.

    Returns:
        int64 [n]: indices of the kept boxes, by descending score.
    """
    kept: torch.Tensor = _torchvision_batched_nms(boxes, scores, classes, iou_threshold)
    return kept


@batched_nms.register_fake
def _batched_nms_fake(
    boxes: torch.Tensor,
    scores: torch.Tensor,  # noqa: ARG001
    classes: torch.Tensor,  # noqa: ARG001
    iou_threshold: float,  # noqa: ARG001
) -> torch.Tensor:
    # torchvision's own has a minimum of 2, which the program would assert: images without detections would fail.
    count = torch.library.get_ctx().new_dynamic_size(min=0)
    return boxes.new_empty(count, dtype=torch.int64)


BATCHED_NMS = torch.ops.maskjet.batched_nms.default
"""The overload of the operator that graphs call."""


@dataclass(frozen=True)
class Program:
    """A captured detector, for images of the sizes it was captured with."""

    module: torch.fx.GraphModule
    """Turns a list of images into detections with masks before pasting, float [n, 1, 28, 28]. Shares its weights with
    the model."""
    sizes: tuple[tuple[int, ...], ...]
    """(channels, height, width) of each image of the batch, before the model resizes them."""
    dtype: torch.dtype
    """Data type of the images."""
    device: torch.device
    """Device of the images and the weights."""
    notes: tuple[str, ...]
    """Differences from the model, one line each."""

    @torch.inference_mode()
    def detect(self, images: Sequence[torch.Tensor]) -> Detections:
        """Detect as the model does: run the graph, then paste the masks with torchvision's own code.

        Args:
            images: Float tensors [C, H, W] of the captured sizes, type and device.

        Returns:
            Boxes, labels, scores and, for Mask R-CNN, masks [n, 1, H, W] of each image.

        Raises:
            InputError: The images' sizes, dtype or device are not those of the capture.
        """
        if tuple(tuple(image.shape) for image in images) != self.sizes:
            raise InputError(
                f"images must be of the captured sizes {_list(self.sizes)}, got {_list(i.shape for i in images)}. "
                "Capture the model again for these."
            )
        for image in images:
            if image.dtype != self.dtype or image.device != self.device:
                raise InputError(f"images must be {self.dtype} on {self.device}, got {image.dtype} on {image.device}.")
        detections: Detections = self.module(list(images))
        for found, size in zip(detections, self.sizes, strict=True):
            if "masks" in found:
                found["masks"] = paste_masks_in_image(found["masks"], found["boxes"], size[1:])
        return detections


def capture(model: GeneralizedRCNN, images: Sequence[torch.Tensor]) -> Program:
    """Turn torchvision's Faster or Mask R-CNN into one graph for images of these sizes.

    Runs the model once, then exports it, and leaves it as it was. Calls from several threads wait for each other. Other
    threads may run other models meanwhile, but not this one.

    Args:
        model: A GeneralizedRCNN in eval mode without keypoints, as torchvision builds it.
        images: Batch of float tensors [C, H, W], 0..1, on the model's device. The program is valid only for their
            sizes, from which the model computes its resizing, the clipping of boxes and the scales of levels.

    Raises:
        InputError: The model or the images are not as above.
        UnsupportedError: The model also detects keypoints, or its transform or box coders are not torchvision's.
    """
    _check(model, images)
    with _LOCK, torch.no_grad(), ExitStack() as patches:
        for owner, name, value in _patches(model):
            patches.enter_context(_replaced(owner, name, value))
        model(list(images))  # sets the poolers' scales and the anchors' dtype, constants of the graph
        patches.enter_context(_replaced(model.rpn.anchor_generator, "set_cell_anchors", _keep_cell_anchors))
        exported = torch.export.export(_Inference(model), (list(images),), strict=False)
    module = exported.module()
    suppressions = sum(node.target is BATCHED_NMS for node in module.graph.nodes)
    return Program(
        module=module,
        sizes=tuple(tuple(image.shape) for image in images),
        dtype=images[0].dtype,
        device=images[0].device,
        notes=(
            f"batched_nms is one node, maskjet::batched_nms: {suppressions} for {len(images)} images",
            "masks are pasted outside of the graph, by detect()",
            "only for images of the captured sizes, dtype and device",
        ),
    )


class _Inference(nn.Module):
    """The module that is captured: the model without pasting of masks."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: list[torch.Tensor]) -> Detections:
        model = self.model
        batch, _ = model.transform(images)
        features = model.backbone(batch.tensors)
        if isinstance(features, torch.Tensor):
            features = {"0": features}
        proposals, _ = model.rpn(batch, features)
        detections: Detections
        detections, _ = model.roi_heads(features, proposals, batch.image_sizes)
        for found, size, image in zip(detections, batch.image_sizes, images, strict=True):
            found["boxes"] = resize_boxes(found["boxes"], size, image.shape[-2:])
        return detections


def _check(model: Any, images: Sequence[torch.Tensor]) -> None:
    if not isinstance(model, GeneralizedRCNN) or type(model).forward is not GeneralizedRCNN.forward:
        raise InputError(f"model must be a Faster or Mask R-CNN of torchvision, got {type(model).__name__}.")
    if model.training:
        raise InputError("model must be in eval mode, got one in training mode. Call model.eval() first.")
    if not images:
        raise InputError("images must be at least one tensor [C, H, W], got none.")
    for image in images:
        if image.ndim != 3 or not image.is_floating_point():
            raise InputError(f"images must be float tensors [C, H, W], got {image.dtype} {list(image.shape)}.")
    if model.roi_heads.has_keypoint():
        raise UnsupportedError("model must be without keypoints: decoding them is a loop over the detections.")
    check_parts(model, ("transform", "rpn.box_coder", "roi_heads.box_coder"))  # other parts run as they are


def _patches(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield owner, name and new value of attributes to replace; the current value of those only to be restored."""
    yield box_ops, "batched_nms", batched_nms
    yield poolers, "len", _count  # shadows the builtin in that module
    for coder in (model.rpn.box_coder, model.roi_heads.box_coder):
        yield coder, "decode", partial(_decode, coder)
    for layer in model.roi_heads.modules():
        if isinstance(layer, nn.BatchNorm2d) and layer.track_running_stats:
            yield layer, "forward", partial(_normalise, layer)
    for pool in (model.roi_heads.box_roi_pool, model.roi_heads.mask_roi_pool):
        if isinstance(pool, poolers.MultiScaleRoIAlign):
            yield pool, "scales", pool.scales
            yield pool, "map_levels", pool.map_levels
    if isinstance(model.rpn.anchor_generator, AnchorGenerator):
        yield model.rpn.anchor_generator, "cell_anchors", model.rpn.anchor_generator.cell_anchors


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module or an instance for a while."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _count(values: Any) -> Any:
    """`len` that leaves the length of a tensor symbolic."""
    return values.shape[0] if isinstance(values, torch.Tensor) else len(values)


def _decode(coder: Any, deltas: torch.Tensor, anchors: list[torch.Tensor]) -> torch.Tensor:
    """`BoxCoder.decode` without its branch on the number of boxes: float [N, classes, 4]."""
    boxes: torch.Tensor = coder.decode_single(deltas, torch.cat(anchors))
    return boxes.reshape(boxes.shape[0], boxes.shape[1] // 4, 4)


def _normalise(layer: nn.BatchNorm2d, features: torch.Tensor) -> torch.Tensor:
    """Batch norm in eval mode without `torch.batch_norm`'s branch on empty inputs."""
    normalised: torch.Tensor
    # The momentum, 0.0, matters in training only.
    normalised, _, _ = torch.ops.aten._native_batch_norm_legit_no_training.default(
        features, layer.weight, layer.bias, layer.running_mean, layer.running_var, 0.0, layer.eps
    )
    return normalised


def _keep_cell_anchors(_dtype: torch.dtype, _device: torch.device) -> None:
    """Do nothing: anchors are already set, and setting attributes during export is an error."""


def _list(shapes: Any) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes) or "none"

"""A torchvision detector as one graph of ATen operators, with one operator of ours where its NMS stood.

torch.export refuses the models as they are: `batched_nms`, `BoxCoder.decode` and batch norms branch on how many boxes
there are, and the pooler asks for `len` of a tensor whose length is not known yet. `capture` replaces these meanwhile.
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
    """Torchvision's `batched_nms` as one node of a graph, which may keep any number of boxes, none included.

    Args:
        boxes: [N, 4] xyxy.
        scores: [N].
        classes: int64 [N]; boxes of different classes don't touch each other.
        iou_threshold: A box goes if its intersection over union with one that stays is larger.

    Returns:
        int64 [n]: positions of the boxes that stay, in descending order of their scores.
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
    # torchvision's own has a minimum of 2, which the program would insist on: no image without detections could run.
    count = torch.library.get_ctx().new_dynamic_size(min=0)
    return boxes.new_empty(count, dtype=torch.int64)


BATCHED_NMS = torch.ops.maskjet.batched_nms.default
"""The operator, as graphs call it."""


@dataclass(frozen=True)
class Program:
    """A captured detector, for images of the sizes it was captured with."""

    module: torch.fx.GraphModule
    """Takes the list of images, returns detections whose masks are not pasted yet (float [n, 1, 28, 28]). Shares its
    weights with the model."""
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
            Per image boxes, labels, scores and, of Mask R-CNN, masks [n, 1, H, W].

        Raises:
            InputError: The images are not like those the model was captured with.
        """
        if tuple(tuple(image.shape) for image in images) != self.sizes:
            raise InputError(
                f"images must be of the captured sizes {_list(self.sizes)}, got {_list(i.shape for i in images)}. "
                "Capture the model once more for these."
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

    Runs the model once, then exports it. The model is left as it was. Calls from several threads wait for each other;
    what other threads run eagerly of *other* models is right, but nothing else may use this model until it returns.

    Args:
        model: A GeneralizedRCNN in eval mode without keypoints, as torchvision builds it.
        images: Float tensors [C, H, W], 0..1, on the model's device: a batch. The program serves only its sizes, since
            the model computes with them: clips boxes, resizes, picks scales.

    Raises:
        InputError: The model is no such model, or the images are none.
        UnsupportedError: The model also detects keypoints, or its transform or box coders are not torchvision's.
    """
    _check(model, images)
    with _LOCK, torch.no_grad(), ExitStack() as patches:
        for owner, name, value in _patches(model):
            patches.enter_context(_replaced(owner, name, value))
        model(list(images))  # settles the scales of the poolers and the type of the anchors, which the graph then holds
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
            "keeps to the sizes, the type and the device of the images it was captured with",
        ),
    )


class _Inference(nn.Module):
    """The module that is captured: all but pasting the masks."""

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
    check_parts(model, ("transform", "rpn.box_coder", "roi_heads.box_coder"))  # the others are called


def _patches(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """Owner, attribute and value of what is replaced; an attribute's own value if it is only put back afterwards."""
    yield box_ops, "batched_nms", batched_nms
    yield poolers, "len", _count  # hides the builtin one there
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
    """`BoxCoder.decode` without its branch on whether there are boxes: float [N, classes, 4]."""
    boxes: torch.Tensor = coder.decode_single(deltas, torch.cat(anchors))
    return boxes.reshape(boxes.shape[0], boxes.shape[1] // 4, 4)


def _normalise(layer: nn.BatchNorm2d, features: torch.Tensor) -> torch.Tensor:
    """A batch norm in eval mode, without the branch of `torch.batch_norm` on whether there is anything to normalise."""
    normalised: torch.Tensor
    # The momentum counts in training only.
    normalised, _, _ = torch.ops.aten._native_batch_norm_legit_no_training.default(
        features, layer.weight, layer.bias, layer.running_mean, layer.running_var, 0.0, layer.eps
    )
    return normalised


def _keep_cell_anchors(_dtype: torch.dtype, _device: torch.device) -> None:
    """Do nothing: the anchors were settled before, and setting attributes during capture is an error."""


def _list(shapes: Any) -> str:
    return ", ".join("×".join(map(str, shape)) for shape in shapes) or "none"

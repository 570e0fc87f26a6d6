"""Other projects' postprocess of RF-DETR-Seg, called as they call it themselves, where they are installed.

A peer's masks may differ where a value lies within 1e-3 of zero: none rounds exactly as the reference does. The
report says by how much each did.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from types import ModuleType

import torch

from benchmarks.rungs import THRESHOLD, Found, Postprocess, Request, Rung
from benchmarks.workloads import CLASSES, MASK_SIDE, QUERIES
from maskjet.errors import UnsupportedError

_TOLERANCE = 100.0
_INFERENCE = "inference_models.models.rfdetr"


def load_module(module: str, package: str) -> ModuleType:
    """Import a peer's module.

    Args:
        module: Its dotted name.
        package: What to install to have it.

    Returns:
        The module.

    Raises:
        UnsupportedError: It can't be imported; says why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not ours to heed
            return importlib.import_module(module)
    except Exception as error:  # whatever else its own dependencies raise
        raise UnsupportedError(f"{module} can't be imported, {error}: pip install {package}") from error


def _build_rfdetr(_device: torch.device) -> Postprocess:
    postprocess = load_module("rfdetr.models.postprocess", "rfdetr").PostProcess(num_select=QUERIES)

    def run(request: Request) -> Found:
        outputs = {"pred_logits": request.logits, "pred_boxes": request.boxes, "pred_masks": request.mask_logits}
        sizes = request.scale[None, 1:3]  # (height, width)
        (found,) = postprocess(outputs, sizes, score_threshold=THRESHOLD)
        scores, masks = found["scores"], found["masks"][:, 0]
        return Found(len(scores), None, found["labels"], scores, found["boxes"], masks)

    return run


def _build_inference_torch(device: torch.device) -> Postprocess:
    post_process = load_module(
        f"{_INFERENCE}.common", "inference-models"
    ).post_process_instance_segmentation_results_to_rle_masks
    classes = _identity(device)

    def run(request: Request) -> Found:
        (found,) = post_process(
            bboxes=request.boxes,
            logits=request.logits,
            masks=request.mask_logits,
            pre_processing_meta=[_metadata(request.size_hw)],
            threshold=THRESHOLD,
            num_classes=CLASSES,
            classes_re_mapping=classes,
            max_detections=QUERIES,
        )
        return _as_found(found)

    return run


def _build_inference_triton(device: torch.device) -> Postprocess:
    if device.type != "cuda":
        raise UnsupportedError("its Triton kernels need a GPU")
    module = load_module(f"{_INFERENCE}.triton_postprocess", "inference-models")
    post_process = module.post_process_single_instance_segmentation_result_to_rle_masks_triton
    classes = _identity(device)
    fallback = _build_inference_torch(device)

    def run(request: Request) -> Found:
        found = post_process(
            image_bboxes=request.boxes[0],
            image_scores=request.logits[0].sigmoid(),
            image_masks=request.mask_logits[0],
            image_meta=_metadata(request.size_hw),
            threshold=THRESHOLD,
            classes_re_mapping=classes,
            max_detections=QUERIES,
        )
        return fallback(request) if found is None else _as_found(found)  # its buffers overflowed; so it does itself

    return run


def _identity(device: torch.device) -> object:
    """The peer's class mapping that maps every class to itself; its Triton kernels demand one."""
    mapping = load_module(f"{_INFERENCE}.class_remapping", "inference-models").ClassesReMapping
    classes = torch.arange(CLASSES, device=device)
    return mapping(remaining_class_ids=classes, class_mapping=classes)


def _metadata(size_hw: tuple[int, int]) -> object:
    """What the peer's preprocessing says of an image of that size, stretched to the network's input."""
    entities = importlib.import_module("inference_models.entities")
    packages = importlib.import_module("inference_models.models.common.roboflow.model_packages")
    size, side = entities.ImageDimensions(*size_hw), 4 * MASK_SIDE
    return packages.PreProcessingMetadata(
        pad_left=0,
        pad_top=0,
        pad_right=0,
        pad_bottom=0,
        original_size=size,
        size_after_pre_processing=size,
        inference_size=entities.ImageDimensions(side, side),
        scale_width=side / size.width,
        scale_height=side / size.height,
        static_crop_offset=packages.StaticCropOffset(0, 0, size.width, size.height),
    )


def _as_found(found: object) -> Found:
    strings = [text.encode() if isinstance(text, str) else text for text in found.mask.masks]  # type: ignore[attr-defined]
    fields = (found.class_id, found.confidence, found.xyxy)  # type: ignore[attr-defined]
    return Found(len(strings), None, *fields, strings)


PEERS: Mapping[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung("rfdetr", "rfdetr's PostProcess", _build_rfdetr, tolerance=_TOLERANCE),
        Rung(
            "inference_torch",
            "inference-models' postprocess to RLE in PyTorch",
            _build_inference_torch,
            output="rle",
            tolerance=_TOLERANCE,
            rounds_boxes=True,
        ),
        Rung(
            "inference_triton",
            "inference-models' postprocess to RLE in Triton",
            _build_inference_triton,
            output="rle",
            tolerance=_TOLERANCE,
            rounds_boxes=True,
        ),
    )
}
"""By name."""

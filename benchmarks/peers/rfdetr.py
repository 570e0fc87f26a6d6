"""The peer rfdetr: postprocess, and whole pipeline from a frame to COCO RLE on the host."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.peers.loading import TF32, building, check_spec, fill, float32_products, load_module
from benchmarks.peers.pipeline import Pipeline
from benchmarks.rungs import THRESHOLD, Instances, Postprocess, Request
from benchmarks.workloads import QUERIES
from maskjet.detections import Detections
from maskjet.spec import ModelSpec


def build_postprocess(_device: torch.device) -> Postprocess:
    """Build rfdetr's PostProcess."""
    postprocess = load_module("rfdetr.models.postprocess", "rfdetr").PostProcess(num_select=QUERIES)

    def run(request: Request) -> Instances:
        outputs = {"pred_logits": request.logits, "pred_boxes": request.boxes, "pred_masks": request.mask_logits}
        sizes = request.scale[None, 1:3]  # (height, width)
        (found,) = postprocess(outputs, sizes, score_threshold=THRESHOLD)
        scores, masks = found["scores"], found["masks"][:, 0]
        return Instances(len(scores), None, found["labels"], scores, found["boxes"], masks)

    return run


def build(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build rfdetr's predict in float32, with products in TF32 where the device has it."""
    return _pipeline(_load(state, spec, device), spec, threshold)


def build_exact(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build rfdetr's predict in float32, without TF32."""
    return _pipeline(_load(state, spec, device), spec, threshold, products="highest")


def build_fp16(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build rfdetr's predict after inference(dtype=torch.float16)."""
    model = _load(state, spec, device)
    with building("rfdetr's inference(dtype=torch.float16)"):
        model.inference(dtype=torch.float16)
    return _pipeline(model, spec, threshold)


def build_inductor(
    state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float
) -> Pipeline:
    """Build rfdetr's predict after inference(dtype=torch.float16, compile_backend="inductor"); takes half a minute.

    It leaves out the copy of the frame that predict keeps by default.
    """
    model = _load(state, spec, device)
    with building('rfdetr\'s inference(compile_backend="inductor")'):
        model.inference(dtype=torch.float16, compile_backend="inductor")
    return _pipeline(model, spec, threshold, keeps_frame=False)


def build_fastest(
    state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float
) -> Pipeline:
    """Build rfdetr's predict in its fastest mode: compiled by inductor on a GPU, in float32 on a CPU."""
    return (build_inductor if device.type == "cuda" else build)(state, spec, device, threshold)


def export_onnx(state: Mapping[str, torch.Tensor], spec: ModelSpec, folder: Path) -> str:
    """Have rfdetr export a network to an ONNX file; returns its path."""
    model = _load(state, spec, torch.device("cpu"))
    with building("rfdetr"), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # the tracer warns about rfdetr's code
        return str(model.export(output_dir=str(folder), verbose=False))


def _load(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device) -> Any:
    check_spec(spec)
    with building("rfdetr"):
        rfdetr = load_module("rfdetr", "rfdetr")
        logging.getLogger("rf-detr").setLevel(logging.ERROR)
        model = rfdetr.RFDETRSegNano(pretrain_weights=None, device=str(device))
        fill(model.model.model, state)
    return model


def _pipeline(
    model: Any, spec: ModelSpec, threshold: float, products: str = TF32, *, keeps_frame: bool = True
) -> Pipeline:
    """A model's predict, alone and with its masks encoded by pycocotools."""
    encode = load_module("pycocotools.mask", "pycocotools").encode

    @float32_products(products)
    def predict(frame: Any) -> Any:
        return model.predict(frame, threshold=threshold, include_source_image=keeps_frame)

    def detect(frame: Any) -> Detections:
        found = predict(frame)
        # pycocotools reads columns; transposing plane by plane takes a third of np.asfortranarray's time.
        planes = (cv2.transpose(mask.view(np.uint8)).T for mask in found.mask)
        return Detections(
            image_size=found.mask.shape[1:],  # frames may be of any kind that predict takes
            xyxy=found.xyxy.astype(np.float32),
            confidence=found.confidence.astype(np.float32),
            class_id=found.class_id.astype(np.int32),
            rle=[encode(plane) for plane in planes],
            class_names=spec.class_names,
        )

    return Pipeline(predict, detect)

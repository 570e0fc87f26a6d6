"""The peer inference-models: postprocess to RLE, and whole pipeline from a frame to COCO RLE on the host."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.peers.loading import TF32, building, check_spec, fill, float32_products, load_module
from benchmarks.peers.pipeline import Image, Pipeline
from benchmarks.peers.rfdetr import export_onnx
from benchmarks.rungs import THRESHOLD, Instances, Postprocess, Request
from benchmarks.workloads import CLASSES, MASK_SIDE, QUERIES
from maskjet.detections import Detections
from maskjet.errors import UnsupportedError
from maskjet.host.timing import synchronize
from maskjet.spec import ModelSpec

_INFERENCE = "inference_models.models.rfdetr"


def build_torch_postprocess(device: torch.device) -> Postprocess:
    """Build inference-models' postprocess in PyTorch."""
    post_process = load_module(
        f"{_INFERENCE}.common", "inference-models"
    ).post_process_instance_segmentation_results_to_rle_masks
    classes = _identity(device)

    def run(request: Request) -> Instances:
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
        return _to_instances(found)

    return run


def build_triton_postprocess(device: torch.device) -> Postprocess:
    """Build inference-models' postprocess in Triton."""
    if device.type != "cuda":
        raise UnsupportedError("its Triton kernels need a GPU")
    module = load_module(f"{_INFERENCE}.triton_postprocess", "inference-models")
    post_process = module.post_process_single_instance_segmentation_result_to_rle_masks_triton
    classes = _identity(device)
    fallback = build_torch_postprocess(device)

    def run(request: Request) -> Instances:
        found = post_process(
            image_bboxes=request.boxes[0],
            image_scores=request.logits[0].sigmoid(),
            image_masks=request.mask_logits[0],
            image_meta=_metadata(request.size_hw),
            threshold=THRESHOLD,
            classes_re_mapping=classes,
            max_detections=QUERIES,
        )
        if found is None:  # its buffers overflowed; inference-models then does the same
            return fallback(request)
        return _to_instances(found)

    return run


def _identity(device: torch.device) -> object:
    """Make a class mapping that keeps all classes, which the peer's Triton kernels require."""
    mapping = load_module(f"{_INFERENCE}.class_remapping", "inference-models").ClassesReMapping
    classes = torch.arange(CLASSES, device=device)
    return mapping(remaining_class_ids=classes, class_mapping=classes)


def _metadata(size_hw: tuple[int, int]) -> object:
    """Make the peer's preprocessing metadata of an image that was stretched to the network's input."""
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


def _to_instances(found: object) -> Instances:
    strings = [text.encode() if isinstance(text, str) else text for text in found.mask.masks]  # type: ignore[attr-defined]
    fields = (found.class_id, found.confidence, found.xyxy)  # type: ignore[attr-defined]
    return Instances(len(strings), None, *fields, strings)


def build(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build inference-models' infer with PyTorch in float32."""
    return _pipeline(_load(state, spec, device), spec, device, threshold)


def build_fp16(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build inference-models' infer with all that works without TensorRT: traced in float16, RLE by Triton.

    That is optimize_for_inference(dtype=torch.float16) and INFERENCE_MODELS_RFDETR_TRITON_POSTPROC_ENABLED. Its other
    flags are for TensorRT only: preprocessing in Triton, CUDA graphs, two frames in flight.
    """
    if device.type != "cuda":
        raise UnsupportedError("its Triton kernels need a GPU")
    model = _load(state, spec, device)
    with building("inference-models' optimize_for_inference(dtype=torch.float16)"):
        model.optimize_for_inference(dtype=torch.float16)
    _encode_by_triton(model, device)
    return _pipeline(model, spec, device, threshold)


def build_onnx(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """Build inference-models' infer with ONNX Runtime, of the float32 file that rfdetr exports; RLE by Triton on a GPU.

    On a GPU ONNX Runtime computes products in TF32, its default.
    """
    check_spec(spec)
    with building("inference-models with ONNX Runtime"), TemporaryDirectory() as name:
        module = _import("rfdetr_instance_segmentation_onnx")
        folder = Path(name)
        Path(export_onnx(state, spec, folder)).rename(folder / "weights.onnx")
        _write_description(folder, spec)
        provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
        model = module.RFDetrForInstanceSegmentationOnnx.from_pretrained(
            name, onnx_execution_providers=[provider], device=device
        )
    if device.type == "cuda":
        if model._session.get_providers()[0] != provider:
            raise UnsupportedError("ONNX Runtime can't use the GPU: pip install onnxruntime-gpu")
        _encode_by_triton(model, device)
    return _pipeline(model, spec, device, threshold)


def _encode_by_triton(model: Any, device: torch.device) -> None:
    model._classes_re_mapping = _identity(device)  # which its Triton kernels need
    common: Any = load_module(f"{_INFERENCE}.common", "inference-models")
    common._TRITON_POSTPROC_ENABLED = True  # the flag, which is read at import; without a mapping it has no effect


def _import(name: str) -> Any:
    module = load_module(f"{_INFERENCE}.{name}", "inference-models")
    logging.getLogger("inference-models").setLevel(logging.ERROR)
    return module


def _load(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device) -> Any:
    check_spec(spec)
    with building("inference-models"), TemporaryDirectory() as folder:
        module = _import("rfdetr_instance_segmentation_pytorch")
        _write_package(Path(folder), state, spec)
        return module.RFDetrForInstanceSegmentationTorch.from_pretrained(folder, device=device)


def _pipeline(model: Any, spec: ModelSpec, device: torch.device, threshold: float) -> Pipeline:
    """A model's infer, to dense masks that stay on the device, and to RLE."""

    @float32_products(TF32)
    def infer(frame: Image, mask_format: str) -> Any:
        (found,) = model.infer(frame, input_color_format="rgb", confidence=threshold, mask_format=mask_format)
        return found

    def predict(frame: Image) -> Any:
        found = infer(frame, "dense")
        synchronize(device)
        return found.mask

    def detect(frame: Image) -> Detections:
        found = infer(frame, "rle")
        return Detections(
            image_size=(frame.shape[0], frame.shape[1]),
            xyxy=found.xyxy.cpu().numpy().astype(np.float32),
            confidence=found.confidence.cpu().numpy().astype(np.float32),
            class_id=found.class_id.cpu().numpy().astype(np.int32),
            rle=found.mask.to_coco_rle_masks(),
            class_names=spec.class_names,
        )

    return Pipeline(predict, detect)


def _write_package(folder: Path, state: Mapping[str, torch.Tensor], spec: ModelSpec) -> None:
    """Write the files that inference-models loads a PyTorch model from."""
    network = load_module(f"{_INFERENCE}.rfdetr_base_pytorch", "inference-models")
    config = network.RFDETRSegNanoConfig(device=torch.device("cpu"), num_classes=spec.class_logits - 1)
    module = network.build_model(config=config)
    fill(module, state)
    torch.save({"model": module.state_dict()}, folder / "weights.pth")
    (folder / "model_type.json").write_text(json.dumps({"model_type": "rfdetr-seg-nano"}))
    _write_description(folder, spec)


def _write_description(folder: Path, spec: ModelSpec) -> None:
    """Write the names of classes, and how frames become the network's input."""
    # One line per class logit: inference-models drops detections of classes without a name.
    names = [spec.class_names.get(number, str(number)) for number in range(spec.class_logits)]
    (folder / "class_names.txt").write_text("\n".join(names))
    network_input = {
        "training_input_size": {"height": spec.input_size, "width": spec.input_size},
        "dynamic_spatial_size_supported": False,
        "color_mode": "rgb",
        "resize_mode": "stretch",
        "input_channels": 3,
        "scaling_factor": 255,
        "normalization": [spec.mean, spec.std],
    }
    (folder / "inference_config.json").write_text(json.dumps({"network_input": network_input}))

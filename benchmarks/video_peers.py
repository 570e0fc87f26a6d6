"""Other projects' whole way from an RGB frame to COCO RLE on the host, called as they say, with the weights given.

Both peers set PyTorch's float32 products to "high" (TF32 on a GPU) for the whole process when they are imported. Here
they run under that setting, and whatever else runs in the process keeps its own.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers import load_module
from maskjet.detections import Detections
from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.parity.variants import BuildPipeline, Detect
from maskjet.spec import SPECS, ModelSpec

_NANO = SPECS["rf-detr-seg-nano"]
_INFERENCE = "inference_models.models.rfdetr"
_TF32 = "high"  # PyTorch's word


@dataclass(frozen=True)
class Peer:
    """One project's pipeline, in one of its modes."""

    name: str
    """For reports and the command line."""
    what: str
    """One line for humans."""
    build: BuildPipeline
    """Makes its pipeline."""


def _build_rfdetr(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float) -> Detect:
    return _rfdetr_pipeline(_load_rfdetr(state, spec, device), spec, threshold)


def _build_rfdetr_ieee(
    state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float
) -> Detect:
    return _rfdetr_pipeline(_load_rfdetr(state, spec, device), spec, threshold, products="highest")


def _build_rfdetr_fp16(
    state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float
) -> Detect:
    model = _load_rfdetr(state, spec, device)
    with _building("rfdetr's inference(dtype=torch.float16)"):
        model.inference(dtype=torch.float16)
    return _rfdetr_pipeline(model, spec, threshold)


def _load_rfdetr(state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device) -> Any:
    _check_spec(spec)
    with _building("rfdetr"):
        rfdetr = load_module("rfdetr", "rfdetr")
        logging.getLogger("rf-detr").setLevel(logging.ERROR)
        model = rfdetr.RFDETRSegNano(pretrain_weights=None, device=str(device))
        _fill(model.model.model, state)
    return model


def _rfdetr_pipeline(model: Any, spec: ModelSpec, threshold: float, products: str = _TF32) -> Detect:
    encode = load_module("pycocotools.mask", "pycocotools").encode

    @_float32_products(products)
    def detect(frame: NDArray[np.uint8]) -> Detections:
        found = model.predict(frame, threshold=threshold)
        # pycocotools reads columns. Transposing plane by plane takes a third of np.asfortranarray's time.
        planes = (cv2.transpose(mask.view(np.uint8)).T for mask in found.mask)
        return Detections(
            image_size=(frame.shape[0], frame.shape[1]),
            xyxy=found.xyxy.astype(np.float32),
            confidence=found.confidence.astype(np.float32),
            class_id=found.class_id.astype(np.int32),
            rle=[encode(plane) for plane in planes],
            class_names=spec.class_names,
        )

    return detect


def _build_inference_models(
    state: Mapping[str, torch.Tensor], spec: ModelSpec, device: torch.device, threshold: float
) -> Detect:
    _check_spec(spec)
    with _building("inference-models"), TemporaryDirectory() as folder:
        module = load_module(f"{_INFERENCE}.rfdetr_instance_segmentation_pytorch", "inference-models")
        logging.getLogger("inference-models").setLevel(logging.ERROR)
        _write_package(Path(folder), state, spec)
        model = module.RFDetrForInstanceSegmentationTorch.from_pretrained(folder, device=device)

    @_float32_products(_TF32)
    def detect(frame: NDArray[np.uint8]) -> Detections:
        (found,) = model.infer(frame, input_color_format="rgb", confidence=threshold, mask_format="rle")
        return Detections(
            image_size=(frame.shape[0], frame.shape[1]),
            xyxy=found.xyxy.cpu().numpy().astype(np.float32),
            confidence=found.confidence.cpu().numpy().astype(np.float32),
            class_id=found.class_id.cpu().numpy().astype(np.int32),
            rle=found.mask.to_coco_rle_masks(),
            class_names=spec.class_names,
        )

    return detect


def _write_package(folder: Path, state: Mapping[str, torch.Tensor], spec: ModelSpec) -> None:
    """Write the files that inference-models loads a model from."""
    network = load_module(f"{_INFERENCE}.rfdetr_base_pytorch", "inference-models")
    config = network.RFDETRSegNanoConfig(device=torch.device("cpu"), num_classes=spec.class_logits - 1)
    module = network.build_model(config=config)
    _fill(module, state)
    torch.save({"model": module.state_dict()}, folder / "weights.pth")
    # One line per class logit: it drops what scores beyond them.
    names = [spec.class_names.get(number, str(number)) for number in range(spec.class_logits)]
    (folder / "class_names.txt").write_text("\n".join(names))
    (folder / "model_type.json").write_text(json.dumps({"model_type": "rfdetr-seg-nano"}))
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


def _check_spec(spec: ModelSpec) -> None:
    if replace(spec, name=_NANO.name, class_names=_NANO.class_names) != _NANO:
        raise UnsupportedError(f"the peers run {_NANO.name} only, got {spec.name}, whose architecture is another.")


@torch.no_grad()
def _fill(module: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a peer's module; of its 13 query groups into the first, the one that infers."""
    theirs = module.state_dict()
    for name, tensor in state.items():
        theirs[name][: len(tensor)] = tensor


@contextmanager
def _building(what: str) -> Generator[None]:
    """Say of whatever a peer raises that it can't run, and keep its warnings to itself."""
    try:
        with warnings.catch_warnings(), _float32_products(_TF32):
            warnings.simplefilter("ignore")
            yield
    except MaskjetError:
        raise
    except Exception as error:
        raise UnsupportedError(f"{what} can't be built here, {type(error).__name__}: {error}") from error


@contextmanager
def _float32_products(precision: str) -> Generator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("rfdetr", "rfdetr's predict in float32, its dense masks to RLE by pycocotools", _build_rfdetr),
        Peer(
            "rfdetr_fp16", "the same after inference(dtype=torch.float16), traced for batches of 1", _build_rfdetr_fp16
        ),
        Peer(
            "inference_models",
            "inference-models' infer with PyTorch in float32, masks as RLE; resizes antialiased, by Pillow on the host",
            _build_inference_models,
        ),
    )
}
"""By name."""

ORACLE = Peer(
    "rfdetr_ieee", "rfdetr's predict in float32, its products without TF32: the definition", _build_rfdetr_ieee
)
"""What ours should equal; nobody runs it so."""

"""The engine's configuration: every setting with its default."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from maskjet.checks import check_choice, check_count, check_fraction, parse_color, parse_hw
from maskjet.errors import InputError, UnsupportedError, suggest
from maskjet.host.devices import name_device
from maskjet.spec import ModelSpec

if TYPE_CHECKING:
    import torch


Precision = Literal["auto", "fp32", "fp16", "bf16", "int8"]
Driver = Literal["auto", "graph", "eager"]
RuntimeName = Literal["auto", "torch", "fused", "onnxruntime", "openvino"]
Resample = Literal["auto", "bilinear", "cv2", "antialias"]
Resizing = Literal["auto", "stretch", "letterbox"]
Placing = Literal["auto", "center", "top-left"]
Decoder = Literal["auto", "cpu", "cuda"]
Comparison = Literal["mask", "box"]
Implementation = Literal["auto", "reference", "triton", "cpu"]
Step = Literal["preprocess", "select", "encode_masks"]

NMS = ("nms", "nms_by", "nms_across_classes")
"""Fields of `EngineConfig` that say which detections are duplicates."""
DEFAULT_THRESHOLD = ModelSpec.threshold
"""Default of the confidence that detections must exceed."""
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ENVIRONMENT_PREFIX = "MASKJET_"
_SWITCHES = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class EngineConfig:
    """Settings with which a model runs: device, precision, engine and implementations.

    Field names are the command line's flags and, in capitals behind MASKJET_, its environment variables. Each field's
    annotation describes it; the command line shows the same text.
    """

    device: Annotated[str, "auto (the first GPU, else the CPU), cpu, cuda, or cuda:N, or N for short."] = "auto"
    precision: Annotated[
        Precision,
        "Type of weights and activations; boxes and scores stay float32. auto: fp16 on a GPU, fp32 on a CPU; int8: of "
        "the model demo, and of files of maskjet quantize, on a CPU.",
    ] = "auto"
    runtime: Annotated[
        RuntimeName,
        "What runs the network. auto: fused for an RF-DETR on a GPU if it can and compile is not given, else torch; "
        "onnxruntime for .onnx, openvino for .xml and for what maskjet warm converted. fused: kernels of our own.",
    ] = "auto"
    engine: Annotated[
        Driver, "graph: a frame is one CUDA graph; eager: one step at a time; auto: graph if all steps allow it."
    ] = "auto"
    compile: Annotated[
        bool | None,
        "torch.compile the network before the first frame: 20 s per batch size, and per frame size of torchvision's "
        "detectors, the first time on a machine. Not given: on a GPU only, for what fused does not run, but for them.",
    ] = None
    implementation: Annotated[
        Implementation | Mapping[Step, Implementation],
        "Code of the steps around the network: auto, reference, triton or cpu; or by step, with commas, as in "
        "select=reference.",
    ] = "auto"
    resample: Annotated[
        Resample,
        "How to resize. bilinear: as rfdetr's predict; antialias: every pixel counts, as torchvision's resize with "
        "antialias; cv2: as cv2.resize. auto: antialias if the model's file says so, else bilinear.",
    ] = "auto"
    input_size: Annotated[
        tuple[int, int] | None,
        "Size that RF-DETR sees frames in, WIDTHxHEIGHT, for a checkpoint that was trained so. Not given: its own.",
    ] = None
    resize: Annotated[
        Resizing,
        "How frames become RF-DETR's input. stretch: they fill it; letterbox: they keep their aspect ratio, with a "
        "margin. auto: as the checkpoint says, else stretch.",
    ] = "auto"
    letterbox_color: Annotated[
        str, "Colour of a letterbox's margin, #rrggbb. auto: the checkpoint's own, else #727272, grey."
    ] = "auto"
    letterbox_place: Annotated[
        Placing, "Where in a letterbox frames lie. auto: as the checkpoint says, else in the center."
    ] = "auto"
    decoder: Annotated[
        Decoder,
        "Where videos and JPEGs are decoded. cuda: by the model's GPU, where frames stay; auto: by the GPU where that "
        "is faster: JPEGs; H.264, HEVC, VP8 and VP9 from 720p on, and live streams from three on, with 8 bits.",
    ] = "auto"
    max_detections: Annotated[int, "Most detections per frame, the most confident ones."] = ModelSpec.max_detections
    nms: Annotated[
        float,
        "Of detections of a class that overlap more, intersection over union 0..1, the most confident one stays. 1: "
        "all stay, as in rfdetr.",
    ] = 1.0
    nms_by: Annotated[Comparison, "What nms compares: masks, or boxes where there are none; or boxes."] = "mask"
    nms_across_classes: Annotated[bool, "Whether nms compares detections of different classes, too."] = False
    batch: Annotated[int, "Most images of one predict call or folder, or frames of several sources, in one batch."] = 8
    nvtx: Annotated[bool, "Mark the host's work on each batch with NVTX ranges, for Nsight Systems (GPU)."] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", name_device(self.device))
        hints = typing.get_type_hints(type(self))
        for name in ("precision", "runtime", "engine", "resample", "resize", "letterbox_place", "decoder", "nms_by"):
            known = typing.get_args(hints[name])
            check_choice(name, getattr(self, name), known)
        self._check_implementation()
        self._check_input_size()
        if self.letterbox_color != "auto":
            parse_color("letterbox_color", self.letterbox_color)
        check_fraction("nms", self.nms)
        for name in ("compile", "nvtx", "nms_across_classes"):
            if not isinstance(value := getattr(self, name), bool | None):
                raise InputError(f"{name} must be True or False, got {value!r}.")
        for name in ("max_detections", "batch"):
            check_count(name, getattr(self, name))

    def _check_implementation(self) -> None:
        known, steps = typing.get_args(Implementation), typing.get_args(Step)
        by_step = self.implementation if isinstance(self.implementation, Mapping) else {steps[0]: self.implementation}
        for step, name in by_step.items():
            if step not in steps:
                end = suggest(step, steps, lists=False)
                raise InputError(f"implementation must name steps of {steps}, got {step!r}{end}")
            check_choice("implementation", name, known)

    def _check_input_size(self) -> None:
        size = self.input_size
        if size is None:
            return
        sides = tuple(size) if isinstance(size, list | tuple) else ()
        if len(sides) != 2 or any(type(side) is not int or side < 1 for side in sides):
            raise InputError(f"input_size must be (height, width) in pixels, or None, got {size!r}.")
        object.__setattr__(self, "input_size", sides)  # JSON has lists

    def implementation_of(self, step: Step) -> Implementation:
        """The implementation asked for one step."""
        chosen = self.implementation
        return chosen.get(step, "auto") if isinstance(chosen, Mapping) else chosen

    def resolve_precision(self, device: torch.device) -> str:
        """The name of the precision to run a network in on a device."""
        if self.precision == "auto":
            return "fp16" if device.type == "cuda" else "fp32"
        return self.precision

    def check_cpu(self) -> None:
        """Raise UnsupportedError if a choice needs a GPU."""
        if self.decoder == "cuda":
            raise UnsupportedError("decoder='cuda' needs a model on a GPU; leave it out on a CPU.")
        if self.nvtx:
            raise UnsupportedError("nvtx=True needs a GPU; leave it out on a CPU.")
        if self.precision == "fp16":
            raise UnsupportedError("precision='fp16' needs a GPU; on a CPU use 'bf16' or 'fp32'.")

    def resolve_device(self) -> torch.device:
        """The device to run on, with its index.

        Raises:
            InputError: Not the name of a device maskjet runs on.
            UnsupportedError: The device is not on this machine, or does not support the precision or NVTX ranges.
        """
        import torch

        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        found = re.fullmatch(r"(cpu|cuda)(?::(\d{1,4}))?", name)
        if found is None:
            raise InputError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got {self.device!r}.")
        if found[1] == "cpu":
            self.check_cpu()
            return torch.device("cpu")
        index, count = int(found[2] or 0), torch.cuda.device_count()
        if index >= count:
            raise UnsupportedError(f"device={self.device!r} is not here: PyTorch sees {count} GPUs. Use 'cpu'.")
        return torch.device("cuda", index)

    @classmethod
    def from_env(cls, **choices: Any) -> EngineConfig:
        """A config from MASKJET_* variables, overridden by the `choices` that are not None; for the command line."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            text = os.environ.get(_ENVIRONMENT_PREFIX + field.name.upper())
            if text is not None:
                kind = bool if field.default in (None, False) else type(field.default)
                found[field.name] = _parse(field.name, text, str if field.name == "input_size" else kind)
        found |= {name: value for name, value in choices.items() if value is not None}
        if isinstance(found.get("input_size"), str):
            found["input_size"] = parse_hw(found["input_size"])
        by_step = found.get("implementation", "")
        if "=" in by_step:
            found["implementation"] = {
                step: name for step, _, name in (part.partition("=") for part in by_step.split(","))
            }
        return cls(**found)


def torch_dtype(precision: str) -> torch.dtype:
    """PyTorch's type of a network's input in a precision."""
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES[precision])
    return dtype


def _parse(name: str, text: str, kind: type) -> Any:
    try:
        return _SWITCHES[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError) as error:
        variable = _ENVIRONMENT_PREFIX + name.upper()
        raise InputError(f"{variable} must be {kind.__name__}, got {text!r}.") from error

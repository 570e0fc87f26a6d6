"""What a network is: its input, its architecture and its classes; and the named sizes of RF-DETR."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maskjet.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ModelSpec:
    """The input, architecture and classes of one RF-DETR or RF-DETR-Seg network."""

    name: str
    """The name `maskjet.load` knows it by, e.g. "rf-detr-seg-nano"."""
    input_size: int
    """Side of the square network input in pixels; a multiple of patch_size × windows."""
    patch_size: int
    """Side of one backbone patch in input pixels."""
    windows: int
    """Attention windows per side of the token grid; 1 is global attention everywhere."""
    decoder_layers: int
    """Decoder layers; as many blocks in the mask head."""
    queries: int
    """Detections the network proposes per image."""
    has_masks: bool
    """Whether there is a mask head (RF-DETR-Seg)."""
    class_logits: int = 91
    """Width of the class head; COCO checkpoints index it by COCO category id."""
    backbone_width: int = 384
    """Channels of the vision transformer."""
    backbone_depth: int = 12
    """Layers of the vision transformer."""
    backbone_heads: int = 6
    """Attention heads of the vision transformer."""
    feature_layers: tuple[int, ...] = (3, 6, 9, 12)
    """After how many backbone layers a feature map is taken; ascending."""
    hidden_dim: int = 256
    """Channels of projector, decoder and mask head."""
    self_attention_heads: int = 8
    """Heads of the decoder's attention among queries."""
    cross_attention_heads: int = 16
    """Heads of the decoder's deformable attention."""
    sampling_points: int = 2
    """Points each deformable attention head samples."""
    feed_forward_dim: int = 2048
    """Hidden channels of the decoder's feed-forward blocks."""
    mask_stride: int = 4
    """Input pixels per mask logit."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Per RGB channel, on the 0..1 scale; subtracted from the input."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Per RGB channel, on the 0..1 scale; divides the input."""
    class_names: Mapping[int, str] = field(default_factory=dict)
    """Class id (index into the class head) to name; an id without a name is drawn by its number."""

    def __post_init__(self) -> None:
        step = self.patch_size * self.windows
        if self.input_size < step or self.input_size % step:
            raise InputError(
                f"input_size must be a multiple of patch_size × windows = {step} for {self.name}, "
                f"got {self.input_size}."
            )
        if self.queries > self.grid**2:
            raise InputError(f"queries must be at most the {self.grid**2} backbone tokens, got {self.queries}.")
        if max(self.feature_layers) > self.backbone_depth:
            raise InputError(f"feature_layers must be at most {self.backbone_depth}, got {self.feature_layers}.")

    @property
    def grid(self) -> int:
        """Side of the backbone's token grid."""
        return self.input_size // self.patch_size

    @property
    def mask_size(self) -> int:
        """Side of the mask logits the network returns."""
        return self.input_size // self.mask_stride

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; `from_dict` reads them back."""
        return {**vars(self), "class_names": {str(key): name for key, name in self.class_names.items()}}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelSpec:
        """Build a spec from what `as_dict` wrote, possibly through JSON."""
        sequences = {key: tuple(fields[key]) for key in ("feature_layers", "mean", "std") if key in fields}
        names = {int(key): name for key, name in fields.get("class_names", {}).items()}
        return cls(**{**fields, **sequences, "class_names": names})


@dataclass(frozen=True)
class TwoStageSpec:
    """The input, the limits and the classes of one of torchvision's two-stage detectors."""

    name: str
    """Of its class, e.g. "MaskRCNN"."""
    shortest: int
    """What the shorter side of an image is resized to, in pixels, unless the other would be too long."""
    longest: int
    """Most pixels of the longer side."""
    fixed_hw: tuple[int, int] | None
    """(height, width) that every image is resized to instead."""
    divisor: int
    """Of both sides of the input, which is padded for it."""
    has_masks: bool
    """Whether it is a Mask R-CNN."""
    class_logits: int
    """Labels, the background's, 0, among them."""
    threshold: float
    """What a score must exceed, 0..1."""
    max_detections: int
    """Most detections per image."""
    mean: tuple[float, ...]
    """Per RGB channel, on the 0..1 scale; subtracted from the input."""
    std: tuple[float, ...]
    """Per RGB channel, on the 0..1 scale; divides the input."""
    class_names: Mapping[int, str]
    """Label to name."""

    def resized_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """(height, width) that an image of this size is resized to, rounded down as torchvision does."""
        if self.fixed_hw is not None:
            return self.fixed_hw
        scale = min(self.shortest / min(size_hw), self.longest / max(size_hw))
        height, width = (max(math.floor(side * scale), 1) for side in size_hw)
        return height, width

    def padded_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the input that an image of this size lies in, at the top left."""
        height, width = (-(-side // self.divisor) * self.divisor for side in self.resized_hw(size_hw))
        return height, width


# The 80 COCO classes by category id; the ids have gaps (COCO 2017, annotations' "categories").
_COCO_NAMES = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,,backpack,umbrella,,,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,,dining table,,,toilet,,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
COCO_CLASS_NAMES: Mapping[int, str] = {
    category: name for category, name in enumerate(_COCO_NAMES.split(","), start=1) if name
}


def _detector(name: str, *, input_size: int, decoder_layers: int) -> ModelSpec:
    return ModelSpec(
        name=f"rf-detr-{name}",
        input_size=input_size,
        patch_size=16,
        windows=2,
        decoder_layers=decoder_layers,
        queries=300,
        has_masks=False,
        class_names=COCO_CLASS_NAMES,
    )


def _segmenter(name: str, *, input_size: int, decoder_layers: int, queries: int, windows: int = 2) -> ModelSpec:
    return ModelSpec(
        name=f"rf-detr-seg-{name}",
        input_size=input_size,
        patch_size=12,
        windows=windows,
        decoder_layers=decoder_layers,
        queries=queries,
        has_masks=True,
        class_names=COCO_CLASS_NAMES,
    )


# As rfdetr 1.11.2's configurations.
SPECS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _detector("nano", input_size=384, decoder_layers=2),
        _detector("small", input_size=512, decoder_layers=3),
        _detector("medium", input_size=576, decoder_layers=4),
        _detector("large", input_size=704, decoder_layers=4),
        _segmenter("nano", input_size=312, decoder_layers=4, queries=100, windows=1),
        _segmenter("small", input_size=384, decoder_layers=4, queries=100),
        _segmenter("medium", input_size=432, decoder_layers=5, queries=200),
        _segmenter("large", input_size=504, decoder_layers=5, queries=200),
        _segmenter("xlarge", input_size=624, decoder_layers=6, queries=300),
        _segmenter("2xlarge", input_size=768, decoder_layers=6, queries=300),
    )
}

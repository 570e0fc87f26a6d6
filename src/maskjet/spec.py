"""Specifications of networks: input, architecture and classes; and the named sizes of RF-DETR."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from maskjet import limits
from maskjet.checks import check_whole, parse_color, shown
from maskjet.errors import InputError, translate_errors
from maskjet.host.printing import sanitise

Resize = Literal["stretch", "letterbox"]
LetterboxPlace = Literal["center", "top-left"]

# The least and most of each field. Specs come with weights files, whose authors may state any number. These bounds are
# some five times the largest RF-DETR, and keep the memory that a spec alone can claim below a gigabyte.
BOUNDS: Mapping[str, tuple[int, int]] = {
    "input_size": (1, 4096),
    "patch_size": (1, 128),
    "windows": (1, 32),
    "decoder_layers": (1, 64),
    "queries": (1, 4096),
    "num_select": (1, 2**20),
    "class_logits": (1, 2**16),
    "backbone_width": (1, 4096),
    "backbone_depth": (1, 64),
    "backbone_heads": (1, 64),
    "hidden_dim": (4, 4096),
    "self_attention_heads": (1, 64),
    "cross_attention_heads": (1, 64),
    "sampling_points": (1, 64),
    "feed_forward_dim": (1, 2**16),
    "mask_stride": (1, 128),
}
MAX_GRID = 256  # patches along a side of the input
# Most values of each of the mask head's two largest tensors, channels × pixels and queries × pixels.
_MAX_MASK_VALUES = 2**27


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ModelSpec:
    """The input, architecture and classes of one RF-DETR or RF-DETR-Seg network."""

    threshold: ClassVar[float] = 0.5
    """Confidence that detections must exceed, 0..1, if a user sets none."""
    max_detections: ClassVar[int] = 100
    """Most detections per image, if a user sets none."""
    name: str
    """The name `maskjet.load` knows it by, e.g. "rf-detr-seg-nano"."""
    input_size: int | tuple[int, int]
    """Side of the square network input in pixels, or its (height, width); multiples of patch_size × windows."""
    patch_size: int
    """Side of one backbone patch in input pixels."""
    windows: int
    """Attention windows per side of the token grid; 1 is global attention everywhere."""
    decoder_layers: int
    """Number of decoder layers, and of blocks in the mask head."""
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
    """Backbone layers, counted from 1, whose outputs are taken as feature maps; ascending."""
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
    projector_eps: float = 1e-6
    """Epsilon of the projector's inner norms, above 0 and at most 1; transformers has 1e-5."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each RGB channel, on the 0..1 scale; subtracted from the input."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each RGB channel, on the 0..1 scale; divides the input."""
    class_names: Mapping[int, str] = field(default_factory=dict)
    """Class id (index into the class head) to name; an id without a name is drawn by its number."""
    num_select: int | None = None
    """Number of best query-class pairs that may become detections, if above the threshold; None is `queries`."""
    resize: Resize = "stretch"
    """How frames became inputs when the network was trained; "letterbox" keeps the aspect ratio and pads."""
    letterbox_color: str = "#727272"
    """Colour around a letterboxed frame, #rrggbb."""
    letterbox_place: LetterboxPlace = "center"
    """Where a letterboxed frame lies in the input."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_architecture()
        self._check_input()

    def _check_types(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"name must be a text of at least one character, got {shown(self.name)}.")
        for name, bounds in BOUNDS.items():
            if name == "input_size":
                self._check_sides(bounds)
            elif name != "num_select" or self.num_select is not None:
                check_whole(name, getattr(self, name), bounds)
        for name, known in (("resize", get_args(Resize)), ("letterbox_place", get_args(LetterboxPlace))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {known}, got {shown(getattr(self, name))}.")
        parse_color("letterbox_color", self.letterbox_color)
        if not isinstance(self.has_masks, bool):
            raise InputError(f"has_masks must be True or False, got {shown(self.has_masks)}.")
        layers = self.feature_layers
        if not isinstance(layers, tuple) or not layers or not all(type(layer) is int for layer in layers):
            raise InputError(f"feature_layers must be whole numbers, at least one, got {shown(layers)}.")
        for name in ("mean", "std"):
            values = getattr(self, name)
            if not isinstance(values, tuple) or len(values) != 3 or not all(map(_is_finite, values)):
                raise InputError(f"{name} must be three finite numbers, got {shown(values)}.")
        if not _is_finite(self.projector_eps) or not 0 < self.projector_eps <= 1:
            raise InputError(f"projector_eps must be a number above 0 and at most 1, got {shown(self.projector_eps)}.")
        if min(self.std) <= 0:
            raise InputError(f"std must be above 0, got {self.std}.")
        for class_id, class_name in self.class_names.items():
            if type(class_id) is not int or not 0 <= class_id < self.class_logits or not isinstance(class_name, str):
                raise InputError(
                    f"class_names must map ids from 0 to {self.class_logits - 1} to names, "
                    f"got {shown(class_id)}: {shown(class_name)}."
                )

    def _check_sides(self, bounds: tuple[int, int]) -> None:
        size = self.input_size
        if isinstance(size, tuple) and len(size) != 2:
            raise InputError(f"input_size must be a side, or height and width, got {shown(size)}.")
        for side in size if isinstance(size, tuple) else (size,):
            check_whole("input_size", side, bounds)
        if isinstance(size, tuple) and size[0] == size[1]:
            object.__setattr__(self, "input_size", size[0])  # a square is stated in one way

    def _check_architecture(self) -> None:
        layers = self.feature_layers
        if max(layers) > self.backbone_depth:
            raise InputError(f"feature_layers must be at most {self.backbone_depth}, got {layers}.")
        if layers[0] < 1 or any(later <= earlier for earlier, later in pairwise(layers)):
            raise InputError(f"feature_layers must ascend from at least 1, got {layers}.")
        for width, heads in (
            ("backbone_width", "backbone_heads"),
            ("hidden_dim", "self_attention_heads"),
            ("hidden_dim", "cross_attention_heads"),
        ):
            if getattr(self, width) % getattr(self, heads):
                raise InputError(f"{heads} must divide {width} = {getattr(self, width)}, got {getattr(self, heads)}.")
        if self.hidden_dim % 4:
            raise InputError(f"hidden_dim must be a multiple of 4, got {self.hidden_dim}.")

    def _check_input(self) -> None:
        step = self.patch_size * self.windows
        if any(side < step or side % step for side in self.input_hw):
            raise InputError(
                f"input_size must be a multiple of patch_size × windows = {step} for {self.name}, "
                f"got {self.input_size}."
            )
        if self.queries > self.tokens:
            raise InputError(f"queries must be at most the {self.tokens} backbone tokens, got {self.queries}.")
        if max(self.grid_hw) > MAX_GRID:
            raise InputError(
                f"input_size must be at most {MAX_GRID} patches of {self.patch_size}, got {self.input_size}."
            )
        most = math.isqrt(_MAX_MASK_VALUES // max(self.queries, self.hidden_dim))
        if self.has_masks and not 1 <= min(self.mask_hw) <= max(self.mask_hw) <= most:
            raise InputError(
                f"mask_stride must leave masks of 1 to {most} pixels a side for {self.queries} queries and hidden_dim "
                f"{self.hidden_dim}, got {self.mask_stride} at input_size {self.input_size}."
            )

    @property
    def kind(self) -> str:
        """Family, input and output in words."""
        return "RF-DETR of {1}×{0}".format(*self.input_hw) + " with masks" * self.has_masks

    @property
    def input_hw(self) -> tuple[int, int]:
        """(height, width) of the network input, in pixels."""
        return self.input_size if isinstance(self.input_size, tuple) else (self.input_size, self.input_size)

    @property
    def grid_hw(self) -> tuple[int, int]:
        """(rows, columns) of the backbone's token grid."""
        height, width = self.input_hw
        return height // self.patch_size, width // self.patch_size

    @property
    def tokens(self) -> int:
        """Tokens of the grid."""
        return math.prod(self.grid_hw)

    @property
    def mask_hw(self) -> tuple[int, int]:
        """(height, width) of the mask logits the network returns."""
        height, width = self.input_hw
        return height // self.mask_stride, width // self.mask_stride

    @property
    def selected_pairs(self) -> int:
        """Number of query-class pairs that may become detections: `num_select`, or else `queries`."""
        return self.queries if self.num_select is None else self.num_select

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; `from_dict` reads them back."""
        return {**vars(self), "class_names": {str(key): name for key, name in self.class_names.items()}}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> ModelSpec:
        """Build a spec from the output of `as_dict`, which may come through JSON and from others.

        Its name and the classes' are sanitised (`printing.sanitise`).

        Raises:
            InputError: A field is missing, unknown or invalid.
        """
        if not isinstance(stated, Mapping):
            raise InputError(f"spec must be a mapping of its fields, got {shown(stated)}.")
        known = {each.name for each in fields(cls)}
        unknown = sorted(sanitise(str(name)) for name in stated.keys() - known)
        if unknown:
            raise InputError(f"spec must have the fields of ModelSpec only, got {unknown[0]}.")
        for each in fields(cls):
            if each.name not in stated and each.default is each.default_factory is MISSING:
                raise InputError(f"spec must state {each.name}.")
        given = dict(stated)
        for name in ("input_size", "feature_layers", "mean", "std"):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        if isinstance(given["name"], str):
            given["name"] = sanitise(given["name"])
        given["class_names"] = read_class_names(given.get("class_names", {}))
        return cls(**given)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**64


def read_class_names(stated: object) -> dict[int, str]:
    """Class names by integer id instead of JSON's text, sanitised."""
    if not isinstance(stated, Mapping):
        raise InputError(f"class_names must be a mapping of ids to names, got {shown(stated)}.")
    names = {}
    for class_id, name in stated.items():
        if not re.fullmatch("[0-9]{1,9}", str(class_id)) or not isinstance(name, str):
            raise InputError(f"class_names must map whole numbers to names, got {shown(class_id)}: {shown(name)}.")
        names[int(class_id)] = sanitise(name)
    return names


@dataclass(frozen=True)
class TwoStageSpec:
    """The input, the limits and the classes of one of torchvision's two-stage detectors."""

    name: str
    """Name of the model's class, e.g. "MaskRCNN"."""
    shortest: int
    """Pixels that an image's shorter side is resized to, unless the other side would exceed `longest`."""
    longest: int
    """Most pixels of the resized image's longer side."""
    fixed_hw: tuple[int, int] | None
    """(height, width) that every image is resized to; None to use `shortest` and `longest`."""
    divisor: int
    """Number that both sides of the input are padded to a multiple of."""
    has_masks: bool
    """Whether it is a Mask R-CNN."""
    class_logits: int
    """Number of labels, including the background, 0."""
    threshold: float
    """Score that detections must exceed, 0..1."""
    max_detections: int
    """Most detections per image."""
    mean: tuple[float, ...]
    """Mean of each RGB channel, on the 0..1 scale; subtracted from the input."""
    std: tuple[float, ...]
    """Standard deviation of each RGB channel, on the 0..1 scale; divides the input."""
    class_names: Mapping[int, str]
    """Label to name."""

    @property
    def kind(self) -> str:
        """Family, input and output in words."""
        size = "{1}×{0}".format(*self.fixed_hw) if self.fixed_hw else f"up to {self.longest}×{self.shortest}"
        return f"torchvision's of {size}" + " with masks" * self.has_masks

    def resized_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """(height, width) that an image of this size is resized to, rounded down as torchvision does."""
        if self.fixed_hw is not None:
            return self.fixed_hw
        scale = min(self.shortest / min(size_hw), self.longest / max(size_hw))
        height, width = (max(math.floor(side * scale), 1) for side in size_hw)
        return height, width

    def padded_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of the padded input that holds an image of this size at the top left."""
        height, width = (-(-side // self.divisor) * self.divisor for side in self.resized_hw(size_hw))
        return height, width


AnySpec = TypeVar("AnySpec", ModelSpec, TwoStageSpec)
ClassNames = Mapping[int, str] | Sequence[str] | str | os.PathLike[str]
"""Names of classes by id, or in the order of the ids from 0; or a text file of UTF-8 with one per line."""


def name_classes(spec: AnySpec, names: ClassNames | None) -> AnySpec:
    """Give the classes of a network other names, if there are any; an empty one is none, as between COCO's ids.

    Raises:
        InputError: These are no such names, more than the network's classes, or a file that can't be read.
    """
    if names is None:
        return spec
    if isinstance(names, str | os.PathLike):
        where = repr(os.fspath(names))
        with translate_errors(InputError, f"class_names must be a text file with a name per line, {where} is not"):
            names = [line.strip() for line in limits.read_small(Path(names)).decode("utf-8-sig").split("\n")]
    if not isinstance(names, Mapping | list | tuple):
        raise InputError(f"class_names must be names by id, a list of names or a path, got {shown(names)}.")
    by_id = read_class_names(names if isinstance(names, Mapping) else dict(enumerate(names)))
    named = {number: name for number, name in by_id.items() if name}
    if max(named, default=0) >= spec.class_logits:
        raise InputError(f"class_names must be of ids below {spec.class_logits}, {spec.name}'s, got {max(named)}.")
    return replace(spec, class_names=named)


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


def _named(name: str, *, input_size: int, decoder_layers: int, queries: int = 300, windows: int = 2) -> ModelSpec:
    has_masks = name.startswith("seg-")
    return ModelSpec(
        name=f"rf-detr-{name}",
        input_size=input_size,
        patch_size=12 if has_masks else 16,
        windows=windows,
        decoder_layers=decoder_layers,
        queries=queries,
        has_masks=has_masks,
        class_names=COCO_CLASS_NAMES,
    )


# The configurations of rfdetr 1.11.2.
SPECS: Mapping[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        _named("nano", input_size=384, decoder_layers=2),
        _named("small", input_size=512, decoder_layers=3),
        _named("medium", input_size=576, decoder_layers=4),
        _named("large", input_size=704, decoder_layers=4),
        _named("seg-nano", input_size=312, decoder_layers=4, queries=100, windows=1),
        _named("seg-small", input_size=384, decoder_layers=4, queries=100),
        _named("seg-medium", input_size=432, decoder_layers=5, queries=200),
        _named("seg-large", input_size=504, decoder_layers=5, queries=200),
        _named("seg-xlarge", input_size=624, decoder_layers=6),
        _named("seg-2xlarge", input_size=768, decoder_layers=6),
    )
}

TORCHVISION_NAMES = tuple(
    f"torchvision:{name}"
    for name in (
        *("fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_mobilenet_v3_large_fpn"),
        *("fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2"),
        *("maskrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn_v2"),
    )
)
"""Names of torchvision 0.26's detectors, stated here as torchvision takes a second to import."""

MODELS = ("demo", *SPECS, *TORCHVISION_NAMES)
"""Names of models, which are no paths, whatever files there are."""

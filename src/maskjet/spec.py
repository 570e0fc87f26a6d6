"""Specifications of networks: input, architecture and classes; and the named sizes of RF-DETR."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
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
    antialias: bool = False
    """Whether frames were resized with antialias when the network was trained."""

    def __post_init__(self) -> None:
        self._check_values()
        self._check_sizes()

    def _check(self, name: str, is_right: object, expected: str) -> None:
        if not is_right:
            raise InputError(f"{name} must be {expected}, got {shown(getattr(self, name))}.")

    def _check_values(self) -> None:
        sides = self.input_size if isinstance(self.input_size, tuple) else (self.input_size,) * 2
        self._check("input_size", len(sides) == 2, "a side, or height and width")
        for name, bounds in BOUNDS.items():
            for value in sides if name == "input_size" else (getattr(self, name),):
                if name != "num_select" or value is not None:
                    check_whole(name, value, bounds)
        if sides[0] == sides[1]:
            object.__setattr__(self, "input_size", sides[0])  # a square is stated in one way
        self._check("name", isinstance(self.name, str) and self.name, "a text of at least one character")
        for name in ("has_masks", "antialias"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        for name, known in (("resize", get_args(Resize)), ("letterbox_place", get_args(LetterboxPlace))):
            self._check(name, getattr(self, name) in known, f"one of {known}")
        parse_color("letterbox_color", self.letterbox_color)
        for name in ("mean", "std"):
            values = getattr(self, name)
            is_right = isinstance(values, tuple) and len(values) == 3 and all(map(_is_finite, values))
            self._check(name, is_right, "three finite numbers")
        self._check("std", min(self.std) > 0, "above 0")
        is_right = _is_finite(self.projector_eps) and 0 < self.projector_eps <= 1
        self._check("projector_eps", is_right, "a number above 0 and at most 1")
        for class_id, class_name in self.class_names.items():
            if type(class_id) is not int or not 0 <= class_id < self.class_logits or not isinstance(class_name, str):
                raise InputError(
                    f"class_names must map ids from 0 to {self.class_logits - 1} to names, "
                    f"got {shown(class_id)}: {shown(class_name)}."
                )

    def _check_sizes(self) -> None:
        """Check what fields of right types are together."""
        layers = self.feature_layers
        is_ascending = isinstance(layers, tuple) and {*map(type, layers)} == {int} and [*layers] == sorted({*layers})
        is_right = is_ascending and layers[0] >= 1 and layers[-1] <= self.backbone_depth
        self._check("feature_layers", is_right, f"ascending whole numbers from 1 to {self.backbone_depth}")
        for width, heads in (
            ("backbone_width", "backbone_heads"),
            ("hidden_dim", "self_attention_heads"),
            ("hidden_dim", "cross_attention_heads"),
        ):
            channels = getattr(self, width)
            self._check(heads, channels % getattr(self, heads) == 0, f"a divisor of {width} = {channels}")
        self._check("hidden_dim", self.hidden_dim % 4 == 0, "a multiple of 4")
        step = self.patch_size * self.windows
        is_right = all(side % step == 0 for side in self.input_hw) and max(self.grid_hw) <= MAX_GRID
        expected = f"a multiple of patch_size × windows = {step} and at most {MAX_GRID} patches for {self.name}"
        self._check("input_size", is_right, expected)
        self._check("queries", self.queries <= self.tokens, f"at most the {self.tokens} backbone tokens")
        most = math.isqrt(_MAX_MASK_VALUES // max(self.queries, self.hidden_dim))
        is_right = not self.has_masks or 1 <= min(self.mask_hw) <= max(self.mask_hw) <= most
        expected = f"one that leaves masks of 1 to {most} pixels a side of input_size {self.input_size}"
        self._check("mask_stride", is_right, expected)

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
        known = {each.name for each in fields(cls)}
        needed = {each.name for each in fields(cls) if each.default is each.default_factory is MISSING}
        if not isinstance(stated, Mapping):
            raise InputError(f"spec must be a mapping of its fields, got {shown(stated)}.")
        if wrong := sorted(map(str, (needed - stated.keys()) | (stated.keys() - known))):
            raise InputError(f"spec must state the fields of ModelSpec, {shown(wrong[0])} is missing or unknown.")
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
    antialias: ClassVar[bool] = False
    """Torchvision's detectors resize without antialias."""

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

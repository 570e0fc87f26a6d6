"""Detections: the result of every implementation and engine, and the input of every sink."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from maskjet import limits
from maskjet.checks import check_choice
from maskjet.detections import pictures
from maskjet.detections.crops import Background, Shape, cut
from maskjet.detections.fields import check_array, check_fields, check_finite, masks_of, names_of, pick_rows, tracks_of
from maskjet.detections.json_types import CocoKind, as_dict, to_coco
from maskjet.detections.json_types import read_fields as json_fields
from maskjet.detections.pictures import DrawOptions
from maskjet.detections.supervision import make_supervision
from maskjet.detections.supervision import read_fields as supervision_fields
from maskjet.host.extras import require
from maskjet.host.files import compact_json
from maskjet.host.printing import printable
from maskjet.masks import MaskPixels, coco_rle
from maskjet.masks.outlines import Along
from maskjet.masks.rotated import rotated_boxes as find_rotated
from maskjet.masks.stray_pixels import clip_masks

if TYPE_CHECKING:
    import pandas
    import supervision

    from maskjet.sources.images import ImageLike, ImageReference

_ROTATED = ("rx1", "ry1", "rx2", "ry2", "rx3", "ry3", "rx4", "ry4")  # columns of rotated boxes
_MOST_CLASSES = 8  # classes that `repr` lists one by one


@dataclass(frozen=True, eq=False, repr=False)
class Detections:
    """The instances found on one image, most confident first.

    Examples:
        >>> import maskjet
        >>> found = maskjet.load("demo").predict(maskjet.traffic.sample(seed=3).image)
        >>> cars = found[(found.class_name == "car") & (found.confidence > 0.8)]
        >>> 0 < len(cars) < len(found)
        True
        >>> found[0].xyxy.shape  # the most confident one
        (1, 4)
        >>> [len(one) for one in found] == [1] * len(found)
        True
    """

    image_size: tuple[int, int]
    """(height, width) of the image in pixels."""
    xyxy: NDArray[np.float32]
    """float32 [n, 4]: boxes in pixels, clamped to the image."""
    confidence: NDArray[np.float32]
    """float32 [n]: confidences, 0..1."""
    class_id: NDArray[np.int32]
    """int32 [n]: class ids, keys of `class_names`."""
    rle: list[dict[str, Any]] | None = None
    """n COCO RLEs, {"size": [H, W], "counts": bytes}; None from a detector without masks."""
    class_names: Mapping[int, str] = field(default_factory=dict)
    """Class id to name; a class without a name is called by its id."""
    track_id: NDArray[np.int64] | None = None
    """int64 [n]: id of the instance across frames, -1 until its track is confirmed; None without tracking."""
    track_class_id: NDArray[np.int64] | None = None
    """int64 [n]: class of each detection's track, by vote; its `class_id` without a track; None without tracking."""
    filled: NDArray[np.bool_] | None = None
    """bool [n]: whether the detection was added by `maskjet.tracking.smooth`; None without smoothing."""
    moved: NDArray[np.int64] | None = None
    """int64 [n]: frames between this one and the one the detection was moved from, 0 where it was detected; None
    where every frame is detected."""
    _remembered: ClassVar[ImageReference | None] = None  # for `draw`; set on single instances by `remember`

    def __post_init__(self) -> None:
        check_fields(self)

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getstate__(self) -> dict[str, Any]:
        """State for copies and pickles; makes masks that were not requested yet."""
        return {"rle": self.rle} | {name: value for name, value in vars(self).items() if name != "_cut_rle"}

    def __repr__(self) -> str:
        height, width = self.image_size
        counts = Counter(names_of(self)).most_common()
        shown = [f"{count} {printable(name)}" for name, count in counts[:_MOST_CLASSES]]
        if len(counts) > _MOST_CLASSES:
            others = sum(count for _, count in counts[_MOST_CLASSES:])
            shown.append(f"{others} of {len(counts) - _MOST_CLASSES} other classes")
        found = f": {', '.join(shown)}" if shown else ""
        return f"Detections({len(self)} on {width}×{height}{found}; {'no masks' if self.rle is None else 'masks'})"

    def __iter__(self) -> Iterator[Detections]:
        """The detections one by one, each as `Detections` of one."""
        return (self[i] for i in range(len(self)))

    def __getitem__(
        self, index: int | slice | Sequence[int] | Sequence[bool] | NDArray[np.bool_] | NDArray[np.integer[Any]]
    ) -> Detections:
        """Select detections.

        Args:
            index: A position, also from the end, for `Detections` of one; a slice; a boolean mask, one value per
                detection; or a list of positions.

        Raises:
            IndexError: A position is beyond the end.
            InputError: A mask has another length, or the index is none of these.

        Examples:
            >>> import maskjet
            >>> found = maskjet.load("demo").predict(maskjet.traffic.sample(seed=3).image)
            >>> len(found[0]), len(found[:2]), len(found[found.confidence > 2])
            (1, 2, 0)
        """
        picked = pick_rows(index, len(self))
        return self._with(
            xyxy=self.xyxy[picked],
            confidence=self.confidence[picked],
            class_id=self.class_id[picked],
            rle=None if self.rle is None else [self.rle[i] for i in picked.tolist()],
            **{name: values[picked] for name, values in tracks_of(self).items()},
        )

    def with_tracks(self, track_id: NDArray[np.int64], track_class_id: NDArray[np.int64] | None = None) -> Detections:
        """The same detections with the ids and classes of their tracks.

        Args:
            track_id: int64 [n], -1 for none.
            track_class_id: int64 [n]; None takes the detections' own classes.

        Raises:
            InputError: An array has another dtype or shape.
        """
        classes = self.class_id.astype(np.int64) if track_class_id is None else track_class_id
        check_array("track_id", track_id, np.int64, (len(self),))
        check_array("track_class_id", classes, np.int64, (len(self),))
        return self._with(track_id=track_id, track_class_id=classes)

    def with_moved(self, moved: NDArray[np.int64]) -> Detections:
        """The same detections with the number of frames that each was moved, int64 [n]; see `moved`.

        Raises:
            InputError: The array has another dtype or shape.
        """
        check_array("moved", moved, np.int64, (len(self),))
        return self._with(moved=moved)

    def _with(self, **fields: Any) -> Detections:
        """Copy with some fields replaced, unchecked; the image reference is kept."""
        changed = object.__new__(Detections)
        vars(changed).update(vars(self), **fields)
        return changed

    @property
    def class_name(self) -> NDArray[np.str_]:
        """NumPy str [n]: the name of each detection's class; `found[found.class_name == "car"]` picks some."""
        return np.array(names_of(self), dtype=np.str_)

    @property
    def area(self) -> NDArray[np.int64]:
        """int64 [n]: pixels of each mask; without masks, area of each box, rounded, 0 if not finite."""
        if self.rle is not None:
            return np.array([coco_rle.area(rle) for rle in self.rle], dtype=np.int64)
        with np.errstate(invalid="ignore", over="ignore"):
            width, height = np.maximum(self.xyxy[:, 2:] - self.xyxy[:, :2], 0).T
            area = np.rint(width * height)
        return np.where(area < 2.0**63, area, 0).astype(np.int64)

    def keep_mask_pixels(self, mask_pixels: MaskPixels) -> Detections:
        """Drop pixels of the masks; boxes, confidences and order stay. Redact with the detections as they were found.

        Args:
            mask_pixels: "box": keep the pixels inside the detection's box, rounded outwards to whole pixels, which may
                be none; if the box is not a number, all. "raw": keep all.

        Returns:
            Detections with these masks; the same ones for "raw" or without masks.

        Raises:
            InputError: mask_pixels is none of these, or a mask is malformed.
        """
        check_choice("mask_pixels", mask_pixels, get_args(MaskPixels))
        if mask_pixels == "raw" or self.rle is None:
            return self
        return self._with(rle=clip_masks(self.rle, self.xyxy, self.image_size))

    def masks(self) -> NDArray[np.bool_]:
        """Dense masks, bool [n, H, W].

        Raises:
            InputError: These detections have no masks, a mask is malformed, or together they are larger than
                `limits.masks_bytes`.
        """
        masks = masks_of(self, "masks")
        limits.check("masks_bytes", len(masks) * math.prod(self.image_size), "masks() needs")
        dense = np.zeros((len(masks), *self.image_size), dtype=np.bool_)
        for plane, rle in zip(dense, masks, strict=True):
            plane[:] = coco_rle.decode(rle)
        return dense

    def polygons(self, *, tolerance: float = 0.0, along: Along = "centers") -> list[list[NDArray[np.float32]]]:
        """Outlines of each detection's parts, float32 [k, 2] (x, y) in image coordinates; see `coco_rle.polygons`.

        Raises:
            InputError: These detections have no masks, or an argument is none that `coco_rle.polygons` takes.
        """
        return [coco_rle.polygons(rle, tolerance=tolerance, along=along) for rle in masks_of(self, "polygons")]

    def rotated_boxes(self) -> NDArray[np.float32]:
        """Rectangles of least area, at any angle, around all pixels of each mask.

        They surround the pixels' areas, as boxes do: one pixel has a square of side 1. Of equal areas it is the upright
        one, else that along the first side of the convex hull, clockwise from its leftmost, then topmost point.

        Returns:
            float32 [n, 4, 2]: corners (x, y) in pixels, clockwise from the topmost, then leftmost; some may lie outside
            the image. Around an empty mask, and without masks, it is the box.

        Raises:
            InputError: A mask is malformed.
        """
        return find_rotated(None if self.rle is None else coco_rle.to_runs(self.rle, self.image_size), self.xyxy)

    def to_supervision(self, *, masks: Literal["dense", "compact", False] = "dense") -> supervision.Detections:
        """Convert to `supervision.Detections`, with the class names under data["class_name"].

        Ids of tracks become `tracker_id`.

        Args:
            masks: "dense": masks as bool [n, H, W], which everything of supervision takes. "compact": a `CompactMask`
                of the same pixels, with kilobytes instead of a byte per mask and pixel. False: boxes alone.

        Raises:
            MissingDependencyError: supervision is not installed.
            InputError: masks is none of these, a mask is malformed, or dense ones are larger than `limits.masks_bytes`.
        """
        made: supervision.Detections = make_supervision(self, masks)
        return made

    @classmethod
    def from_supervision(cls, found: supervision.Detections, image_size: tuple[int, int]) -> Detections:
        """Convert from `supervision.Detections` of an image of (height, width); reads `to_supervision` back.

        A missing confidence is 1, a missing class 0.

        Raises:
            InputError: found is something else, its masks are of another size, or ids are no whole numbers, or huge.
        """
        return cls(**supervision_fields(found, image_size))

    def to_columns(self, *, rotated_boxes: bool = False) -> dict[str, Any]:
        """The columns of a table with a row per detection, most confident first.

        Args:
            rotated_boxes: Whether rx1, ry1 to rx4, ry4 follow the area: corners of the boxes of `rotated_boxes`.

        Returns:
            By name class_id, class_name, confidence, x1, y1, x2, y2 (pixels) and area (pixels, as `area`), with
            tracking also track_id and track_class_id, after `smooth` filled, with `detect` moved: arrays [n], the
            names a list.
        """
        corners = dict(zip(("x1", "y1", "x2", "y2"), self.xyxy.T.copy(), strict=True))
        columns = {"class_id": self.class_id.copy(), "class_name": names_of(self), "confidence": self.confidence.copy()}
        rotated = self.rotated_boxes().reshape(-1, 8).T.copy() if rotated_boxes else ()
        return {
            **columns,
            **corners,
            "area": self.area,
            **dict(zip(_ROTATED, rotated, strict=False)),
            **tracks_of(self),
        }

    def to_pandas(self, *, rotated_boxes: bool = False) -> pandas.DataFrame:
        """Convert to a `pandas.DataFrame` with a row per detection, most confident first.

        Returns:
            The columns of `to_columns`, which has the same argument.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        library = require("pandas", extra="pandas", purpose="to_pandas()")
        table: pandas.DataFrame = library.DataFrame(self.to_columns(rotated_boxes=rotated_boxes))
        return table

    def to_coco(
        self, image_id: int, category_ids: Mapping[int, int] | None = None, *, kind: CocoKind | None = None
    ) -> list[dict[str, Any]]:
        """Convert to entries of a COCO results file, in JSON types.

        Results are of one kind, as pycocotools takes the sizes of masks from boxes that come with them, and boxes from
        masks where none come: for both kinds of average precision, convert twice.

        Args:
            image_id: Id of the image in the data set.
            category_ids: Class id to COCO category id; None keeps the class ids.
            kind: "segm" for average precision of masks, "bbox" of boxes; None is segm if there are masks, else bbox.

        Returns:
            Per detection image_id, category_id, score, and segmentation (RLE), or bbox (x, y, width, height); with
            tracking also track_id.

        Raises:
            InputError: kind is segm and there are no masks, category_ids lacks a class that was found, or a box or
                confidence is not finite.
        """
        return to_coco(self, image_id, category_ids, kind)

    def as_dict(self, *, rotated_boxes: bool = False) -> dict[str, Any]:
        """Convert to JSON types, which `from_dict` reads back.

        Args:
            rotated_boxes: Whether each detection has a "rotated_box", four [x, y] as of `rotated_boxes`.

        Raises:
            InputError: A box or confidence is not finite: JSON has no such numbers.
        """
        return as_dict(self, rotated_boxes=rotated_boxes)

    def to_json(self, *, rotated_boxes: bool = False) -> str:
        """Convert the result of `as_dict` to JSON; `save("found.json")` writes it to a file.

        Raises:
            InputError: A box or confidence is not finite: JSON has no such numbers.

        Examples:
            >>> import json, maskjet
            >>> found = maskjet.load("demo").predict(maskjet.traffic.sample(seed=3).image)
            >>> again = maskjet.Detections.from_dict(json.loads(found.to_json()))
            >>> again.rle == found.rle
            True
        """
        return compact_json(self.as_dict(rotated_boxes=rotated_boxes))

    def remember(self, image: ImageReference) -> None:
        """Keep a reference to the image for `draw`; it is no field, and not compared, written or printed."""
        object.__setattr__(self, "_remembered", image)

    def draw(self, image: ImageLike | None = None, **style: Unpack[DrawOptions]) -> NDArray[np.uint8]:
        """Draw the detections into a copy of their image; `maskjet.draw` also redacts them or cuts them out.

        Args:
            image: The image, of any kind that `predict` takes. None is the one that `predict` saw: a file is read
                again; an array, tensor or PIL image is only remembered while something else holds it, and `bytes` are
                not. Frames of `stream` are in hand: `found.draw(frame.image)`.
            **style: Parts and colours: boxes, labels, scores, masks, outlines, ids and rotated (True or False),
                line_width in pixels, color_by "class" or "instance", mask_pixels "box" or "raw"; see
                `maskjet.drawing.DrawStyle`.

        Returns:
            uint8 [H, W, 3], RGB.

        Raises:
            InputError: No image is given and none is remembered, or it is of another size; or a style is unknown.

        Examples:
            >>> import maskjet
            >>> image = maskjet.traffic.sample(seed=3).image
            >>> found = maskjet.load("demo").predict(image)
            >>> found.draw().shape == image.shape
            True
        """
        return pictures.draw(self, pictures.pixels_of(self, image, self._remembered), style)

    def crops(
        self, image: ImageLike | None = None, *, shape: Shape = "tight", background: Background = "keep"
    ) -> list[NDArray[np.uint8]]:
        """Cut each detection out of the image.

        Args:
            image: The image; see `draw`.
            shape: "tight": the box, clamped to the image and rounded outwards to whole pixels, at least one. "square":
                the square about it, moved into the image; where that is too small, black or transparent beside it.
            background: "keep" all pixels; or make those outside the mask "transparent".

        Returns:
            uint8 [h, w, 3], RGB, or [h, w, 4], RGBA, for each detection.

        Raises:
            InputError: As in `draw`; a box is not finite; or pixels are to be transparent and there are no masks.
        """
        check_choice("shape", shape, get_args(Shape))
        check_choice("background", background, get_args(Background))
        check_finite(self)
        masks = masks_of(self, "crops") if background == "transparent" else None
        return list(cut(pictures.pixels_of(self, image, self._remembered), self.xyxy, masks, shape))

    def save(self, path: str | os.PathLike[str], image: ImageLike | None = None, **style: Unpack[DrawOptions]) -> None:
        """Write the image with the detections drawn in; or, to a .json, the JSON of `to_json`.

        Args:
            path: Path of a .jpg, .png, .webp, .bmp, .tif or .json file, which takes its name when it is whole.
            image: The image; see `draw`.
            **style: Options of `draw`.

        Raises:
            InputError: As in `draw`; or the path has another suffix, or is that of the image itself.
            OutputError: The file can't be written.

        Examples:
            >>> import maskjet, pathlib, tempfile
            >>> image = maskjet.traffic.sample(seed=3).image
            >>> found = maskjet.load("demo").predict(image)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     found.save(f"{folder}/street.jpg")
            ...     [path.name for path in pathlib.Path(folder).iterdir()]
            ['street.jpg']
        """
        pictures.save(self, path, image, self._remembered, style)

    def _repr_png_(self) -> bytes:
        return pictures.encode_png(self, self._remembered)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Detections:
        """Build detections from the output of `as_dict`, directly or through JSON; polygons of a service are not read.

        Raises:
            InputError: A field is missing or invalid, or a mask is malformed or not of the image's size.
        """
        return cls(**json_fields(fields))


class _MadeOnDemand:
    """Descriptor of `Detections.rle`: makes the RLEs of `assemble` on first access, then stores them."""

    def __get__(self, found: Detections | None, _owner: type[Detections]) -> list[dict[str, Any]] | None:
        if found is None:
            return None  # the dataclass field's default
        rle: list[dict[str, Any]] | None = vars(found).setdefault("rle", vars(found)["_cut_rle"]())
        return rle  # all threads get the list that was stored first


Detections.rle = _MadeOnDemand()  # type: ignore[assignment] # after the dataclass has read the field's default


def assemble(
    image_size: tuple[int, int],
    xyxy: NDArray[np.float32],
    confidence: NDArray[np.float32],
    class_id: NDArray[np.int32],
    class_names: Mapping[int, str],
    cut_rle: Callable[[], list[dict[str, Any]]] | None,
) -> Detections:
    """Build detections from trusted fields, without checks, which take 10 µs with 25 masks.

    `cut_rle` makes the RLEs when they are first asked for, perhaps in several threads at once; None without masks.
    """
    found = object.__new__(Detections)
    fields = vars(found)  # `update` takes twice as long
    fields["image_size"], fields["class_names"] = image_size, class_names
    fields["xyxy"], fields["confidence"], fields["class_id"] = xyxy, confidence, class_id
    if cut_rle is None:
        fields["rle"] = None
    else:
        fields["_cut_rle"] = cut_rle
    return found


def join(first: Detections, second: Detections) -> Detections:
    """Concatenate two sets of detections of one image; tracks are dropped."""
    moved = None if first.moved is None or second.moved is None else np.concatenate([first.moved, second.moved])
    return Detections(
        first.image_size,
        np.concatenate([first.xyxy, second.xyxy]),
        np.concatenate([first.confidence, second.confidence]),
        np.concatenate([first.class_id, second.class_id]),
        None if first.rle is None else [*first.rle, *(second.rle or ())],
        first.class_names,
        moved=moved,
    )

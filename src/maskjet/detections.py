"""Detections: the result of every implementation and engine, and the input of every sink."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle, limits
from maskjet.config import check_choice
from maskjet.crops import Background, Shape, cut
from maskjet.detection_fields import check_array, check_fields, pick_rows, to_floats, to_text, to_whole
from maskjet.errors import InputError, suggest, translate_errors
from maskjet.exchange import make_fiftyone
from maskjet.extras import require
from maskjet.mask_pixels import MaskPixels, check_mask_pixels, keep_pixels
from maskjet.outlines import Along, Holes
from maskjet.printing import printable

if TYPE_CHECKING:
    import pandas
    import supervision

    from maskjet.media.images import ImageLike, ImageReference

CocoKind = Literal["segm", "bbox"]
"""Kind of COCO results: of masks or of boxes."""
_MOST_CLASSES = 8  # that `repr` counts one by one
_GREY = 128  # of the canvas where there is no image


class DrawOptions(TypedDict, total=False):
    """Options of `Detections.draw` and `save`: the fields of `maskjet.drawing.DrawStyle`."""

    boxes: bool
    labels: bool
    scores: bool
    masks: bool
    outlines: bool
    ids: bool
    trails: bool
    label: str | None
    line_width: float | None
    color_by: Literal["class", "instance"]
    palette: Mapping[str, str] | None
    mask_pixels: MaskPixels


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
    """float32 [n]: 0..1."""
    class_id: NDArray[np.int32]
    """int32 [n]: keys of `class_names`."""
    rle: list[dict[str, Any]] | None = None
    """n COCO RLEs, {"size": [H, W], "counts": bytes}; None from a detector without masks."""
    class_names: Mapping[int, str] = field(default_factory=dict)
    """Class id to name; a class without a name is called by its id."""
    track_id: NDArray[np.int64] | None = None
    """int64 [n]: the same number for the same thing in all frames, -1 until it is confirmed; None without tracking."""
    track_class_id: NDArray[np.int64] | None = None
    """int64 [n]: class of each one's track, by vote; its `class_id` where it has no track; None without tracking."""
    filled: NDArray[np.bool_] | None = None
    """bool [n]: whether it was added by `maskjet.tracking.smooth`; None where nothing was."""
    _remembered: ClassVar[ImageReference | None] = None  # for `draw`; set on single instances by `remember`

    def __post_init__(self) -> None:
        check_fields(self)

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getstate__(self) -> dict[str, Any]:
        """The fields for copies and pickles, with masks that nobody has asked for yet."""
        return {"rle": self.rle} | {name: value for name, value in vars(self).items() if name != "_cut_rle"}

    def __repr__(self) -> str:
        height, width = self.image_size
        counts = Counter(self._names()).most_common()
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
            rle=None if self.rle is None else [self.rle[i] for i in picked],
            **{name: values[picked] for name, values in self._tracks().items()},
        )

    def with_tracks(self, track_id: NDArray[np.int64], track_class_id: NDArray[np.int64] | None = None) -> Detections:
        """The same detections, with the identities that a tracker gives them.

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

    def _with(self, **fields: Any) -> Detections:
        """A copy with other fields, which are known to be right, of the same image."""
        changed = object.__new__(Detections)
        vars(changed).update(vars(self), **fields)
        return changed

    @property
    def class_name(self) -> NDArray[np.str_]:
        """NumPy str [n]: the name of each detection's class; `found[found.class_name == "car"]` picks some."""
        return np.array(self._names(), dtype=np.str_)

    def _names(self) -> list[str]:
        """`class_name` as Python's own text, which NumPy's ends at trailing zeros."""
        return [self.class_names.get(class_id, str(class_id)) for class_id in self.class_id.tolist()]

    @property
    def area(self) -> NDArray[np.int64]:
        """int64 [n]: pixels inside each mask; without masks, inside each box, rounded, 0 if that is no number."""
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
                be none; if the box is not a number, all. "largest": keep the largest part, and parts with at least a
                third of its pixels; pixels that touch at a corner are of one part. "raw": keep all.

        Returns:
            Detections with these masks; the same ones for "raw" or without masks.

        Raises:
            InputError: mask_pixels is none of these, or a mask is malformed.
        """
        check_mask_pixels(mask_pixels)
        if mask_pixels == "raw" or self.rle is None:
            return self
        return self._with(rle=keep_pixels(self.rle, self.xyxy, self.image_size, mask_pixels))

    def masks(self) -> NDArray[np.bool_]:
        """Dense masks, bool [n, H, W].

        Raises:
            InputError: These detections have no masks, a mask is malformed, or together they are larger than
                `limits.masks_bytes`.
        """
        masks = self._masks_or_raise("masks")
        limits.check("masks_bytes", len(masks) * math.prod(self.image_size), "masks() needs")
        dense = np.zeros((len(masks), *self.image_size), dtype=np.bool_)
        for plane, rle in zip(dense, masks, strict=True):
            plane[:] = coco_rle.decode(rle)
        return dense

    def polygons(
        self, *, tolerance: float = 0.0, holes: Holes = "fill", along: Along = "centers"
    ) -> list[list[NDArray[np.float32]]]:
        """Outlines of each detection's parts, float32 [k, 2] (x, y) in image coordinates; see `coco_rle.polygons`.

        Raises:
            InputError: These detections have no masks, or an argument is none that `coco_rle.polygons` takes.
        """
        masks = self._masks_or_raise("polygons")
        return [coco_rle.polygons(rle, tolerance=tolerance, holes=holes, along=along) for rle in masks]

    def _masks_or_raise(self, method: str) -> list[dict[str, Any]]:
        if self.rle is None:
            raise InputError(f"{method}() needs masks, and a model without a mask head made these detections.")
        return self.rle

    def to_fiftyone(self) -> Any:
        """Convert to `fiftyone.Detections`; ids of tracks become `index`.

        FiftyOne stretches a mask over its box, so that boxes are the masks' own, which may leave the detector's. Those
        have detections without masks, `dataclasses.replace(found, rle=None).to_fiftyone()`, and without a pixel.

        Raises:
            MissingDependencyError: fiftyone is not installed.
        """
        return make_fiftyone(self)

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
        if masks not in ("dense", "compact", False):
            raise InputError(f"masks must be 'dense', 'compact' or False, got {masks!r}.")
        library = require("supervision", extra="supervision", purpose="to_supervision()")
        mask = None
        if masks and self.rle is not None:
            mask = self.masks() if masks == "dense" else _to_compact(self.rle, self.image_size)
        found: supervision.Detections = library.Detections(
            xyxy=self.xyxy.copy(),
            mask=mask,
            confidence=self.confidence.copy(),
            class_id=self.class_id.astype(int),
            tracker_id=None if self.track_id is None else self.track_id.astype(int),
            data={"class_name": self.class_name},
        )
        return found

    @classmethod
    def from_supervision(cls, found: supervision.Detections, image_size: tuple[int, int]) -> Detections:
        """Convert from `supervision.Detections` of an image of (height, width); reads `to_supervision` back.

        A missing confidence is 1, a missing class 0.

        Raises:
            InputError: found is something else, its masks are of another size, or ids are no whole numbers, or huge.
        """
        with translate_errors(InputError, "found must be supervision.Detections"):
            count, ids = len(found), found.tracker_id
            classes = [0] * count if found.class_id is None else found.class_id
            class_id = np.array([to_whole("class_id", each) for each in classes], np.int32)
            score = np.ones(count, np.float32) if found.confidence is None else np.asarray(found.confidence, np.float32)
            names = map(str, found.data.get("class_name", ()))
            return cls(
                image_size=image_size,
                xyxy=np.asarray(found.xyxy, np.float32),
                confidence=score,
                class_id=class_id,
                rle=None if found.mask is None else [coco_rle.encode(mask)[0] for mask in found.mask],
                class_names=dict(zip(class_id.tolist(), names, strict=False)),
                track_id=None if ids is None else np.array([to_whole("tracker_id", each) for each in ids], np.int64),
            )

    def to_columns(self) -> dict[str, Any]:
        """The columns of a table with a row per detection, most confident first.

        Returns:
            By name class_id, class_name, confidence, x1, y1, x2, y2 (pixels) and area (pixels, as `area`), with
            tracking also track_id and track_class_id, after `smooth` filled: arrays [n], the names a list.
        """
        corners = dict(zip(("x1", "y1", "x2", "y2"), self.xyxy.T.copy(), strict=True))
        columns = {"class_id": self.class_id.copy(), "class_name": self._names(), "confidence": self.confidence.copy()}
        return {**columns, **corners, "area": self.area, **self._tracks()}

    def _tracks(self) -> dict[str, NDArray[Any]]:
        """Copies of the fields of tracks, as far as they are there."""
        fields = {"track_id": self.track_id, "track_class_id": self.track_class_id, "filled": self.filled}
        return {name: values.copy() for name, values in fields.items() if values is not None}

    def to_pandas(self) -> pandas.DataFrame:
        """Convert to a `pandas.DataFrame` with a row per detection, most confident first.

        Returns:
            The columns of `to_columns`.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        library = require("pandas", extra="pandas", purpose="to_pandas()")
        table: pandas.DataFrame = library.DataFrame(self.to_columns())
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
        kind = kind or ("bbox" if self.rle is None else "segm")
        if kind not in get_args(CocoKind):
            raise InputError(f"kind must be segm or bbox, got {kind!r}.")
        check_finite(self)
        image_id, found = to_whole("image_id", image_id), self.class_id.tolist()
        missing = [] if category_ids is None else sorted(set(found) - set(category_ids))
        if missing:
            raise InputError(f"category_ids must have every class that was found, got none for {missing}.")
        shapes: list[dict[str, Any]]
        if kind == "segm":
            shapes = [{"segmentation": coco_rle.to_json(rle)} for rle in self._masks_or_raise("to_coco")]
        else:
            shapes = [{"bbox": [x1, y1, x2 - x1, y2 - y1]} for x1, y1, x2, y2 in self.xyxy.tolist()]
        ids = found if category_ids is None else [to_whole("category_ids", category_ids[each]) for each in found]
        results = [
            {"image_id": image_id, "category_id": category_id, **shape, "score": score}
            for category_id, shape, score in zip(ids, shapes, self.confidence.tolist(), strict=True)
        ]
        for result, track in zip(results, [] if self.track_id is None else self.track_id.tolist(), strict=False):
            result["track_id"] = track
        return results

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON types, which `from_dict` reads back.

        Raises:
            InputError: A box or confidence is not finite: JSON has no such numbers.
        """
        check_finite(self)
        columns = self.class_id.tolist(), self._names(), self.confidence.tolist(), self.xyxy.tolist()
        found: list[dict[str, Any]] = [
            {"class_id": class_id, "class_name": name, "confidence": confidence, "xyxy": box}
            for class_id, name, confidence, box in zip(*columns, strict=True)
        ]
        for name, values in self._tracks().items():
            for entry, value in zip(found, values.tolist(), strict=True):
                entry[name] = value
        for entry, rle in zip(found, self.rle or [], strict=False):
            entry["rle"] = coco_rle.to_json(rle)
        return {"size": list(self.image_size), "has_masks": self.rle is not None, "detections": found}

    def to_json(self) -> str:
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
        return json.dumps(self.as_dict(), allow_nan=False)

    def remember(self, image: ImageReference) -> None:
        """Keep a reference to the image for `draw`; it is no field, and not compared, written or printed."""
        object.__setattr__(self, "_remembered", image)

    def draw(self, image: ImageLike | None = None, **style: Unpack[DrawOptions]) -> NDArray[np.uint8]:
        """Draw the detections into a copy of their image; `maskjet.draw` also redacts them or cuts them out.

        Args:
            image: The image, of any kind that `predict` takes. None is the one that `predict` saw: a file is read
                again; an array, tensor or PIL image is only remembered while something else holds it, and `bytes` are
                not. Frames of `stream` are in hand: `found.draw(frame.image)`.
            **style: Parts and colours: boxes, labels, scores, masks, outlines and ids (True or False), line_width
                in pixels, color_by "class" or "instance", mask_pixels "box", "raw" or "largest"; see
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
        return _draw(self._pixels_of(image), self, style)

    def _pixels_of(self, image: ImageLike | None) -> NDArray[np.uint8]:
        """The image that is given, or that `predict` saw, checked to be the one of these detections."""
        from maskjet.media.images import to_image

        pixels = self._image() if image is None else to_image(image, "image")
        if pixels is None:
            raise InputError(
                "image must be given, as the one that these detections were found on is not held any more: "
                "draw(image) or save(path, image)."
            )
        if pixels.shape[:2] != tuple(self.image_size):
            (height, width), (wanted_height, wanted_width) = pixels.shape[:2], self.image_size
            raise InputError(
                f"image must be the one of these detections, {wanted_width}×{wanted_height}, got {width}×{height}."
            )
        return pixels

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
        masks = self._masks_or_raise("crops") if background == "transparent" else None
        return list(cut(self._pixels_of(image), self.xyxy, masks, shape))

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
        from maskjet.drawing import showing
        from maskjet.files import is_same_file, write_json

        suffix = Path(path).suffix.lower()
        if suffix == ".json":
            write_json(os.fspath(path), self.as_dict(), "path")
            return
        if suffix not in showing.SUFFIXES:
            raise InputError(f"path must end in {', '.join(showing.SUFFIXES)} or .json, got {os.fspath(path)!r}.")
        given = image if isinstance(image, str | os.PathLike) else None
        path_of_image = None if self._remembered is None else self._remembered.path
        if any(source is not None and is_same_file(path, source) for source in (given, path_of_image)):
            raise InputError(f"path must not be the image's own, {os.fspath(path)!r} would be overwritten.")
        showing.write(path, self.draw(image, **style))

    def _repr_png_(self) -> bytes:
        """A PNG for notebooks; on a grey canvas where the image is not held any more."""
        from maskjet.drawing import showing

        try:
            pixels = self._image()
        except InputError:  # the file is gone
            pixels = None
        if pixels is None or pixels.shape[:2] != tuple(self.image_size):
            pixels = np.full((*self.image_size, 3), _GREY, dtype=np.uint8)
        return showing.encode(_draw(pixels, self, {}), ".png")

    def _image(self) -> NDArray[np.uint8] | None:
        """The image that `predict` saw; None if nothing holds it any more."""
        return None if self._remembered is None else self._remembered.image()

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Detections:
        """Build detections from the output of `as_dict`, directly or through JSON; polygons of a service are not read.

        Raises:
            InputError: A field is missing or invalid, or a mask is malformed or not of the image's size.
        """
        with translate_errors(InputError, "fields must be what Detections.as_dict returns"):
            found = fields["detections"]
            has_rle = fields["has_masks"] and not any("polygons" in entry for entry in found)
            height, width = (to_whole("size", side, least=0) for side in fields["size"])
            class_id = [to_whole("class_id", entry["class_id"]) for entry in found]
            tracks: dict[str, NDArray[Any]] = {
                name: np.array([to_whole(name, entry[name]) for entry in found], np.int64)
                for name in ("track_id", "track_class_id")
                if found and name in found[0]
            }
            if found and "filled" in found[0]:
                tracks["filled"] = np.array([entry["filled"] for entry in found])
            return cls(
                image_size=(height, width),
                xyxy=to_floats("xyxy", [entry["xyxy"] for entry in found], (4,)),
                confidence=to_floats("confidence", [entry["confidence"] for entry in found], ()),
                class_id=np.array(class_id, dtype=np.int32),
                rle=[coco_rle.from_json(entry["rle"]) for entry in found] if has_rle else None,
                class_names={
                    n: to_text("class_name", entry["class_name"]) for n, entry in zip(class_id, found, strict=True)
                },
                **tracks,
            )


class _MadeOnDemand:
    """`Detections.rle` of instances that `assemble` made, until it is asked for; then it is a plain attribute."""

    def __get__(self, found: Detections | None, _owner: type[Detections]) -> list[dict[str, Any]] | None:
        if found is None:
            return None  # the default, which the class had
        rle: list[dict[str, Any]] | None = vars(found).setdefault("rle", vars(found)["_cut_rle"]())
        return rle  # the same list for all threads, whichever was first


Detections.rle = _MadeOnDemand()  # type: ignore[assignment] # after the dataclass has read the field's default


def are_finite(detections: Detections) -> NDArray[np.bool_]:
    """Which detections have a finite box and confidence, bool [n]."""
    return np.asarray(np.isfinite(detections.xyxy).all(axis=1) & np.isfinite(detections.confidence))


def check_finite(detections: Detections) -> None:
    """Raise InputError if a box or confidence is not finite: files of text have no such numbers."""
    is_finite = are_finite(detections)
    if not is_finite.all():
        i = int(is_finite.argmin())
        raise InputError(
            f"xyxy and confidence must be finite, detection {i} has {detections.xyxy[i].tolist()} and "
            f"{detections.confidence[i]}; pick those that are."
        )


def coco_annotations(found: Detections, image_id: int, category_ids: Mapping[int, int]) -> list[dict[str, Any]]:
    """Annotations of a COCO data set, with boxes, areas and masks; arguments are those of `Detections.to_coco`."""
    boxes, shapes = found.to_coco(image_id, category_ids, kind="bbox"), found.to_coco(image_id, category_ids)
    areas = found.area.tolist()
    return [{"area": area, "iscrowd": 0, **box, **shape} for area, box, shape in zip(areas, boxes, shapes, strict=True)]


def assemble(
    image_size: tuple[int, int],
    xyxy: NDArray[np.float32],
    confidence: NDArray[np.float32],
    class_id: NDArray[np.int32],
    class_names: Mapping[int, str],
    cut_rle: Callable[[], list[dict[str, Any]]] | None,
) -> Detections:
    """Build detections of fields that are known to be right, without the checks, which take 10 µs with 25 masks.

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
    """Detections of one image, and others of it behind them; without tracks."""
    return Detections(
        first.image_size,
        np.concatenate([first.xyxy, second.xyxy]),
        np.concatenate([first.confidence, second.confidence]),
        np.concatenate([first.class_id, second.class_id]),
        None if first.rle is None else [*first.rle, *(second.rle or ())],
        first.class_names,
    )


def _to_compact(rles: Sequence[dict[str, Any]], size_hw: tuple[int, int]) -> Any:
    """A `CompactMask` made of each mask's own tight box, as masks may leave their detection's box.

    Its `from_coco_rle` makes the same one in Python's loops, which take 13 to 18 times as long, and longer than dense
    masks (benchmarks.supervision_masks).
    """
    compact = require("supervision.detection.compact_mask", extra="supervision", purpose="to_supervision()").CompactMask
    crops = [
        (left, top, crop if crop.size else np.zeros((1, 1), np.uint8))
        for left, top, crop in map(coco_rle.decode_crop, rles)
    ]
    counts = [coco_rle.count_runs(crop).astype(np.int32) for _, _, crop in crops]
    sides = np.array([crop.shape for _, _, crop in crops], np.int32).reshape(-1, 2)
    corners = np.array([corner for *corner, _ in crops], np.int32).reshape(-1, 2)
    return compact(counts, sides, corners, size_hw)


def _draw(image: NDArray[np.uint8], detections: Detections, style: DrawOptions) -> NDArray[np.uint8]:
    from maskjet.drawing import DrawStyle, draw

    known = DrawOptions.__annotations__
    for name in style:
        if name not in known:
            raise InputError(f"style must be options of draw(), got {name!r}{suggest(name, known)}")
    return draw(image, detections, DrawStyle(**style))

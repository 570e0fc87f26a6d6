"""Detections: the result of every implementation and engine, and the input of every sink."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from maskjet import coco_rle, limits
from maskjet.errors import InputError, border
from maskjet.extras import require

if TYPE_CHECKING:
    import supervision


@dataclass(frozen=True, eq=False)
class Detections:
    """The instances found on one image, most confident first."""

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

    def __post_init__(self) -> None:
        try:  # plain Python throughout: this runs for every frame
            height, width = map(operator.index, self.image_size)
        except (TypeError, ValueError) as error:
            raise InputError(f"image_size must be (height, width) in pixels, got {self.image_size!r}.") from error
        if height < 0 or width < 0:
            raise InputError(f"image_size must be at least 0, got {self.image_size}.")
        count = len(self.xyxy) if isinstance(self.xyxy, np.ndarray) and self.xyxy.ndim else 0
        expected = {
            "xyxy": (np.float32, (count, 4)),
            "confidence": (np.float32, (count,)),
            "class_id": (np.int32, (count,)),
        }
        for name, (dtype, shape) in expected.items():
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != shape:
                got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
                raise InputError(f"{name} must be {np.dtype(dtype).name} {list(shape)}, got {got}.")
        if self.rle is None:
            return
        try:
            sizes = [[*rle["size"]] for rle in self.rle if rle["counts"] is not None]
        except (TypeError, KeyError, IndexError) as error:
            raise InputError("rle must be a list of COCO RLEs, each with size and counts.") from error
        if len(sizes) != count:
            raise InputError(f"rle must have one mask per box, {count}, got {len(sizes)}.")
        if sizes.count([height, width]) != count:
            index, size = next((index, size) for index, size in enumerate(sizes) if size != [height, width])
            raise InputError(f"rle[{index}] must have the image's size {self.image_size}, got {size}.")

    def __len__(self) -> int:
        return len(self.xyxy)

    def __getitem__(self, index: slice | Sequence[int] | NDArray[Any]) -> Detections:
        """Select detections by a slice, a boolean mask or an array of positions."""
        picked = np.arange(len(self))[index]
        if picked.ndim != 1:
            raise InputError(f"index must pick a list of detections, got {index!r}; use [{index}:{index}+1] for one.")
        return Detections(
            image_size=self.image_size,
            xyxy=self.xyxy[picked],
            confidence=self.confidence[picked],
            class_id=self.class_id[picked],
            rle=None if self.rle is None else [self.rle[i] for i in picked],
            class_names=self.class_names,
        )

    @property
    def class_name(self) -> list[str]:
        """The name of each detection's class."""
        return [self.class_names.get(int(class_id), str(class_id)) for class_id in self.class_id]

    @property
    def area(self) -> NDArray[np.int64]:
        """int64 [n]: pixels inside each mask; without masks, inside each box, rounded."""
        if self.rle is not None:
            return np.array([coco_rle.area(rle) for rle in self.rle], dtype=np.int64)
        width, height = (self.xyxy[:, 2:] - self.xyxy[:, :2]).T
        return np.asarray(np.rint(width * height), dtype=np.int64)

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

    def polygons(self) -> list[list[NDArray[np.float32]]]:
        """Outlines of each detection, float32 [k, 2] (x, y) in image coordinates; see `coco_rle.polygons` for holes.

        Raises:
            InputError: These detections have no masks.
        """
        return [coco_rle.polygons(rle) for rle in self._masks_or_raise("polygons")]

    def _masks_or_raise(self, method: str) -> list[dict[str, Any]]:
        if self.rle is None:
            raise InputError(f"{method}() needs masks, and a model without a mask head made these detections.")
        return self.rle

    def to_supervision(self) -> supervision.Detections:
        """Convert to `supervision.Detections`, with dense masks and the class names under data["class_name"].

        Raises:
            MissingDependencyError: supervision is not installed.
        """
        library = require("supervision", extra="supervision", purpose="to_supervision()")
        found: supervision.Detections = library.Detections(
            xyxy=self.xyxy.copy(),
            mask=None if self.rle is None else self.masks(),
            confidence=self.confidence.copy(),
            class_id=self.class_id.astype(int),
            data={"class_name": np.array(self.class_name, dtype=str)},
        )
        return found

    def to_coco(self, image_id: int, category_ids: Mapping[int, int] | None = None) -> list[dict[str, Any]]:
        """Convert to entries of a COCO results file, in JSON types.

        Args:
            image_id: Id of the image in the data set.
            category_ids: Class id to COCO category id; None keeps the class ids.

        Returns:
            Per detection image_id, category_id, bbox (x, y, width, height), score, and, with masks, segmentation.

        Raises:
            InputError: category_ids lacks a class that was found, or a box or confidence is not finite.
        """
        self._check_is_json()
        found = self.class_id.tolist()
        missing = [] if category_ids is None else sorted(set(found) - set(category_ids))
        if missing:
            raise InputError(f"category_ids must have every class that was found, got none for {missing}.")
        entries = []
        for i, (x1, y1, x2, y2) in enumerate(self.xyxy.tolist()):
            entry: dict[str, Any] = {
                "image_id": image_id,
                "category_id": found[i] if category_ids is None else category_ids[found[i]],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": float(self.confidence[i]),
            }
            if self.rle is not None:
                entry["segmentation"] = coco_rle.to_json(self.rle[i])
            entries.append(entry)
        return entries

    def as_dict(self) -> dict[str, Any]:
        """Convert to JSON types, which `from_dict` reads back.

        Raises:
            InputError: A box or confidence is not finite: JSON has no such numbers.
        """
        self._check_is_json()
        rows = zip(self.class_id.tolist(), self.class_name, self.confidence.tolist(), self.xyxy.tolist(), strict=True)
        found = [
            {"class_id": class_id, "class_name": name, "confidence": confidence, "xyxy": xyxy}
            for class_id, name, confidence, xyxy in rows
        ]
        for entry, rle in zip(found, self.rle or [], strict=False):
            entry["rle"] = coco_rle.to_json(rle)
        return {"size": list(self.image_size), "has_masks": self.rle is not None, "detections": found}

    def _check_is_json(self) -> None:
        is_finite = np.isfinite(self.xyxy).all(axis=1) & np.isfinite(self.confidence)
        if not is_finite.all():
            i = int(is_finite.argmin())
            raise InputError(
                f"xyxy and confidence must be finite, detection {i} has {self.xyxy[i].tolist()} and "
                f"{self.confidence[i]}; pick those that are."
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Detections:
        """Build detections from the output of `as_dict`, directly or through JSON.

        Raises:
            InputError: A field is missing or invalid, or a mask is malformed or not of the image's size.
        """
        with border(InputError, "fields must be what Detections.as_dict returns"):
            found = fields["detections"]
            height, width = (_whole("size", side, least=0) for side in fields["size"])
            class_id = [_whole("class_id", entry["class_id"]) for entry in found]
            return cls(
                image_size=(height, width),
                xyxy=_floats("xyxy", [entry["xyxy"] for entry in found], (4,)),
                confidence=_floats("confidence", [entry["confidence"] for entry in found], ()),
                class_id=np.array(class_id, dtype=np.int32),
                rle=[coco_rle.from_json(entry["rle"]) for entry in found] if fields["has_masks"] else None,
                class_names={
                    n: _text("class_name", entry["class_name"]) for n, entry in zip(class_id, found, strict=True)
                },
            )


def _whole(name: str, value: Any, least: int | None = None) -> int:
    if isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} must be a whole number{bound}, got {value}.")
    return operator.index(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {type(value).__name__}.")
    return value


def _floats(name: str, rows: list[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers as float32 [n, *shape]; text is refused, even if NumPy could parse it."""
    if not rows:
        return np.empty((0, *shape), dtype=np.float32)
    numbers = np.array(rows)
    if numbers.dtype.kind not in "iuf":
        raise InputError(f"{name} must be numbers, got {numbers.dtype}.")
    with np.errstate(over="raise"):  # or a number too large becomes infinite
        return numbers.astype(np.float32)

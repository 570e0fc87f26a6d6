"""Checks of the fields and indices of `Detections`."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskjet.checks import shown
from maskjet.errors import InputError

_OPTIONAL = ("track_id", "track_class_id", "filled", "moved")
"""Fields of `Detections` that may be None, besides the masks."""


def check_fields(found: Any) -> None:
    """Raise InputError if a field differs in type, dtype or shape from the definition in `Detections`."""
    try:  # plain Python throughout: this runs for every frame
        height, width = map(operator.index, found.image_size)
    except (TypeError, ValueError) as error:
        raise InputError(f"image_size must be (height, width) in pixels, got {found.image_size!r}.") from error
    if not 0 <= min(height, width) <= max(height, width) < 2**31:
        raise InputError(f"image_size must be at least 0 and below 2**31, got {found.image_size}.")
    object.__setattr__(found, "image_size", (height, width))  # normalised to a tuple of Python integers
    if not isinstance(found.class_names, Mapping):
        raise InputError(f"class_names must be names by class id, got {type(found.class_names).__name__}.")
    count = len(found.xyxy) if isinstance(found.xyxy, np.ndarray) and found.xyxy.ndim else 0
    expected = {
        "xyxy": (np.float32, (count, 4)),
        "confidence": (np.float32, (count,)),
        "class_id": (np.int32, (count,)),
        "track_id": (np.int64, (count,)),
        "track_class_id": (np.int64, (count,)),
        "filled": (np.bool_, (count,)),
        "moved": (np.int64, (count,)),
    }
    for name, (dtype, shape) in expected.items():
        value = getattr(found, name)
        if value is None and name in _OPTIONAL:
            continue
        check_array(name, value, dtype, shape)
    if found.rle is None:
        return
    try:
        sizes = [[*rle["size"]] for rle in found.rle if rle["counts"] is not None]
    except (TypeError, KeyError, IndexError) as error:
        raise InputError("rle must be a list of COCO RLEs, each with size and counts.") from error
    if len(sizes) != count:
        raise InputError(f"rle must have one mask per box, {count}, got {len(sizes)}.")
    if sizes.count([height, width]) != count:
        index, size = next((index, size) for index, size in enumerate(sizes) if size != [height, width])
        raise InputError(f"rle[{index}] must have the image's size {found.image_size}, got {size}.")


def check_array(name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    """Raise InputError if a value is no array of this dtype and shape."""
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.shape != shape:
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{name} must be {np.dtype(dtype).name} {list(shape)}, got {got}.")


def pick_rows(index: Any, count: int) -> NDArray[np.intp]:
    """Convert an index of `Detections` to positions, all within 0..count - 1."""
    if isinstance(index, slice):
        return np.arange(count)[index]
    chosen: NDArray[Any] = np.asarray(index)
    if chosen.ndim == 0 and chosen.dtype.kind in "iu":
        chosen = chosen[None]
    if chosen.ndim == 1 and chosen.dtype == np.bool_:
        if len(chosen) != count:
            raise InputError(f"index must be a mask with one value per detection, {count}, got {len(chosen)} values.")
        return np.flatnonzero(chosen)
    if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and chosen.size):
        raise InputError(
            "index must be a position, a slice, a mask or a list of positions, got "
            f"{index if isinstance(index, str | int | float) else type(index).__name__!r}; "
            'for a class, use found[found.class_name == "car"].'
        )
    beyond = chosen[(chosen < -count) | (chosen >= count)]
    if beyond.size:
        raise IndexError(f"index must be below the number of detections, {count}, got {beyond[0]}.")
    return np.arange(count)[chosen.astype(np.intp)]


def to_whole(name: str, value: Any, *, bits: int = 64, least: int | None = None) -> int:
    """Convert a whole number of so many bits, with sign, to Python's; takes whole floats, as 2.0."""
    number = value.item() if getattr(value, "ndim", None) == 0 else value  # NumPy's and PyTorch's
    most, bound = 2 ** (bits - 1) - 1, f" of {bits} bits" if least is None else f" of at least {least}"
    is_real = isinstance(number, Real) and not isinstance(number, bool)
    if not is_real or not (-most if least is None else least) <= number <= most or number % 1:
        raise InputError(f"{name} must be a whole number{bound}, got {shown(number)}.")
    return int(number)


def to_text(name: str, value: Any) -> str:
    """Check a text."""
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {type(value).__name__}.")
    return value


def to_floats(name: str, rows: list[Any], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Convert numbers to float32 [n, *shape]; refuses text, even if NumPy could parse it."""
    if not rows:
        return np.empty((0, *shape), dtype=np.float32)
    try:
        numbers = np.array(rows)
        with np.errstate(over="raise"):  # else large numbers would become infinite
            converted = numbers.astype(np.float32) if numbers.dtype.kind in "iuf" else None
    except (ValueError, FloatingPointError) as error:
        raise InputError(f"{name} must be equally many numbers in each row, within float32's range.") from error
    if converted is None:
        raise InputError(f"{name} must be numbers, got {numbers.dtype}.")
    return converted


def are_finite(found: Any) -> NDArray[np.bool_]:
    """Whether box and confidence of each detection are finite, bool [n]."""
    return np.asarray(np.isfinite(found.xyxy).all(axis=1) & np.isfinite(found.confidence))


def check_finite(found: Any) -> None:
    """Raise InputError if a box or confidence is not finite: text formats have no such numbers."""
    is_finite = are_finite(found)
    if not is_finite.all():
        i = int(is_finite.argmin())
        raise InputError(
            f"xyxy and confidence must be finite, detection {i} has {found.xyxy[i].tolist()} and "
            f"{found.confidence[i]}; pick those that are."
        )


def masks_of(found: Any, method: str) -> list[dict[str, Any]]:
    """The RLEs of detections; raises InputError, naming the calling `method`, if there are none."""
    if found.rle is None:
        raise InputError(f"{method}() needs masks, and a model without a mask head made these detections.")
    masks: list[dict[str, Any]] = found.rle
    return masks


def names_of(found: Any) -> list[str]:
    """`class_name` as a list of str; NumPy's type would strip trailing NULs."""
    names = found.class_names
    return [names[class_id] if class_id in names else str(class_id) for class_id in found.class_id.tolist()]


def tracks_of(found: Any) -> dict[str, NDArray[Any]]:
    """Copies of `track_id`, `track_class_id`, `filled` and `moved`, by name; those that are None are left out."""
    fields = {name: getattr(found, name) for name in _OPTIONAL}
    return {name: values.copy() for name, values in fields.items() if values is not None}

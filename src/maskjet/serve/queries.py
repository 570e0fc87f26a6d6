"""Query parameters of /v1/predict and /v1/stream."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from starlette.datastructures import QueryParams

from maskjet.errors import suggest
from maskjet.serve import problems
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.service import Service
from maskjet.serve.settings import Settings
from maskjet.serve.tickets import Options
from maskjet.tiling.layout import UNCUT, Tiling, parse_tile

Masks = Literal["rle", "polygons", "none"]
"""Format of masks in an answer."""
_TEXT = {"type": "string"}
_SHARE = r"\d(\.\d{1,17})?"
_FORMS: Mapping[str, tuple[str, str]] = {
    "masks": ("|".join(get_args(Masks)), f"one of {', '.join(get_args(Masks))}"),
    "tolerance": (r"\d{1,4}(\.\d{1,4})?", "pixels, 0..9999"),
    "max_detections": (r"\d{1,9}", "a whole number"),
    "nms": (_SHARE, "a number 0..1"),
    "overlap": (_SHARE, "a number 0..0.9"),
    **dict.fromkeys(("track", "full", "rotated_boxes"), ("true|false", "true or false")),
}
"""Regular expressions of values, and what they must be, in messages."""
_MOST_KEPT = 1000  # longest query string to cache, in bytes

_PARAMETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "threshold": (
        "A confidence must exceed it: a number 0..1 for all classes; or name=value, repeated, for some, where others "
        "keep theirs.",
        {"type": "array", "items": _TEXT},
    ),
    "classes": ("Names of the classes to report, separated by commas.", _TEXT),
    "max_detections": ("Most detections per image.", {"type": "integer", "minimum": 1}),
    "nms": (
        "Of detections that overlap more, intersection over union, the most confident one stays; 1 keeps all.",
        {"type": "number", "minimum": 0, "maximum": 1},
    ),
    "masks": (
        "How masks are given: COCO RLE, outlines along the pixels' edges as lists of [x, y], or not at all.",
        {**_TEXT, "enum": list(get_args(Masks)), "default": "rle"},
    ),
    "tolerance": (
        "With masks=polygons, by how many pixels outlines may be off, so that they have fewer points.",
        {"type": "number", "minimum": 0, "default": 0},
    ),
    "rotated_boxes": (
        "Whether each detection has rotated_box, the corners of its box of least area at any angle.",
        {"type": "boolean", "default": False},
    ),
    "tile": (
        "For small instances: tiles of this side in pixels, WIDTHxHEIGHT, auto, or none. All images have at most 64.",
        _TEXT,
    ),
    "overlap": ("Least overlap of tiles, as a share of a side.", {"type": "number", "minimum": 0, "maximum": 0.9}),
    "full": ("Whether the whole image is looked at, too.", {"type": "boolean", "default": True}),
    "model": ("Name of the model; the first one that is served if left out.", _TEXT),
}
PARAMETERS = [
    {"name": name, "in": "query", "required": False, "description": text, "schema": schema}
    for name, (text, schema) in _PARAMETERS.items()
]
"""The parameters, as OpenAPI objects."""


@dataclass(frozen=True)
class Query:
    """Validated query parameters of a request."""

    dispatcher: Dispatcher
    """The model's dispatcher."""
    options: Options
    """Threshold, classes, most detections, duplicates and tiles."""
    masks: Masks
    """Format of masks in the answer."""
    tolerance: float = 0.0
    """Tolerance of polygons in pixels."""
    rotated_boxes: bool = False
    """Whether detections have rotated boxes."""
    is_tracked: bool = False
    """Whether to track instances across the frames of a stream."""


def parse_query(text: bytes, service: Service, *, is_stream: bool = False) -> Query:
    """Read a query string's parameters; only those of a stream may have `track`.

    Raises:
        ProblemError: 400, a parameter is unknown or invalid; 404, there is no such model; 503, the service has failed.
        InputError: A parameter does not fit the model.
    """
    parse = _parse if len(text) <= _MOST_KEPT else _parse.__wrapped__
    model, options, masks, tolerance, rotated_boxes, is_tracked = parse(text, service.settings, is_stream)
    dispatcher = service.dispatcher(model)
    dispatcher.check(options)
    return Query(dispatcher, options, masks, tolerance, rotated_boxes, is_tracked)


@lru_cache(256)  # most clients repeat the same query
def _parse(text: bytes, default: Settings, is_stream: bool) -> tuple[str | None, Options, Masks, float, bool, bool]:
    """Parse a query string: the model's name, and the other fields of `Query`."""
    given = QueryParams(text)
    for name in given:
        if name not in _PARAMETERS and not (is_stream and name == "track"):
            raise problems.bad_request(
                f"The query must have parameters that it knows, got {name!r}{suggest(name, _PARAMETERS)}"
            )
    for name, (form, expected) in _FORMS.items():
        if name in given and not re.fullmatch(form, given[name], re.ASCII):
            raise problems.bad_request(f"{name} must be {expected}, got {given[name]!r}.")
    most, nms = given.get("max_detections"), given.get("nms")
    options = Options(
        _parse_threshold(given.getlist("threshold")),
        None if "classes" not in given else tuple(name.strip() for name in given["classes"].split(",")),
        None if most is None else int(most),
        None if nms is None else float(nms),
        _parse_tiling(given, default),
    )
    rotated_boxes, is_tracked = (given.get(name) == "true" for name in ("rotated_boxes", "track"))
    masks: Any = given.get("masks", "rle")
    return given.get("model"), options, masks, float(given.get("tolerance", 0)), rotated_boxes, is_tracked


def _parse_threshold(texts: Sequence[str]) -> float | tuple[tuple[str, float], ...] | None:
    if not texts:
        return None
    try:
        if len(texts) == 1 and "=" not in texts[0]:
            return float(texts[0])
        pairs = [text.rpartition("=") for text in texts]
        if all(separator for _, separator, _ in pairs):
            return tuple((name, float(value)) for name, _, value in pairs)
    except ValueError:
        pass
    raise problems.bad_request(
        f"threshold must be a number 0..1, or name=value for each class, got {', '.join(texts)!r}."
    )


def _parse_tiling(given: QueryParams, default: Settings) -> Tiling:
    tile = given.get("tile", default.tile)
    is_full = given["full"] == "true" if "full" in given else default.full
    return UNCUT if tile == "none" else Tiling(parse_tile(tile), float(given.get("overlap", default.overlap)), is_full)

"""OpenAPI schemas of the /v1 routes: bodies, answers and errors that FastAPI can't infer from the code."""

from __future__ import annotations

from typing import Any

Responses = dict[int | str, dict[str, Any]]
"""Status code to an OpenAPI response object."""
TEXT: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_NUMBER = {"type": "number"}


def object_of(required: str = "", **properties: Any) -> dict[str, Any]:
    """Schema of an object with these properties; `required` names some of them, separated by spaces."""
    return {"type": "object", "required": required.split(), "properties": properties}


def list_of(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": items, **more}


def answer(text: str, schema: dict[str, Any], media_type: str = "application/json") -> dict[str, Any]:
    """OpenAPI response object with this schema."""
    return {"description": text, "content": {media_type: {"schema": schema}}}


def _about(text: str, schema: dict[str, Any] = TEXT) -> dict[str, Any]:
    return {**schema, "description": text}


IMAGES: dict[str, Any] = {
    "required": True,
    "description": "One image: JPEG, PNG, WebP, BMP, TIFF or GIF (its first image); or a form with several.",
    "content": {
        **{f"image/{name}": BINARY for name in ("jpeg", "png", "webp", "bmp", "tiff", "gif")},
        "application/octet-stream": BINARY,
        "multipart/form-data": {
            "schema": {"type": "object", "additionalProperties": BINARY["schema"], "minProperties": 1}
        },
    },
}
_SIZE = list_of(INTEGER, minItems=2, maxItems=2, description="Height and width, in pixels.")
_DETECTION = object_of(
    "class_id class_name confidence xyxy",
    class_id=INTEGER,
    class_name=TEXT,
    confidence={**_NUMBER, "minimum": 0, "maximum": 1},
    xyxy=list_of(_NUMBER, minItems=4, maxItems=4, description="Corners of the box, in pixels."),
    rle=_about("COCO RLE of the mask; with masks=rle.", object_of("size counts", size=_SIZE, counts=TEXT)),
    track_id=_about("Id of the track, -1 for none; of streams and sources with track=true.", INTEGER),
    track_class_id=_about("Class of the track, by vote; likewise.", INTEGER),
    polygons=list_of(
        list_of(list_of(_NUMBER, minItems=2, maxItems=2)),
        description="Outlines of the mask, each a list of [x, y] in pixels; with masks=polygons.",
    ),
)
_RESULT = object_of(
    "size has_masks detections",
    size=_SIZE,
    has_masks=_about("Whether each detection has its mask, as `rle` or `polygons`.", {"type": "boolean"}),
    detections=list_of(_DETECTION, description="Most confident first."),
    name=_about("Name of the part; for a form."),
)
_RESULTS = _about("For a form: one result per part, in order.", object_of("results", results=list_of(_RESULT)))
_PROBLEM = object_of(
    "type title status detail",
    type=_about("urn:maskjet:problem:NAME."),
    title=TEXT,
    status=INTEGER,
    detail=_about("One sentence: what was expected, and what came."),
    reference=_about("Where to look in the service's log; with status 500."),
)
PROBLEMS: Responses = {"default": answer("What is wrong.", _PROBLEM, "application/problem+json")}
"""Errors of every route; docs/serving.md lists the status codes. Without it FastAPI documents its validation error."""
PREDICT: Responses = {
    200: {
        "description": "The detections, as maskjet's Detections.as_dict; or with Accept: image/jpeg, drawn.",
        "headers": {
            "Server-Timing": {"description": "Milliseconds of decode, queue, predict and encode.", "schema": TEXT}
        },
        "content": {
            "application/json": {"schema": {"oneOf": [_RESULT, _RESULTS]}},
            "image/jpeg": BINARY,
            "image/png": BINARY,
        },
    },
}
"""Responses of POST /v1/predict."""

_SOURCE = object_of(
    "id name model state error fps lag_s frames dropped reconnects bad_frames size",
    id=TEXT,
    name=_about("Without passwords."),
    model=TEXT,
    state={
        **_about("A camera or stream that broke off waits until it is opened again."),
        "enum": ["starting", "running", "waiting", "ended", "failed"],
    },
    error=_about("Why it waits, or has failed.", {"type": ["string", "null"]}),
    fps=_about("Frames detected on per second, lately.", _NUMBER),
    frames=_about("Frames detected on.", INTEGER),
    lag_s=_about(
        "Seconds by which a live source's last frame was late; null without times.", {"type": ["number", "null"]}
    ),
    dropped=_about("Frames left out for newer ones.", INTEGER),
    reconnects=_about("How often it was opened again.", INTEGER),
    bad_frames=_about("Frames that could not be decoded, and gaps in which frames were missed.", INTEGER),
    size=_about("Height and width, in pixels.", {"type": ["array", "null"], "items": INTEGER}),
)
SOURCES: Responses = {200: answer("The sources.", object_of("sources", sources=list_of(_SOURCE)))}
"""Answers of GET /v1/sources."""
ADD_SOURCE: Responses = {201: answer("It is watched.", _SOURCE)}
"""Answers of POST /v1/sources."""
EVENTS: Responses = {
    200: answer(
        "Server-sent events, each with data of JSON: frame, the index from 0; time_s, the time in the source or null; "
        "result, as of /v1/predict.",
        TEXT,
        "text/event-stream",
    )
}
"""Answers of GET /v1/sources/{id}/events."""
PREVIEW: Responses = {
    200: answer("JPEGs, each a part with its Content-Length.", BINARY["schema"], "multipart/x-mixed-replace")
}
"""Answers of GET /v1/sources/{id}/preview.mjpeg."""

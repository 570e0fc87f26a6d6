"""What the OpenAPI document says that FastAPI can't see in the code: bodies, answers and errors."""

from __future__ import annotations

from typing import Any

_BINARY = {"schema": {"type": "string", "format": "binary"}}
IMAGES: dict[str, Any] = {
    "required": True,
    "description": "One image: JPEG, PNG, WebP, AVIF, BMP, TIFF or GIF (its first image); or a form with several.",
    "content": {
        **{f"image/{name}": _BINARY for name in ("jpeg", "png", "webp", "avif", "bmp", "tiff", "gif")},
        "application/octet-stream": _BINARY,
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "additionalProperties": {"type": "string", "format": "binary"},
                "minProperties": 1,
            }
        },
    },
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_DETECTION: dict[str, Any] = {
    "type": "object",
    "required": ["class_id", "class_name", "confidence", "xyxy"],
    "properties": {
        "class_id": {"type": "integer"},
        "class_name": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "xyxy": {**_NUMBERS, "minItems": 4, "maxItems": 4, "description": "Corners of the box, in pixels."},
        "rle": {
            "type": "object",
            "description": "COCO RLE of the mask; with masks=rle.",
            "required": ["size", "counts"],
            "properties": {
                "size": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
                "counts": {"type": "string"},
            },
        },
        "polygons": {
            "type": "array",
            "description": "Outlines of the mask, each a list of [x, y] in pixels; with masks=polygons.",
            "items": {"type": "array", "items": {**_NUMBERS, "minItems": 2, "maxItems": 2}},
        },
    },
}
_FOUND: dict[str, Any] = {
    "type": "object",
    "required": ["size", "has_masks", "detections"],
    "properties": {
        "size": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "Height and width of the image, in pixels.",
        },
        "has_masks": {"type": "boolean", "description": "Whether each detection has its mask as `rle`."},
        "detections": {"type": "array", "items": _DETECTION, "description": "Most confident first."},
        "name": {"type": "string", "description": "Name of the part; for a form."},
    },
}
_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "urn:maskjet:problem:NAME."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "One sentence: what was expected, and what came."},
        "reference": {"type": "string", "description": "Where to look in the service's log; with status 500."},
    },
}


def _problem(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/problem+json": {"schema": _PROBLEM}}}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: _problem("A parameter is invalid."),
    401: _problem("The token is missing or wrong."),
    403: _problem("The request comes from another site's page."),
    500: _problem("The service failed; the log has the cause."),
    503: _problem("The service ends or has failed, or has too many connections."),
    "4XX": _problem("The request is not as above."),  # without it FastAPI documents an answer of its own
}
"""Status code to the errors that every route may answer with."""
PREDICT: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "What was found, as maskjet's Detections.as_dict; or with Accept: image/jpeg, drawn.",
        "headers": {
            "Server-Timing": {
                "description": "Milliseconds of decode, queue, predict and encode.",
                "schema": {"type": "string"},
            }
        },
        "content": {
            "application/json": {
                "schema": {
                    "oneOf": [
                        _FOUND,
                        {
                            "type": "object",
                            "description": "For a form: one result per part, in order.",
                            "required": ["results"],
                            "properties": {"results": {"type": "array", "items": _FOUND}},
                        },
                    ]
                }
            },
            "image/jpeg": _BINARY,
            "image/png": _BINARY,
        },
    },
    **PROBLEMS,
    404: _problem("No model of this name is served."),
    406: _problem("Accept allows neither JSON nor JPEG nor PNG."),
    408: _problem("The body did not come in time."),
    413: _problem("The body, an image, or their number is above a limit."),
    415: _problem("The body is of a type that holds no image."),
    422: _problem("An image can't be decoded."),
    429: _problem("The queue or the memory is full; Retry-After says when to try again."),
    504: _problem("The image waited for its deadline; nothing was done."),
}
"""Status code to the answers of POST /v1/predict."""

_SOURCE: dict[str, Any] = {
    "type": "object",
    "required": [
        *("id", "name", "model", "state", "error", "fps", "lag_s", "frames", "dropped", "reconnects", "bad_frames"),
        "size",
    ],
    "properties": {
        "id": {"type": "string"},
        "name": {"type": "string", "description": "Without passwords."},
        "model": {"type": "string"},
        "state": {
            "type": "string",
            "enum": ["starting", "running", "waiting", "ended", "failed"],
            "description": "A camera or stream that broke off waits until it is opened again.",
        },
        "error": {"type": ["string", "null"], "description": "Why it waits, or has failed."},
        "fps": {"type": "number", "description": "Frames detected on per second, lately."},
        "frames": {"type": "integer", "description": "Frames detected on."},
        "lag_s": {
            "type": ["number", "null"],
            "description": "Seconds by which a live source's last frame was late; null without times.",
        },
        "dropped": {"type": "integer", "description": "Frames left out for newer ones."},
        "reconnects": {"type": "integer", "description": "How often it was opened again."},
        "bad_frames": {
            "type": "integer",
            "description": "Frames that could not be decoded, and gaps in which frames were missed.",
        },
        "size": {
            "type": ["array", "null"],
            "items": {"type": "integer"},
            "description": "Height and width, in pixels.",
        },
    },
}
NEW_SOURCE: dict[str, Any] = {
    "required": True,
    "description": "The source.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["url"],
                "additionalProperties": False,
                "properties": {
                    "url": {"type": "string", "description": "rtsp, rtsps, http or https.", "maxLength": 2048},
                    "name": {"type": "string", "description": "For people.", "minLength": 1, "maxLength": 100},
                    "model": {"type": "string", "description": "The first one that is served if left out."},
                    "threshold": {
                        "description": "A confidence must exceed it; or one by class name.",
                        "anyOf": [
                            {"type": "number", "minimum": 0, "maximum": 1},
                            {"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1}},
                        ],
                    },
                    "classes": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                    "max_detections": {"type": "integer", "minimum": 1},
                },
            }
        }
    },
}
_NO_SUCH = _problem("No such source is watched, or no such model is served.")
_MAY_NOT = _problem("The request comes from another site's page, or sources can't be changed as there is no token.")
SOURCES: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    200: {
        "description": "The sources.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["sources"],
                    "properties": {"sources": {"type": "array", "items": _SOURCE}},
                }
            }
        },
    },
}
"""Status code to the answers of GET /v1/sources."""
ADD_SOURCE: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    201: {"description": "It is watched.", "content": {"application/json": {"schema": _SOURCE}}},
    403: _MAY_NOT,
    404: _NO_SUCH,
    408: _problem("The body did not come in time."),
    413: _problem("The body is too large."),
    429: _problem("There are as many sources as there may be."),
}
"""Status code to the answers of POST /v1/sources."""
ONE_SOURCE: dict[int | str, dict[str, Any]] = {**PROBLEMS, 403: _MAY_NOT, 404: _NO_SUCH}
"""Status code to the errors of DELETE /v1/sources/{id}."""
EVENTS: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    200: {
        "description": "Server-sent events, each with data of JSON: frame, the index from 0; time_s, the time in the "
        "source or null; result, as of /v1/predict.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    404: _NO_SUCH,
}
"""Status code to the answers of GET /v1/sources/{id}/events."""
PREVIEW: dict[int | str, dict[str, Any]] = {
    **PROBLEMS,
    200: {
        "description": "JPEGs, each a part with its Content-Length.",
        "content": {"multipart/x-mixed-replace": _BINARY},
    },
    404: _NO_SUCH,
}
"""Status code to the answers of GET /v1/sources/{id}/preview.mjpeg."""

"""What the OpenAPI document says about the Open Inference Protocol: bodies, answers and errors."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_PARAMETERS = {"type": "object", "description": "Values by name."}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _closed(**properties: Any) -> dict[str, Any]:
    return {**_object(**properties), "additionalProperties": False}


def _list(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _error(text: str) -> dict[str, Any]:
    return _answer(text, _object("error", error={**_TEXT, "description": "What was expected, and what came."}))


_SHAPE = _list({"type": "integer"})
_SPEC = _object("name datatype shape", name=_TEXT, datatype=_TEXT, shape=_SHAPE)
_INPUT = _object(
    "name datatype shape",
    name={"type": "string", "enum": ["image"]},
    datatype={"type": "string", "enum": ["UINT8", "BYTES"]},
    shape=_list({"type": "integer", "minimum": 1}, description="[H, W, 3] or [N, H, W, 3] of UINT8; [N] of BYTES."),
    data={"type": "array", "description": "Numbers 0..255, flat or nested; or base64 texts of encoded images."},
    parameters=_object(
        binary_data_size={
            "type": "integer",
            "description": "Bytes after the JSON that are this tensor; without `data`.",
        }
    ),
)
_REQUEST = _object(
    "inputs",
    id={"type": "string", "maxLength": 1024, "description": "Sent back."},
    parameters=_closed(
        threshold={"type": "number", "minimum": 0, "maximum": 1, "description": "A confidence must exceed it."},
        classes={"anyOf": [_TEXT, _list(_TEXT)], "description": "Names to report, separated by commas; or a list."},
        max_detections={"type": "integer", "minimum": 1, "description": "Most detections per image."},
        timeout={"type": "integer", "minimum": 1, "description": "Microseconds that an image may wait."},
        binary_data_output={"type": "boolean", "description": "Whether outputs follow the JSON as bytes."},
    ),
    inputs=_list(_INPUT, minItems=1, maxItems=1),
    outputs=_list(
        _object("name", name=_TEXT, parameters=_object(binary_data={"type": "boolean"})), description="All if left out."
    ),
)
_RESPONSE = _object(
    "model_name model_version outputs",
    model_name=_TEXT,
    model_version=_TEXT,
    id=_TEXT,
    outputs=_list(
        _object(
            "name datatype shape",
            name=_TEXT,
            datatype=_TEXT,
            shape=_SHAPE,
            data={"type": "array"},
            parameters=_object(binary_data_size={"type": "integer"}),
        )
    ),
)
_BINARY = {"schema": {"type": "string", "format": "binary"}}

REQUEST: dict[str, Any] = {
    "required": True,
    "description": "JSON; or JSON of which Inference-Header-Content-Length bytes are followed by the tensor's.",
    "content": {"application/json": {"schema": _REQUEST}, "application/octet-stream": _BINARY},
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: _error("The request is malformed, or a parameter is invalid."),
    401: _error("The token is missing or wrong."),
    403: _error("The request comes from another site's page."),
    500: _error("The service failed; the log has the cause."),
    503: _error("The service ends or has failed, or has too many connections."),
}
_MISSING: dict[int | str, dict[str, Any]] = {
    404: _error("There is no such model or version."),
    "4XX": _error("The request is not as above."),  # without it FastAPI documents an answer of its own
}
_FLAGS = _object(name=_TEXT, live={"type": "boolean"}, ready={"type": "boolean"})
SERVER: dict[int | str, dict[str, Any]] = {
    200: _answer("Metadata.", _object("name version extensions", name=_TEXT, version=_TEXT, extensions=_list(_TEXT))),
    **_ERRORS,
}
"""Status code to the answers of GET /v2."""
HEALTH: dict[int | str, dict[str, Any]] = {
    **_ERRORS,
    200: _answer("It is.", _FLAGS),
    400: _answer("It is not.", _FLAGS),
}
"""Status code to the answers of GET /v2/health/..."""
MODEL_HEALTH: dict[int | str, dict[str, Any]] = {**HEALTH, **_MISSING}
"""Status code to the answers of GET /v2/models/.../ready."""
MODEL: dict[int | str, dict[str, Any]] = {
    200: _answer(
        "Metadata.",
        _object(
            "name versions platform inputs outputs",
            name=_TEXT,
            versions=_list(_TEXT),
            platform=_TEXT,
            inputs=_list(_SPEC),
            outputs=_list(_SPEC),
            parameters=_PARAMETERS,
        ),
    ),
    **_ERRORS,
    **_MISSING,
}
"""Status code to the answers of GET /v2/models/..."""
INFER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The outputs; as JSON, or with bytes after it.",
        "content": {"application/json": {"schema": _RESPONSE}, "application/octet-stream": _BINARY},
        "headers": {
            "Inference-Header-Content-Length": {
                "description": "Bytes of the JSON, if others follow.",
                "schema": _TEXT,
            }
        },
    },
    **_ERRORS,
    **_MISSING,
    408: _error("The body did not come in time."),
    413: _error("The body, an image, their number or the JSON is above a limit."),
    415: _error("The body is compressed."),
    422: _error("An image can't be decoded."),
    429: _error("The queue or the memory is full; Retry-After says when to try again."),
    504: _error("The image waited for its deadline; nothing was done."),
}
"""Status code to the answers of POST /v2/models/.../infer."""

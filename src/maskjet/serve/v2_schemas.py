"""OpenAPI schemas of the Open Inference Protocol: bodies, answers and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskjet.serve.v1_schemas import (
    BINARY,
    ERRORS,
    IMAGE_ERRORS,
    INTEGER,
    TEXT,
    Responses,
    answer,
    list_of,
    object_of,
)

_FLAG = {"type": "boolean"}


def _errors(texts: Mapping[int | str, str]) -> Responses:
    schema = object_of("error", error={**TEXT, "description": "What was expected, and what came."})
    return {status: answer(text, schema) for status, text in texts.items()}


_SPEC = object_of("name datatype shape", name=TEXT, datatype=TEXT, shape=list_of(INTEGER))
_INPUT = object_of(
    "name datatype shape",
    name={**TEXT, "enum": ["image"]},
    datatype={**TEXT, "enum": ["UINT8", "BYTES"]},
    shape=list_of({**INTEGER, "minimum": 1}, description="[H, W, 3] or [N, H, W, 3] of UINT8; [N] of BYTES."),
    data={"type": "array", "description": "Numbers 0..255, flat or nested; or base64 texts of encoded images."},
    parameters=object_of(
        binary_data_size={**INTEGER, "description": "Bytes after the JSON that are this tensor; without `data`."}
    ),
)
_PARAMETERS = object_of(
    threshold={"type": "number", "minimum": 0, "maximum": 1, "description": "A confidence must exceed it."},
    classes={"anyOf": [TEXT, list_of(TEXT)], "description": "Names to report, separated by commas; or a list."},
    max_detections={**INTEGER, "minimum": 1, "description": "Most detections per image."},
    timeout={**INTEGER, "minimum": 1, "description": "Microseconds that an image may wait."},
    binary_data_output={**_FLAG, "description": "Whether outputs follow the JSON as bytes."},
)
_REQUEST = object_of(
    "inputs",
    id={**TEXT, "maxLength": 1024, "description": "Sent back."},
    parameters={**_PARAMETERS, "additionalProperties": False},
    inputs=list_of(_INPUT, minItems=1, maxItems=1),
    outputs=list_of(
        object_of("name", name=TEXT, parameters=object_of(binary_data=_FLAG)), description="All if left out."
    ),
)
_TENSOR = object_of(
    "name datatype shape",
    **_SPEC["properties"],
    data={"type": "array"},
    parameters=object_of(binary_data_size=INTEGER),
)
_RESPONSE = object_of(
    "model_name model_version outputs", model_name=TEXT, model_version=TEXT, id=TEXT, outputs=list_of(_TENSOR)
)
REQUEST: dict[str, Any] = {
    "required": True,
    "description": "JSON; or JSON of which Inference-Header-Content-Length bytes are followed by the tensor's.",
    "content": {"application/json": {"schema": _REQUEST}, "application/octet-stream": BINARY},
}
_COMMON = _errors(ERRORS)
_MISSING = _errors({404: "There is no such model or version."})
_STATE = object_of(name=TEXT, live=_FLAG, ready=_FLAG)
SERVER: Responses = {
    200: answer("Metadata.", object_of("name version extensions", name=TEXT, version=TEXT, extensions=list_of(TEXT))),
    **_COMMON,
}
"""Responses of GET /v2."""
HEALTH: Responses = {**_COMMON, 200: answer("It is.", _STATE), 400: answer("It is not.", _STATE)}
"""Responses of GET /v2/health/..."""
MODEL_HEALTH: Responses = {**HEALTH, **_MISSING}
"""Responses of GET /v2/models/.../ready."""
MODEL: Responses = {
    200: answer(
        "Metadata.",
        object_of(
            "name versions platform inputs outputs",
            name=TEXT,
            versions=list_of(TEXT),
            platform=TEXT,
            inputs=list_of(_SPEC),
            outputs=list_of(_SPEC),
            parameters={"type": "object", "description": "Values by name."},
        ),
    ),
    **_COMMON,
    **_MISSING,
}
"""Responses of GET /v2/models/..."""
INFER: Responses = {
    200: {
        "description": "The outputs; as JSON, or with bytes after it.",
        "content": {"application/json": {"schema": _RESPONSE}, "application/octet-stream": BINARY},
        "headers": {
            "Inference-Header-Content-Length": {"description": "Bytes of the JSON, if others follow.", "schema": TEXT}
        },
    },
    **_COMMON,
    **_MISSING,
    **_errors({**IMAGE_ERRORS, 415: "The body is compressed."}),
}
"""Responses of POST /v2/models/.../infer."""

"""OpenAPI responses of the Open Inference Protocol, whose own documents have the forms of bodies and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from maskjet.serve.v1_schemas import BINARY, ERRORS, IMAGE_ERRORS, TEXT, Responses, answer, object_of

_JSON = {
    "type": "object",
    "externalDocs": {"url": "https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol"},
}
_EITHER = {"application/json": {"schema": _JSON}, "application/octet-stream": BINARY}


def _errors(texts: Mapping[int | str, str]) -> Responses:
    schema = object_of("error", error={**TEXT, "description": "What was expected, and what came."})
    return {status: answer(text, schema) for status, text in texts.items()}


REQUEST: dict[str, Any] = {
    "required": True,
    "description": "JSON; or JSON of which Inference-Header-Content-Length bytes are followed by the tensor's.",
    "content": _EITHER,
}
SERVER: Responses = {200: answer("Metadata.", _JSON), **_errors(ERRORS)}
"""Responses of GET /v2."""
HEALTH: Responses = {**SERVER, 200: answer("It is.", _JSON), 400: answer("It is not.", _JSON)}
"""Responses of GET /v2/health/..."""
MODEL: Responses = {**SERVER, **_errors({404: "There is no such model or version."})}
"""Responses of GET /v2/models/..."""
MODEL_HEALTH: Responses = {**MODEL, **HEALTH}
"""Responses of GET /v2/models/.../ready."""
INFER: Responses = {
    **MODEL,
    200: {
        "description": "The outputs; as JSON, or with bytes after it.",
        "content": _EITHER,
        "headers": {
            "Inference-Header-Content-Length": {"description": "Bytes of the JSON, if others follow.", "schema": TEXT}
        },
    },
    **_errors({**IMAGE_ERRORS, 415: "The body is compressed."}),
}
"""Responses of POST /v2/models/.../infer."""
REGIONS: Responses = {
    **SERVER,
    **_errors({404: "There is no such region.", 409: "The name is taken, or there are too many regions."}),
}
"""Responses of /v2/...sharedmemory/..."""

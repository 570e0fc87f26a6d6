"""Bounded validation of untrusted requests of the Open Inference Protocol."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from maskjet.checks import shown
from maskjet.errors import InputError
from maskjet.host.printing import sanitise
from maskjet.serve import problems

MOST_VALUES = 2**19
"""Most values and escapes in a request's JSON; a key, list or object counts as four."""


class Fields(BaseModel):
    """Base of validated objects; unknown names are ignored, as they are other servers' extensions."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


_Read = TypeVar("_Read", bound=Fields)


def read(kind: type[_Read], text: bytes) -> _Read:
    """Validate the fields of a JSON object.

    Raises:
        ProblemError: 413, there are more than MOST_VALUES values; the parser holds the interpreter's lock.
        InputError: It is no JSON, or a field is missing or invalid.
    """
    try:
        weights = {b",": 1, b"\\": 1, b":": 4, b"[": 4, b"{": 4}
        values = sum(weight * text.count(sign) for sign, weight in weights.items())
        if values > MOST_VALUES:
            raise problems.too_large(
                f"The JSON must have at most {MOST_VALUES:,} values, got about {values:,}; send the image in binary, "
                "with binary_data_size."
            )
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise InputError(_explain(error.errors(include_url=False, include_context=False)[0])) from None


def _explain(error: Any) -> str:
    name = ".".join(sanitise(str(each), 60) for each in error["loc"]) or "The request"
    if error["type"] == "json_invalid":
        cure = "or binary data after it with the header Inference-Header-Content-Length"
        return f"The request must be JSON, {cure}, got an error: {sanitise(error['msg'])}."
    if error["type"] == "missing":
        return f"{name} must be given."
    own = {"extra_forbidden": "be left out: it is unknown", "none_required": "be left out"}
    expected = own.get(error["type"]) or re.sub(r"^\w+ should ", "", error["msg"])
    return f"{name} must {expected}, got {shown(error['input'])}."

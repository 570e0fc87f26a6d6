"""Bounded parsing of the JSON of the Open Inference Protocol's requests, which are untrusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from maskjet.errors import InputError
from maskjet.printing import sanitise
from maskjet.serve import problems

MOST_VALUES = 2**19
"""Most values and escapes in a request's JSON; a key, list or object counts as four. Parsing that many takes 60 ms
(Xeon core, Python 3.11), 105 ms with a garbage collection, in which no other thread runs."""
_MOST_DIGITS = 20  # of a whole number, as the time to parse one is quadratic


def parse(body: bytes, size: int) -> Any:
    """The first `size` bytes of a body as JSON.

    Raises:
        ProblemError: 413, there are more than MOST_VALUES values.
        InputError: It is no JSON, has a name twice in an object, or a number that is not finite.
    """
    weights = {b",": 1, b"\\": 1, b":": 4, b"[": 4, b"{": 4}
    values = sum(weight * body.count(sign, 0, size) for sign, weight in weights.items())
    if values > MOST_VALUES:
        raise problems.too_large(
            f"The JSON must have at most {MOST_VALUES:,} values, got about {values:,}; send the image in binary, with "
            "binary_data_size."
        )
    try:
        text = str(memoryview(body)[:size], "utf-8")
        return json.loads(
            text,
            object_pairs_hook=_to_object,
            parse_int=_to_int,
            parse_float=_to_float,
            parse_constant=_refuse_constant,
        )
    except InputError:
        raise
    except RecursionError as error:
        raise InputError("The request must be JSON of at most some hundred levels.") from error
    except ValueError as error:  # also UnicodeDecodeError
        cure = "" if size < len(body) else ", or binary data after it with the header Inference-Header-Content-Length"
        raise InputError(f"The request must be JSON{cure}, got an error: {sanitise(str(error))}.") from error


def _to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(f"The request must have each name once in an object, got {show(twice)} twice.")
    return fields


def _to_int(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise InputError(f"The request must have whole numbers of at most {_MOST_DIGITS} digits, got {len(text):,}.")
    return int(text)


def _to_float(text: str) -> float:
    """`float`, but in Python, so that other threads may run between long numbers."""
    return float(text)


def _refuse_constant(text: str) -> None:
    raise InputError(f"The request must be JSON, which has no {text}.")


def show(value: object) -> str:
    """An untrusted value for a message: short, one line, valid UTF-8."""
    if isinstance(value, str):
        return repr(sanitise(value, 60))
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a huge number"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def expect(value: Any, kind: type | tuple[type, ...], name: str, expected: str) -> Any:
    """Check a JSON value's type; true and false are no numbers."""
    is_number = kind is not bool and isinstance(value, bool)
    if is_number or not isinstance(value, kind):
        raise InputError(f"{name} must be {expected}, got {show(value)}.")
    return value


def tensor_parameters(tensor: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Parameters of an input or output; unknown ones are ignored, as they are other servers' extensions."""
    parameters: Mapping[str, Any] = expect(
        {} if tensor.get("parameters") is None else tensor["parameters"], dict, f"{name}: parameters", "an object"
    )
    for parameter in parameters:
        if parameter.startswith("shared_memory") or parameter == "classification":
            raise InputError(f"{name}: parameters must not have {show(parameter)}, an extension that is not supported.")
    return parameters

"""Validate numbers, choices, sizes and colours from users, and format values for messages."""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any, Literal

from maskjet.errors import InputError, suggest
from maskjet.host.printing import sanitise

Detect = int | Literal["realtime"]
"""Which frames are detected: every so manieth, 1 to 64; "realtime": those of a live source that can be."""
MOST_MOVED = 64
"""Largest distance of detected frames; to those between them detections are moved."""


def check_fraction(name: str, value: Any) -> None:
    """Raise InputError, as of an argument `name`, unless a value is 0..1."""
    if not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise InputError(f"{name} must be 0..1, got {value}.")


def as_int(value: Any) -> Any:
    """Convert another library's integer to Python's; other values, which a check then refuses, stay as they are."""
    return value if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def check_whole(name: str, value: object, bounds: tuple[int, int], advice: str = "") -> None:
    """Raise InputError, as of an argument `name`, unless a value is a whole number within (least, most)."""
    least, most = bounds
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"{name} must be a whole number from {least} to {most}, got {shown(value)}{advice}.")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise InputError unless a value is a whole number of at least this."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_detect(detect: object) -> None:
    """Raise InputError unless this says which frames are detected: every so manieth, 1 to 64, or "realtime"."""
    if detect != "realtime" and (type(detect) is not int or not 1 <= detect <= MOST_MOVED):
        raise InputError(f"detect must be a whole number from 1 to {MOST_MOVED}, or 'realtime', got {shown(detect)}.")


def parse_detect(text: str) -> Detect:
    """Parse and check a text that says which frames are detected."""
    detect: Any = int(text) if re.fullmatch("[0-9]{1,4}", text) else text
    check_detect(detect)
    parsed: Detect = detect
    return parsed


def parse_color(name: str, text: object) -> tuple[int, int, int]:
    """Parse #rrggbb to (red, green, blue) bytes; raises InputError for other texts, naming the argument."""
    if not isinstance(text, str) or not re.fullmatch("#[0-9a-fA-F]{6}", text):
        raise InputError(f"{name} must be #rrggbb, as in #727272, got {shown(text)}.")
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


def shown(value: object) -> str:
    """Format an untrusted value for a message: short, printable, and fast even for huge values."""
    values = value if isinstance(value, list | tuple) else [value]
    if len(values) > 8 or not all(isinstance(each, int | float | str | None) for each in values):
        return f"a {type(value).__name__}"
    if any(isinstance(each, int) and abs(each) >= 2**64 for each in values):  # too many digits to be converted to text
        return "a number of more than 64 bits"
    return sanitise(repr(value))


def check_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    """Raise InputError unless a field's value is one of the known ones."""
    if given not in known:
        raise InputError(f"{name} must be one of {known}, got {given!r}{suggest(given, known, lists=False)}")


def parse_hw(text: str, name: str = "input_size", expected: str = "WIDTHxHEIGHT, as in 640x384") -> tuple[int, int]:
    """Parse WIDTHxHEIGHT to (height, width); raises InputError with the argument's name and expectation."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if found is None:
        raise InputError(f"{name} must be {expected}, got {text!r}.")
    return int(found[2]), int(found[1])

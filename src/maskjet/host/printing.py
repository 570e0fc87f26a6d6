"""Untrusted text: escaped for terminals, or sanitised to be stored, drawn and written."""

from __future__ import annotations

import re

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Characters that end a line or reorder the text after them on a terminal, lone surrogates, and what YAML has not.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """Escape characters that a terminal acts on or can't show; the text becomes one line.

    Names of files, classes and models come from outside, and may contain escape sequences.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def sanitise(text: str, most: int = 100) -> str:
    """Make text from outside safe to draw, print and write: one line of valid UTF-8, at most `most` characters.

    Control characters, lone surrogates, bidirectional overrides and noncharacters become U+FFFD.
    """
    replaced = _UNSAFE.sub(_REPLACEMENT, text[:most])
    return replaced if len(text) <= most else replaced[: most - 1] + "…"


def as_utf8(text: str) -> str:
    r"""Make text valid UTF-8: undecodable bytes of a path, lone surrogates in Python, are escaped as `\\udce9`."""
    return text.encode(errors="backslashreplace").decode()

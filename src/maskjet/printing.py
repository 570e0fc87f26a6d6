"""Text from outside: escaped for terminals, or sanitised to be kept, drawn and written."""

from __future__ import annotations

import re

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Would end a line, or change the order of what follows them on a terminal.
_SEPARATORS_AND_OVERRIDES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text in one line without anything that a terminal acts on, or can't show: such characters are escaped.

    Names of files, classes and models come from outside, and may hold colours, window titles and worse.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def sanitise(text: str, most: int = 100) -> str:
    """Text from outside as it can be drawn, printed and written: one line, valid UTF-8, of so many characters at most.

    Control characters, lone surrogates and bidirectional overrides become U+FFFD.
    """
    replaced = _SEPARATORS_AND_OVERRIDES.sub(_REPLACEMENT, text[:most])
    return replaced if len(text) <= most else replaced[: most - 1] + "…"

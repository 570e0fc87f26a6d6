"""Text for terminals."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text in one line without anything that a terminal acts on, or can't show: such characters are escaped.

    Names of files, classes and models come from outside, and may hold colours, window titles and worse.
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)

"""Parse label templates, such as "{name} {confidence:.0%} #{track}"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from string import Formatter

from maskjet.errors import InputError

_SAMPLES: Mapping[str, str | float] = {"name": "car", "confidence": 0.9, "track": 7, "class_id": 3}
# A word: characters, doubled braces and fields; formats are without nested fields and large widths.
_FORMAT = r"[<>^+]?0?[0-9]{0,2}(?:\.[0-9])?[defg%]?"
_WORD = re.compile(rf"(?:[^{{}}]|{{{{|}}}}|{{name}}|{{(?:confidence|track|class_id)(?::{_FORMAT})?}})*")
_LONGEST = 100  # most characters of a template


def parse_template(template: str) -> Sequence[tuple[str, frozenset[str]]]:
    """The words of a template between its blanks, each with the names of its fields; or raises InputError."""
    if not isinstance(template, str) or not template.isprintable() or len(template) > _LONGEST:
        raise InputError(f"label must be a text of at most {_LONGEST} printable characters, got {template!r:.60}.")
    return [(word, _find_fields(word)) for word in template.split(" ")]


@lru_cache(maxsize=256)
def _find_fields(word: str) -> frozenset[str]:
    if _WORD.fullmatch(word):
        with suppress(ValueError):  # a format for another type, such as {confidence:d}
            word.format_map(_SAMPLES)
            return frozenset(field for _, field, *_ in Formatter().parse(word) if field)
    fields = ", ".join(map("{{{}}}".format, _SAMPLES))
    raise InputError(
        f"label must have the fields {fields}, numbers with a format as in {{confidence:.0%}}, got {word!r}; "
        "braces are written {{ and }}."
    )

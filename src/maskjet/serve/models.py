"""The models that a service is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from maskjet.errors import InputError


def parse_models(given: Sequence[str]) -> dict[str, str]:
    """The models of `model=` or `--model` by name.

    Raises:
        InputError: Two have one name.
    """
    models: dict[str, str] = {}
    for text in given:
        name, separator, what = text.partition("=")
        if not separator:
            name, what = Path(text).stem if os.sep in text or "." in text else text, text
        if not name or not what:
            raise InputError(f"model must be MODEL or NAME=MODEL, got {text!r}.")
        if name in models:
            raise InputError(f"model must have a name of its own for each, got {name!r} twice; give NAME=MODEL.")
        models[name] = what
    return models

"""Names of the models to serve."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from maskjet.errors import InputError


def parse_models(given: Sequence[str], weights: object = None) -> dict[str, str]:
    """Parse `--model` or `model=` values to models by name; raises InputError for invalid names or weights."""
    models: dict[str, str] = {}
    for text in given:
        name, separator, model = text.partition("=")
        if not separator:
            name, model = Path(text).stem if os.sep in text or "." in text else text, text
        if not name or not model:
            raise InputError(f"model must be MODEL or NAME=MODEL, got {text!r}.")
        if name in models:
            raise InputError(f"model must have a name of its own for each, got {name!r} twice; give NAME=MODEL.")
        models[name] = model
    if weights is not None and len(models) > 1:
        raise InputError("weights must go with one model, got several; give each as NAME=PATH.")
    return models

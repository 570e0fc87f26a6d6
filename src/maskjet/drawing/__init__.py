"""Drawing detections into pictures: annotated, redacted or cut out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from maskjet.drawing.style import Cutout, DrawStyle, Redaction, Style

if TYPE_CHECKING:
    from maskjet.drawing.painting import Painter, draw
    from maskjet.drawing.shades import class_colour

__all__ = ["Cutout", "DrawStyle", "Painter", "Redaction", "Style", "class_colour", "draw"]


def __getattr__(name: str) -> Any:
    """Import what draws on first use, as it takes longer than the styles, which the command line's help needs."""
    if name in __all__:
        home = "shades" if name == "class_colour" else "painting"
        return getattr(importlib.import_module(f"maskjet.drawing.{home}"), name)
    raise AttributeError(f"module 'maskjet.drawing' has no attribute {name!r}")

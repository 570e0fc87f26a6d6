"""Drawing detections into pictures: annotated, redacted or cut out."""

from maskjet.drawing.painting import Painter, draw
from maskjet.drawing.shades import class_colour
from maskjet.drawing.style import Cutout, DrawStyle, Redaction, Style

__all__ = ["Cutout", "DrawStyle", "Painter", "Redaction", "Style", "class_colour", "draw"]

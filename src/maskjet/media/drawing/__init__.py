"""Drawing detections into pictures: annotated, redacted or cut out."""

from maskjet.media.drawing.painting import Painter, draw
from maskjet.media.drawing.shades import class_colour
from maskjet.media.drawing.style import Cutout, DrawStyle, Redaction, Style

__all__ = ["Cutout", "DrawStyle", "Painter", "Redaction", "Style", "class_colour", "draw"]

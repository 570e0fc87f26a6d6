"""Options of labels, data sets, crops and other data."""

from __future__ import annotations

import math
import typing
from dataclasses import dataclass
from typing import Annotated, Literal

from maskjet.checks import check_choice
from maskjet.errors import InputError


@dataclass(frozen=True)
class LabelOptions:
    """Options of labels, data sets, crops and other data.

    Field names are flags of the command line, which shows the same texts.
    """

    polygon_tolerance: Annotated[
        float, "By how many pixels polygons may be off the mask, so that they have few points; 0 follows each pixel."
    ] = 1.0
    yolo_parts: Annotated[
        Literal["largest", "all"],
        "Parts of a mask that become lines of YOLO labels: the largest alone, or each as an instance of its own.",
    ] = "largest"
    yolo_confidence: Annotated[
        bool, "End each line of YOLO labels in its confidence, which labels to train on don't have."
    ] = False
    yolo_images: Annotated[
        Literal["none", "copy", "link"],
        "Images beside YOLO labels: none; copies of them; or symbolic links. Frames of video are JPEGs.",
    ] = "none"
    rotated_boxes: Annotated[
        bool, "Boxes of least area, at any angle: added to JSON lines and CSV, and in place of outlines to YOLO labels."
    ] = False
    coco_masks: Annotated[Literal["rle", "polygons"], "Masks of a COCO data set: exact RLE, or polygons."] = "rle"
    crop: Annotated[Literal["tight", "square"], "Crops of boxes; or of squares about them."] = "tight"
    crop_background: Annotated[
        Literal["keep", "transparent"], "Pixels of crops that are not the mask's: kept, or transparent, in .png."
    ] = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.polygon_tolerance < math.inf:
            raise InputError(f"polygon_tolerance must be pixels, at least 0, got {self.polygon_tolerance}.")
        for name, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is Literal:
                check_choice(name, getattr(self, name), typing.get_args(hint))

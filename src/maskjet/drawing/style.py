"""Styles of pictures of detections, and sizes of their parts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import compress
from typing import Annotated, Any, Literal, cast, get_args

from maskjet.checks import as_int, check_choice, check_whole
from maskjet.drawing.templates import parse_template
from maskjet.errors import InputError, suggest
from maskjet.masks import MaskPixels

Effect = Literal["mosaic", "blur", "transparent"]
"""Ways to replace pixels other than by a colour."""
COLOURS: Mapping[str, tuple[int, int, int]] = {"black": (0, 0, 0), "white": (255, 255, 255), "grey": (128, 128, 128)}
"""RGB of the named colours."""
MOST_HELD = 254
"""Largest `Redaction.hold`, in frames; counts are bytes."""

ColorBy = Literal["class", "instance"]
"""Property of an instance that sets its hue."""


@dataclass(frozen=True)
class DrawStyle:
    """Parts of each instance that `draw` draws, and their colours.

    Field names are flags of the command line, which shows the same texts.
    """

    boxes: Annotated[bool, "Whether boxes are drawn."] = True
    labels: Annotated[bool, "Whether class names are written."] = True
    scores: Annotated[bool, "Whether confidences are written."] = True
    masks: Annotated[bool, "Whether the insides of masks are tinted."] = True
    outlines: Annotated[bool, "Whether the outlines of masks are drawn."] = True
    ids: Annotated[bool, "Whether ids of tracks are written, as in car #7."] = True
    trails: Annotated[bool, "Whether video shows the trails of tracks over their last 30 frames."] = True
    rotated: Annotated[bool, "Whether boxes are those of least area around the masks, at any angle."] = False
    label: Annotated[
        str | None,
        "Text of labels in place of names, ids and scores, as '{name} {confidence:.0%} #{track}'; also {class_id}. A "
        "word without a value, as #{track} without a track, is left out.",
    ] = None
    line_width: Annotated[
        float | None, "Width of boxes and outlines in pixels; if not given, one that suits the image's size."
    ] = None
    color_by: Annotated[
        ColorBy,
        "class: a hue per class, always the same, with a shade per instance; instance: a hue per instance, with "
        "tracking that of its track, and grey for those without one.",
    ] = "class"
    palette: Annotated[
        Mapping[str, str] | None,
        "Colours of classes, as RRGGBB, black, white or grey, as in car=ff8800,bus=white; others have their hues.",
    ] = None
    mask_pixels: Annotated[
        MaskPixels,
        "Pixels of masks that are drawn, and by the command line written to other outputs: all, or those inside the "
        "box, as others look like blobs on other instances. Redact and cutout always take all. Not given: box where "
        "masks are drawn, raw in other outputs.",
    ] = "box"

    def __post_init__(self) -> None:
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        width = self.line_width
        is_number = isinstance(width, int | float) and not isinstance(width, bool)
        if width is not None and not (is_number and 0 < width < math.inf):
            raise InputError(f"line_width must be a number of pixels above 0, or None, got {width!r}.")
        check_choice("color_by", self.color_by, get_args(ColorBy))
        if self.label is not None:
            parse_template(self.label)
        palette = {} if self.palette is None else self.palette
        if not isinstance(palette, Mapping) or not all(map(parse_colour, palette.values())):
            expected = f"RRGGBB or {', '.join(COLOURS)}, by class name"
            raise InputError(f"palette must be colours as {expected}, or None, got {palette!r}.")
        if palette and self.color_by != "class":
            raise InputError(f"palette must go with color_by='class', got {self.color_by!r}.")
        check_choice("mask_pixels", self.mask_pixels, get_args(MaskPixels))

    @property
    def template(self) -> str:
        """`label`, or the template made of `labels`, `ids` and `scores`; empty for no labels."""
        words = compress(("{name}", "#{track}", "{confidence:.2f}"), (self.labels, self.ids, self.scores))
        return " ".join(words) if self.label is None else self.label


SWITCHES = tuple(each.name for each in fields(DrawStyle) if isinstance(each.default, bool))
"""Parts that are drawn or not."""


@dataclass(frozen=True)
class Redaction:
    """Replaces all pixels inside the masks, so that nothing of them remains, not even in the replacement.

    That is all pixels of a mask, also those outside its box. Also replaced are the pixels around a mask, and those of
    the masks of the frames before, as a detector may miss an instance for a few frames. Without masks boxes are
    redacted, and so is the box of an empty mask. What is not detected is not redacted, such as an instance whose
    confidence is below the threshold.

    Examples:
        >>> import maskjet
        >>> from maskjet.drawing import Redaction
        >>> image = maskjet.traffic.sample(seed=3).image
        >>> found = maskjet.load("demo").predict(image)
        >>> redacted = maskjet.draw(image, found, Redaction(["person"], margin=4))
        >>> redacted[found[found.class_name == "person"].masks().any(axis=0)].any()
        np.False_
    """

    classes: Sequence[str] | None = None
    """Names of the classes to redact; None for all."""
    replace_with: Annotated[
        str,
        "What redact and cutout replace pixels with: black, white, grey, RRGGBB; mosaic or blur, made of pixels "
        "outside the masks; or transparent, in .png. Not given: black.",
    ] = "black"
    margin: Annotated[
        int | None, "By how many pixels redacted regions grow. Not given: a hundredth of an image's longer side."
    ] = None
    hold: Annotated[
        int | None, "For how many frames, 0 to 254, a redacted pixel stays so. Not given: 5 in video, 0 in images."
    ] = None
    on_top: DrawStyle | None = None
    """Annotation drawn on top; None for none."""

    def __post_init__(self) -> None:
        _check_replacing(self)
        for name, most in (("margin", 2**31), ("hold", MOST_HELD)):
            value = as_int(getattr(self, name))
            if value is not None:
                check_whole(name, value, (0, most))
            object.__setattr__(self, name, value)  # one of NumPy's could overflow


@dataclass(frozen=True)
class Cutout:
    """Replaces the pixels outside the masks or, without masks, outside the boxes; keeps all mask pixels.

    Examples:
        >>> import maskjet
        >>> from maskjet.drawing import Cutout
        >>> image = maskjet.traffic.sample(seed=3).image
        >>> found = maskjet.load("demo").predict(image)
        >>> cut = maskjet.draw(image, found, Cutout(["bus"], replace_with="transparent"))
        >>> cut.shape  # RGBA
        (720, 1280, 4)
    """

    classes: Sequence[str] | None = None
    """Names of the classes to keep; None for all."""
    replace_with: str = "black"
    """The background, as in `Redaction`; "mosaic" and "blur" are made of the background alone."""
    on_top: DrawStyle | None = None
    """Annotation drawn on top; None for none."""

    def __post_init__(self) -> None:
        _check_replacing(self)


Style = DrawStyle | Redaction | Cutout
"""Ways to draw a picture: annotated, redacted or cut out."""


def parse_replacement(text: str) -> tuple[int, int, int] | Effect:
    """The RGB colour or the effect that `replace_with` names; raises InputError if it is neither."""
    if isinstance(text, str) and text in get_args(Effect):
        return cast(Effect, text)
    if (colour := parse_colour(text)) is not None:
        return colour
    names = [*COLOURS, *get_args(Effect)]
    end = suggest(text, names, lists=False)
    raise InputError(f"replace_with must be {', '.join(names)} or a colour as RRGGBB, got {text!r}{end}")


def parse_colour(text: object) -> tuple[int, int, int] | None:
    """The RGB of a colour's name or RRGGBB; None if it is neither."""
    if isinstance(text, str) and re.fullmatch("#?[0-9a-fA-F]{6}", text):
        red, green, blue = bytes.fromhex(text.removeprefix("#"))
        return red, green, blue
    return COLOURS.get(text) if isinstance(text, str) else None


def is_transparent(style: Style) -> bool:
    """Whether pictures in a style have an alpha channel."""
    return not isinstance(style, DrawStyle) and style.replace_with == "transparent"


def refuse_transparency(style: Style, out: str) -> None:
    """Raise InputError if pictures in the style have an alpha channel, for an output that can't hold one."""
    if is_transparent(style):
        raise InputError(
            f"replace_with must be a colour, 'mosaic' or 'blur' for {out!r}, which holds no transparency, got "
            "'transparent'; a .png or a folder of images holds it."
        )


def _check_replacing(style: Redaction | Cutout) -> None:
    """Check the fields shared by `Redaction` and `Cutout`, and convert the classes to a tuple."""
    classes: Any = style.classes
    if classes is not None:
        is_names = isinstance(classes, Sequence) and not isinstance(classes, str | bytes)
        if not (is_names and len(classes) and all(isinstance(name, str) for name in classes)):
            raise InputError(f"classes must be a list of at least one class name, or None, got {classes!r}.")
        object.__setattr__(style, "classes", tuple(classes))
    parse_replacement(style.replace_with)
    if style.on_top is not None and not isinstance(style.on_top, DrawStyle):
        raise InputError(f"on_top must be a DrawStyle, or None, got {type(style.on_top).__name__}.")
    if style.on_top is not None and is_transparent(style):
        raise InputError("on_top must be None with replace_with='transparent'.")


@dataclass(frozen=True, eq=False)  # hashed twice per label
class Measures:
    """Sizes in pixels that suit an image; see `measure`."""

    line: int
    """Line width of boxes and outlines, in pixels."""
    font_scale: float
    """OpenCV's scale of the letters; 0.5 are letters for 720p."""
    weight: int
    """OpenCV's thickness of the letters."""
    pad: int
    """Padding around a label's text, in pixels."""


@lru_cache
def measure(size_hw: tuple[int, int], line_width: float | None) -> Measures:
    """Choose sizes in proportion to the image; letters stay large enough to be read."""
    height, width = size_hw
    scale = min(math.sqrt(height * width) / 960, min(size_hw) / 360)  # 1 at 720p; less for elongated images
    line = min(1.5 * scale if line_width is None else line_width, *size_hw, _WIDEST)
    font_scale = max(0.5 * scale, _SMALLEST_FONT)
    return Measures(
        line=max(round(line), 1),
        font_scale=font_scale,
        weight=max(round(1.3 * font_scale), 1),
        pad=max(round(7 * font_scale), 1),
    )


_SMALLEST_FONT = 0.3  # capitals of 6 pixels
_WIDEST = 2**15 - 1  # OpenCV's limit

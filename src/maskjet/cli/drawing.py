"""Options of drawing: annotation, redaction or cutouts in video and images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from maskjet.cli.choosing import split_list
from maskjet.cli.options import option_of, optional, with_options
from maskjet.drawing.style import SWITCHES, Cutout, DrawStyle, Redaction, Style
from maskjet.errors import InputError, suggest

if TYPE_CHECKING:
    from maskjet.model import Model

_PANEL = "How results are drawn"
_STYLES: Mapping[str, type] = {"annotate": DrawStyle, "rotated": DrawStyle, "redact": Redaction, "cutout": Cutout}
_REPLACING = ("replace_with", "margin", "hold")
"""Fields of `Redaction` that are options."""


def with_style(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter `style` by options: the style, and the pixels of masks in other outputs."""
    text = (
        "annotate; rotated, with boxes of least area at any angle; or replace all pixels inside the masks (redact), or "
        "outside (cutout), of all classes or of those named, as in redact=person,car. Then boxes and the like are "
        "drawn only if asked for. Not given: annotate."
    )
    options = {"draw": optional("draw", str, "NAME|NAME=CLASSES", text, choices=[*_STYLES])}
    options |= {name: option_of(Redaction, name, _PANEL) for name in _REPLACING}
    drawn = (field.name for field in fields(DrawStyle) if field.name not in _STYLES)  # rotated is a value of --draw
    options |= {name: option_of(DrawStyle, name, _PANEL) for name in drawn}
    return with_options(command, "style", options, lambda given: (make_style(given), given.get("mask_pixels", "raw")))


def make_style(given: Mapping[str, Any]) -> Style:
    """Build a style from given options, by name; raises InputError if they are incompatible."""
    values = dict(given)
    way, classes = _parse_draw(values.pop("draw", "annotate"))
    if "palette" in values:
        values["palette"] = dict(item.rpartition("=")[::2] for item in split_list([values["palette"]]))
    replacing = {name: values.pop(name) for name in _REPLACING if name in values}
    for name, value in replacing.items():
        ways = [known for known, style in _STYLES.items() if hasattr(style, name)]
        if way not in ways:
            raise InputError(f"{name} must go with --draw {' or '.join(ways)}, got {value!r} with {way}.")
    if _STYLES[way] is DrawStyle:
        return DrawStyle(**values, rotated=way == "rotated")
    on_top = None
    if "label" in values or any(values.get(name) for name in SWITCHES):
        on_top = DrawStyle(**(dict.fromkeys(SWITCHES, False) | values))
    elif alone := next((name for name in values if name not in (*SWITCHES, "mask_pixels")), None):
        raise InputError(f"{alone} must go with something drawn on top, such as --outlines, with --draw {way}.")
    return cast(Style, _STYLES[way](classes=classes, on_top=on_top, **replacing))


def check_drawn(style: Style, outs: Sequence[str], *, shows: bool) -> None:
    """Raise InputError if a run redacts or cuts out without an output that shows it."""
    from maskjet.outputs.opening import kind_of
    from maskjet.sources.containers import shown_name

    if not isinstance(style, DrawStyle) and not shows and not any(kind_of(out) in ("video", "images") for out in outs):
        raise InputError(
            f"draw must have a video, images or a window to change, got only {', '.join(map(shown_name, outs))}: "
            "add for example -o out.mp4, or leave out --draw."
        )


def check_classes(style: Style, model: Model) -> None:
    """Raise InputError unless the model reports all classes of a style, and knows those of its palette."""
    known = [name for _, name in sorted(model.spec.class_names.items())]
    drawn = style if isinstance(style, DrawStyle) else style.on_top
    coloured = (drawn.palette if drawn else None) or ()
    replaced = () if isinstance(style, DrawStyle) else style.classes or ()
    for option, names in (("palette", coloured), ("draw", replaced)):
        for name in names:
            if name not in known:
                raise InputError(f"{option} must name classes of the model, got {name!r}{suggest(name, known)}")
    for name in replaced:
        if name not in model.thresholds:
            raise InputError(f"draw must name classes that --classes reports, got {name!r}: add it there.")


def _parse_draw(text: str) -> tuple[str, Sequence[str] | None]:
    """Parse --draw: the mode, and class names, None for all."""
    way, has_classes, names = text.partition("=")
    if way not in _STYLES:
        raise InputError(f"draw must be one of {', '.join(_STYLES)}, got {text!r}{suggest(way, _STYLES, lists=False)}")
    if not has_classes:
        return way, None
    classes = split_list([names])
    if _STYLES[way] is DrawStyle:
        raise InputError(f"draw must be {way} without classes, got {text!r}; --classes chooses what is found.")
    if not all(classes):
        raise InputError(f"draw must name each class, as in {way}=person,car, got {text!r}.")
    return way, classes

"""Options that say what annotated video and images show: one per field of `maskjet.media.drawing.DrawStyle`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskjet.cli.options import completing, with_options

if TYPE_CHECKING:
    from maskjet.media.drawing import DrawStyle

_PANEL = "Options of drawing"
COLOURS = ("class", "instance")
# Stated here, as the class's module takes long to import; a test compares them with its fields.
FIELDS: dict[str, tuple[type, str]] = {
    "boxes": (bool, "Whether boxes are drawn."),
    "labels": (bool, "Whether class names are written."),
    "scores": (bool, "Whether confidences are written."),
    "masks": (bool, "Whether the insides of masks are tinted."),
    "outlines": (bool, "Whether the outlines of masks are drawn."),
    "line_width": (float, "Width of boxes and outlines; if not given, one that suits the image's size."),
    "color_by": (str, "A hue per class, with a shade per instance; or a hue per instance."),
}
"""Type and help of each option, by the field's name."""


def with_style(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option per field of `DrawStyle`, in place of its parameter `style`.

    The command gets a function that makes the style, as its class takes long to import.
    """
    options = {name: _option(name) for name in FIELDS}
    return with_options(command, "style", options, lambda given: functools.partial(_make_style, given))


def _make_style(given: dict[str, Any]) -> DrawStyle:
    from maskjet.media.drawing import DrawStyle

    return DrawStyle(**{name: value for name, value in given.items() if value is not None})


def _option(name: str) -> inspect.Parameter:
    kind, text = FIELDS[name]
    flag = f"--{name.replace('_', '-')}"
    choices = COLOURS if name == "color_by" else ()
    option = typer.Option(
        f"{flag}/--no-{name}" if kind is bool else flag,
        help=text,
        metavar={bool: None, float: "PIXELS", str: "|".join(choices)}[kind],
        rich_help_panel=_PANEL,
        autocompletion=completing(choices),
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

"""Options, progress bars and printing shared by all commands."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from maskjet.checks import parse_hw
from maskjet.cli.flags import in_flags
from maskjet.config import NMS, EngineConfig
from maskjet.errors import InputError
from maskjet.host.printing import printable
from maskjet.outputs.label_options import LabelOptions
from maskjet.spec import MODELS
from maskjet.tiling.layout import Tiling, parse_tile

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from maskjet.sources.source import Source

_LONGEST_NAME = 48  # longest source name on a terminal, in characters
ENGINE_PANEL = "How the model runs"
_INPUT_PANEL = "How frames become the model's input"
INPUT = ("input_size", "resize", "letterbox_color", "letterbox_place")
"""Fields of `EngineConfig` that define the conversion of frames to the network's input."""
_LABELS_PANEL = "What labels, data sets and crops hold"
_METAVARS = {  # metavars of values that are no names
    "input_size": "WIDTHxHEIGHT",
    "letterbox_color": "#RRGGBB",
    "label": "TEMPLATE",
    "replace_with": "COLOUR|NAME",
    "margin": "PIXELS",
    "line_width": "PIXELS",
    "palette": "CLASS=COLOUR",
    "host": "HOST",
    "token": "TEXT",
    "source": "[NAME=]URL|PATH",
    "tile": "N|WIDTHxHEIGHT|auto",
    "overlap": "SHARE",
    "nms": "IOU",
    "polygon_tolerance": "PIXELS",
}
_PANELS = {  # panels of other options
    "device": None,
    **dict.fromkeys((*INPUT, "resample"), _INPUT_PANEL),
    **dict.fromkeys(NMS, "Detections of the same instance"),
}
_WIDEST = 24  # longest metavar; wider ones squeeze the help text


def option(
    metavar: str, text: str, *flags: str, panel: str | None = None, choices: Sequence[str] = (), **others: Any
) -> Any:
    """Declare an option with a value; the shell completes `choices`. The flag defaults to the parameter's name."""
    if choices:
        others["autocompletion"] = completing(choices)
    return typer.Option(*flags, metavar=metavar, help=text, rich_help_panel=panel, **others)


def parse_processes(text: str) -> int | None:
    """The number of processes for each device; None for auto."""
    if text == "auto":
        return None
    if not re.fullmatch(r"[1-9]\d?", text):
        raise InputError(f"processes must be auto or a whole number 1..99, got {text!r}.")
    return int(text)


def every_device(config: EngineConfig) -> str:
    """The devices of worker processes: all GPUs unless one is chosen, else the CPU."""
    if config.device != "auto":
        return config.device
    return "all" if config.resolve_device().type == "cuda" else "cpu"


def completing(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a shell completion function; without a match, the shell completes files."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def switch(flag: str, text: str, panel: str | None = None) -> Any:
    """Declare an option without a value."""
    return option("", text, flag, panel=panel)


ModelOption = Annotated[
    str,
    option(
        "NAME|PATH",
        "demo; the path of a checkpoint, .onnx or .engine; a size of RF-DETR, rf-detr-nano to rf-detr-large or "
        "rf-detr-seg-nano to rf-detr-seg-2xlarge; or torchvision:NAME, one of torchvision's.",
        choices=MODELS,
    ),
]
WeightsOption = Annotated[
    Path | None, option("PATH", "Checkpoint for a named model: .pt, .pth, .ckpt or .safetensors.")
]
DepthOption = Annotated[int, option("N", "Batches in flight, 1 to 8.", panel=ENGINE_PANEL)]
ReportOption = Annotated[Path | None, option("PATH", "A JSON file for the report.", "--out", "-o")]
JsonOption = Annotated[bool, switch("--json", "Print the result as JSON on stdout.")]
InputSizeOption = Annotated[
    str | None, option("WIDTHxHEIGHT", "Size of the file's input, as for run; if not given, the model's.")
]
SizeOption = Annotated[str, option("WIDTHxHEIGHT", "Size in pixels; or 312, 720p or 1080p.")]


def with_config(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per named field of `EngineConfig`, in place of its parameter `config`.

    Help, choices and type come from the field. An option that is not given leaves the choice to MASKJET_* variables and
    the field's default.
    """
    options = {name: option_of(EngineConfig, name, _PANELS.get(name, ENGINE_PANEL)) for name in names}
    return lambda command: with_options(command, "config", options, lambda given: EngineConfig.from_env(**given))


def with_label_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option per field of `LabelOptions`, in place of its parameter `label_options`."""
    options = {field.name: option_of(LabelOptions, field.name, _LABELS_PANEL) for field in fields(LabelOptions)}
    return with_options(command, "label_options", options, lambda given: LabelOptions(**given))


def with_tiling(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Tiling`, in place of its parameter `tiling`."""
    panel = "For small instances in large frames"
    options = {field.name: option_of(Tiling, field.name, panel) for field in fields(Tiling)}
    return with_options(command, "tiling", options, lambda given: Tiling(parse_tile(given.pop("tile", None)), **given))


def with_panel(name: str, group: type, panel: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of a dataclass, as annotated there, in place of its parameter `name`."""
    hints, kind = typing.get_type_hints(group, include_extras=True), inspect.Parameter.KEYWORD_ONLY
    for hint in hints.values():
        hint.__metadata__[0].rich_help_panel = panel
    options = {
        each.name: inspect.Parameter(each.name, kind, default=each.default, annotation=hints[each.name])
        for each in fields(group)
    }
    return lambda command: with_options(command, name, options, lambda given: group(**given))


def with_options(
    command: Callable[..., None],
    name: str,
    options: Mapping[str, inspect.Parameter],
    make: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replace a command's parameter `name` by options; `make` builds its value from those that are given."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {option: value for option in options if (value := arguments.pop(option)) is not None}
        command(**{name: make(given)}, **arguments)

    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += options.values() if parameter.name == name else [parameter]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def option_of(config: type, name: str, panel: str | None, *, shows_default: bool = False) -> inspect.Parameter:
    """Declare the option of an annotated field of a dataclass."""
    kind, text = typing.get_args(typing.get_type_hints(config, include_extras=True)[name])
    if kind is bool and getattr(config, name):
        kind = bool | None  # can be switched off
    elif isinstance(kind, types.UnionType) and kind != bool | None:
        kind = typing.get_args(kind)[0]
    if shows_default and kind not in (bool, bool | None) and getattr(config, name) not in (None, ()):
        text = f"{text} Not given: {getattr(config, name)}."
    if kind in (bool, bool | None, int, float):
        return optional(name, kind, _METAVARS.get(name, "SECONDS" if name.endswith("_s") else "N"), text, panel)
    if typing.get_origin(kind) is tuple and typing.get_args(kind)[1] is ...:
        return optional(name, list[str], _METAVARS[name], text, panel)
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    metavar = "|".join(choices) or _METAVARS.get(name, "NAME")
    if len(metavar) > _WIDEST:
        metavar, text = "NAME", f"{', '.join(choices[:-1])} or {choices[-1]}. {text}"
    return optional(name, str, metavar, text, panel, choices)


def optional(
    name: str, kind: Any, metavar: str, text: str, panel: str | None = None, choices: Sequence[str] = ()
) -> inspect.Parameter:
    """Parameter of an option that is None if not given.

    Its kind is the value's type: bool makes a switch, bool | None one that can also be switched off, without metavars.
    """
    flag = f"--{name.replace('_', '-')}"
    if kind in (bool, bool | None):
        made = switch(flag if kind is bool else f"{flag}/--no-{name}", text, panel)
    else:
        made = option(metavar, text, flag, panel=panel, choices=choices)
    annotation = Annotated[kind | None, made]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def parse_size(text: str) -> tuple[int, int]:
    """Parse --size, a name or WIDTHxHEIGHT, to (height, width) in pixels."""
    from maskjet.traffic import SIZES_HW

    return SIZES_HW.get(text) or parse_hw(text, "--size", f"one of {', '.join(SIZES_HW)} or WIDTHxHEIGHT")


@contextmanager
def progress(task_name: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a progress bar with speed and time left on a terminal; yields a function to advance it."""
    with progress_bars() as bars:
        task = bars.add_task(task_name, total=total)
        yield lambda *_: bars.advance(task)


@contextmanager
def progress_of(sources: Sequence[Source], note: str = "") -> Iterator[Callable[[int], None]]:
    """Show a line per source, named with a note, on a terminal: a progress bar or, if any source is live, its state.

    Yields a function to call for each frame, with the position of its source.
    """
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class StateColumn(ProgressColumn):
        """Column with frame rate and latency of a source."""

        def render(self, task: Task) -> Text:
            return Text(printable(str(task.fields["source"].state)))

    described = TextColumn("{task.description}", table_column=Column(max_width=_LONGEST_NAME, no_wrap=True))
    columns = (described, MofNCompleteColumn(), StateColumn()) if any(source.is_live for source in sources) else ()
    with progress_bars(*columns) as bars:
        names = [escape(printable(each.name)) + note for each in sources] if note or sources[1:] else ["detecting"]
        tasks = [
            bars.add_task(name, total=source.length, source=source) for name, source in zip(names, sources, strict=True)
        ]
        yield lambda position: bars.advance(tasks[position])


@contextmanager
def progress_bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """Create progress bars on stderr, shown on terminals only; by default with speed and time left."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """Column with steps per second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.1f}/s", style="progress.data.speed")

    columns = columns or (*Progress.get_default_columns(), MofNCompleteColumn(), SpeedColumn())
    console = Console(stderr=True)
    off, is_seen = not console.is_terminal, sys.stdout is not None and sys.stdout.isatty()
    # Redirect stdout only if it is a terminal; else results would not reach their file or pipe.
    with Progress(*columns, console=console, disable=off, transient=True, redirect_stdout=is_seen) as bars:
        yield bars


def print_result(result: Any, *, to_stdout: bool = False) -> None:
    """Print a dict as JSON on stdout, else text on stderr, so that pipes hold data only; raises OutputError."""
    if isinstance(result, dict):
        _print(json.dumps(result, indent=2, allow_nan=False), to_stdout=True)
    else:
        _print("\n".join(map(printable, str(result).split("\n"))), to_stdout=to_stdout)


def print_error(error: Exception) -> None:
    """Print an error as one line on stderr, which names the running command's flags."""
    _print(f"maskjet: {printable(in_flags(error))}", to_stdout=False)


def _print(text: str, *, to_stdout: bool) -> None:
    """Print a text on stderr; drops it if stderr can't be written to."""
    try:
        typer.echo(text, err=not to_stdout)
    except (OSError, ValueError, AttributeError):  # disk full, pipe closed, or stderr closed at start
        if to_stdout:
            raise

"""Commands and groups of commands: plain help with examples, and errors that name flags."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from maskjet.cli.flags import naming_flags

if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Context settings of the outermost group; its commands inherit them."""
_UsageError: Any = typer.BadParameter.__mro__[1]  # typer has no public name for it
_UNBROKEN = "\N{NON-BREAKING HYPHEN}"  # names of models and flags stay in one line
_TYPE = re.compile(r" <[^ ]*>$")  # typer's name of a type, behind an argument's name


class _Plain(_Base):
    """Help of a command or a group: metavars without types and braces, options by panel, examples.

    The first paragraph of an epilog has the examples: lines that start with "maskjet" or, as remarks on them, with "#".
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            close = getattr(error, "possibilities", None)
            if close:  # typer lists all, in its own words
                error.possibilities = None
                error.message = f"{error.message}; did you mean {close[0]}?"
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if param.param_type_name == "argument" else "Options"
                panel = getattr(param, "rich_help_panel", None) or default
                panels.setdefault(panel, []).append((_TYPE.sub("", record[0]), record[1]))
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl([(name, text.replace("-", _UNBROKEN)) for name, text in rows])
        formatter.buffer = [part.replace(_UNBROKEN, "-") for part in formatter.buffer]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        examples, rest = split_epilog(self)
        with formatter.section("Examples"):
            for line in examples.splitlines():
                formatter.write(f"  {line}\n")
        if rest:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(rest)


class Command(_Plain, TyperCommand):
    """A command."""

    def invoke(self, ctx: Any) -> Any:  # noqa: D102
        with naming_flags(self.params, ctx):
            return super().invoke(ctx)


class Group(_Plain, TyperGroup):
    """A group of commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: D102
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class DefaultGroup(Group):
    """A group whose first command is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: D102
        if args and args[0] not in {*self.commands, *self.get_help_option_names(ctx)}:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def split_epilog(command: Any) -> tuple[str, str]:
    """The examples in the help of a command or group, with their remarks; and the text below them."""
    examples, _, rest = inspect.cleandoc(command.epilog or "").partition("\n\n")
    return examples, rest


def examples_of(command: Any) -> list[str]:
    """The examples in the help of a command or group, each in one line."""
    lines = split_epilog(command)[0].replace("\\\n", "").splitlines()
    return [line for line in lines if line.startswith("maskjet ")]

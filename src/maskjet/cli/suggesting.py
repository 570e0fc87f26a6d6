"""Suggestions for commands and options known from other tools."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from maskjet.other_tools import COMMANDS, OPTIONS


class Commands(TyperGroup):
    """Command group that suggests the equivalent of other tools' words, else the closest command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with."""
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if args[0] in COMMANDS:
                error.message = f"No such command {args[0]!r}. Did you mean {COMMANDS[args[0]]!r}?"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            given = getattr(error, "option_name", "").removeprefix("--").replace("-", "_")
            meant = f"--{OPTIONS.get(given, '').replace('_', '-')}"
            if meant in [name for param in (getattr(error, "ctx", None) or ctx).command.params for name in param.opts]:
                error.possibilities = [meant]  # type: ignore[attr-defined]  # typer does not export the class
            raise

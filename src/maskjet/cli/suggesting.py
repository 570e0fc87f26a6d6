"""Suggestions for commands and options known from other tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("predict", "detect", "segment", "infer", "track"), "run"),
    **dict.fromkeys(("eval", "evaluate", "validate"), "val"),
}
_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--conf", "--confidence", "--score-threshold"), "--threshold"),
    **dict.fromkeys(("--output", "--save", "--project"), "--out"),
    **dict.fromkeys(("--imgsz", "--img-size", "--resolution"), "--input-size"),
    **dict.fromkeys(("--half", "--fp16", "--dtype"), "--precision"),
    **dict.fromkeys(("--max-det", "--max-dets"), "--max-detections"),
    **dict.fromkeys(("--checkpoint", "--ckpt"), "--weights"),
    **dict.fromkeys(("--vid-stride", "--stride"), "--every"),
    "--gpu": "--device",
    "--batch-size": "--batch",
}


class Commands(TyperGroup):
    """Command group that suggests the equivalent of other tools' words, else the closest command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments begin with."""
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            if args[0] in _COMMANDS:
                error.message = f"No such command {args[0]!r}. Did you mean {_COMMANDS[args[0]]!r}?"
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            meant = _OPTIONS.get(getattr(error, "option_name", ""))
            if meant in [name for param in (getattr(error, "ctx", None) or ctx).command.params for name in param.opts]:
                error.possibilities = [meant]  # type: ignore[attr-defined]  # typer does not export the class
            raise

"""Errors in the words of the command line: arguments are named by their flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from maskjet.errors import MaskjetError

_CALL = re.compile(r"(?:maskjet\.)?\bload\((?:(?P<model>[^\s,()=]+)(?=[,)])(?:, )?)?(?P<rest>[^()]*)\)")
# Quoted text, which stays as it is; or an argument with its value, which may be quoted.
_ASSIGNED = re.compile(
    r"(?<![\w=])(?:'[^']*'|\"[^\"]*\")|(?<![\w./-])(?P<name>[a-z]\w*)=(?P<value>'[^']*'|\"[^\"]*\"|[\w.:/-]*\w|\.\.\.)"
)
_FIRST = re.compile(r"(?P<name>[a-z]\w*)(?P<rest> must .*)", re.DOTALL)
_ENDING = re.compile("(_hw|_s|s)$")  # of a name in Python: its unit, or a list where an option may be repeated


@dataclass(frozen=True)
class Flag:
    """An option of a command."""

    name: str
    """The flag, as "--max-detections"."""
    off: str | None = None
    """The flag that switches it off, if there is one."""
    is_switch: bool = False
    """Whether it has no value."""
    is_given: bool = True
    """Whether it has a value in this call, if only a default."""


_NO_FLAGS: Mapping[str, Flag] = MappingProxyType({})
_current: ContextVar[Mapping[str, Flag]] = ContextVar("flags of the running command", default=_NO_FLAGS)


def flags_of(params: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Flag]:
    """The options of a command by their arguments' names; positional arguments keep their names in errors.

    An option whose metavar is SOURCE is also what errors call source.
    """
    flags = {
        param.name: Flag(
            max(param.opts, key=len),
            param.secondary_opts[0] if param.secondary_opts else None,
            bool(param.is_flag),
            values.get(param.name) is not None,
        )
        for param in params
        if param.param_type_name == "option"
    }
    sources = [flags[param.name] for param in params if param.name in flags and param.metavar == "SOURCE"]
    return {**dict.fromkeys(["source"] if sources else [], *sources[:1]), **flags}


@contextmanager
def naming_flags(params: Sequence[Any], ctx: Any) -> Iterator[None]:
    """Run a command; maskjet's errors that leave it name its flags."""
    token = _current.set(flags_of(params, ctx.params))
    try:
        yield
    except MaskjetError as error:
        error.args = (in_flags(error), *error.args[1:])
        raise
    finally:
        _current.reset(token)


def in_flags(error: Exception) -> str:
    """The message of an error, in the words of the running command."""
    return translate(str(error), _current.get())


def translate(message: str, flags: Mapping[str, Flag]) -> str:
    """Replace the names of arguments in a message by flags.

    That is the name which the message begins with, unless the user gave no such option and the message does not ask for
    it; names with a value, as in device='cpu'; and calls of `load`. Quoted text stays as it is.

    Args:
        message: Message of an error, which may quote text from outside.
        flags: Flags by names of arguments.
    """
    first = _FIRST.fullmatch(message)
    if first is not None:
        name = first["name"]
        flag = next((flags[each] for each in (name, _ENDING.sub("", name)) if each in flags), None)
        if flag is not None and (flag.is_given or "got None" in message):
            message = flag.name + _in_words(first["rest"], flag)
    message = _CALL.sub(lambda call: _call(call, flags), message)
    return _ASSIGNED.sub(lambda found: _assign(found, flags), message)


def _in_words(rest: str, flag: Flag) -> str:
    """What must be true of a flag, without Python's constants."""
    if flag.is_switch:
        rest = re.sub("^ must be False", " must not be given", rest)
        rest = re.sub("^ must be True", " must be given", rest)
    rest = rest.replace(", or None", "", 1)
    rest = re.sub(r"(?<=^ must be one of )\(([^()]*)\)", lambda choices: choices[1].replace("'", ""), rest)
    return rest.replace("got None", "it is not given", 1)


def _call(call: re.Match[str], flags: Mapping[str, Flag]) -> str:
    if "model" not in flags:
        return call[0]
    model = f"--model {call['model']}" if call["model"] else ""
    return " ".join(filter(None, (model, call["rest"])))


def _assign(found: re.Match[str], flags: Mapping[str, Flag]) -> str:
    flag = flags.get(found["name"] or "")
    if flag is None:
        return found[0]
    value = found["value"]
    if flag.is_switch:
        return flag.name if value != "False" else flag.off or f"no {flag.name}"
    if value == "...":
        return flag.name
    is_quoted = value[0] in "'\""
    return f"{flag.name} {shlex.quote(value[1:-1]) if is_quoted else value}"

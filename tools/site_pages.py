"""Hooks of the documentation's site, which mkdocs.yml names: pages kept elsewhere, and the reference of the commands.

`make docs` builds the site. CHANGELOG.md, the pages in benchmarks/ and the files in deploy/ and examples/ stay where
they are and become part of the site; links between them and docs/ are those of the repository, and are changed to the
site's.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from maskjet.cli.app import app
from maskjet.config import EngineConfig

ROOT = Path(__file__).resolve().parent.parent
_CONFIG_HELP = [typing.get_args(kind)[1] for kind in typing.get_type_hints(EngineConfig, include_extras=True).values()]
_TYPES = {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}
COMMANDS = "<!-- commands: written by tools/site_pages.py -->"
"""The place in a page where the reference of the commands goes."""
SETTINGS = "<!-- settings: written by tools/site_pages.py -->"
"""The place in a page where the fields of `EngineConfig` go."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and the files that they link to."""
    from mkdocs.structure.files import File

    folder, directory_urls = config["site_dir"], config["use_directory_urls"]
    for pattern in ("benchmarks/*.md", "benchmarks/results/**/*.*", "deploy/*", "examples/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            files.append(File(str(path.relative_to(ROOT)), str(ROOT), folder, directory_urls))
    files.append(File.generated(config, "changelog.md", abs_src_path=str(ROOT / "CHANGELOG.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn the repository's links into the site's, fill in commands and settings, let search find guides first."""
    page.meta["search"] = {"boost": 1 if re.search(r"/|changelog|design|decisions", page.file.src_uri) else 4}
    markdown = to_site_links(markdown, page.file.src_uri)
    for place, describe in ((COMMANDS, describe_commands), (SETTINGS, describe_settings)):
        if place in markdown:
            markdown = markdown.replace(place, describe())
    return markdown


def to_site_links(markdown: str, page: str) -> str:
    """Links of a page for the site, where docs/ is the top: there benchmarks/ and the like lie in it, not beside it."""
    if page == "changelog.md":
        return markdown.replace("](docs/", "](")
    if page.startswith("benchmarks/"):
        return markdown.replace("](../docs/", "](../")
    up = "../" * page.count("/")
    return re.sub(
        r"\]\((?:\.\./)+(benchmarks/|deploy/|examples/|CHANGELOG\.md)",
        lambda link: f"]({up}{'changelog.md' if link[1].endswith('.md') else link[1]}",
        markdown,
    )


def describe_commands() -> str:
    """All commands with their examples, arguments and options, in Markdown."""
    return "\n\n".join(
        part for name, command in find_commands(typer.main.get_command(app)) for part in _describe(name, command)
    )


def describe_settings() -> str:
    """The fields of `EngineConfig` with their defaults, in Markdown."""
    return "\n\n".join(
        f"`{field.name} = {field.default!r}`\n:   {_escape(text)}"
        for field, text in zip(fields(EngineConfig), _CONFIG_HELP, strict=True)
    )


def find_commands(command: Any, name: str = "maskjet") -> Iterator[tuple[str, Any]]:
    """Names of the commands below a group, with their commands."""
    if not hasattr(command, "commands"):
        yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from find_commands(below, f"{name} {word}")


def split_epilog(command: Any) -> tuple[str, str]:
    """The examples at the end of a command's help, with their remarks; and the text below them."""
    examples, _, rest = inspect.cleandoc(command.epilog or "").partition("\n\n")
    return examples, rest


def examples_of(command: Any) -> list[str]:
    """The examples in the help of a command or group, each in one line."""
    return re.findall(r"^maskjet .*", split_epilog(command)[0].replace("\\\n", ""), re.MULTILINE)


def _describe(name: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    yield f"## {name}"
    yield _escape(command.help)
    words = [name, *("OPTIONS" if one is None else _metavar(one) for one in (None, *arguments))]
    yield f"```sh\n{' '.join(words)}\n```"
    examples, rest = split_epilog(command)
    yield f'```sh title="Examples"\n{examples}\n```'
    if rest:
        yield _escape(rest)
    for one in arguments:
        yield _define(_metavar(one), one)
    for one in options:
        if one.name not in ("help", "help_all"):
            yield _define(_flags(one), one)


def _metavar(argument: Any) -> str:
    return f"{argument.name.upper()}{' ...' if argument.nargs == -1 else ''}"


def _flags(option: Any) -> str:
    flags = " / ".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return flags
    kind = option.bare_type().removeprefix("list[").removesuffix("]")
    return f"{flags} {option.metavar or _TYPES.get(kind, 'TEXT')}"


def _define(term: str, parameter: Any) -> str:
    return f"`{term}`\n:   {_sentence(parameter)}"


def _sentence(parameter: Any) -> str:
    """The help, the default, and the variable that is read if the option is not given."""
    text = _escape(parameter.help or "")
    default = parameter.default
    if parameter.required:
        text += " Required."
    elif default is not None and not callable(default) and not isinstance(default, bool):
        text += f" Default: `{default}`."
    if parameter.help in _CONFIG_HELP:
        text += f" Variable: `MASKJET_{parameter.name.upper()}`."
    return text


def _escape(text: str) -> str:
    """Text as Markdown shows it: placeholders in braces and brackets are no markup."""
    return re.sub(r"([*_<>\[\]])", r"\\\1", text)

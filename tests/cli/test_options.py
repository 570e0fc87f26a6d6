"""Options made from EngineConfig: a choice, its help and its default are stated once."""

import re
import typing
from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from maskjet.cli.options import with_config
from maskjet.config import EngineConfig
from maskjet.errors import InputError

NAMES = tuple(field.name for field in fields(EngineConfig))


@pytest.fixture
def call():
    """Runs a command that takes every choice; the config it got, or what it printed."""
    app = typer.Typer(rich_markup_mode=None)
    seen = []

    @app.command()
    @with_config(*NAMES)
    def command(source: str, *, config: EngineConfig, last: int = 1) -> None:
        seen.append((source, config, last))

    def run(*arguments):
        seen.clear()
        done = CliRunner().invoke(app, ["clip", *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return seen[0] if seen else re.sub(r"\s+", " ", done.output)

    return run


def test_every_choice_is_an_option_with_the_fields_own_words(call):
    text = call("--help")
    for name, hint in typing.get_type_hints(EngineConfig, include_extras=True).items():
        kind, words = typing.get_args(hint)
        assert f"--{name.replace('_', '-')} " in text
        assert words.replace("-", "") in text.replace("- ", "").replace("-", "")
        if typing.get_origin(kind) is typing.Literal:
            assert "|".join(typing.get_args(kind)) in text


def test_what_is_not_given_keeps_its_default(call):
    assert call() == ("clip", EngineConfig(), 1)


def test_values_reach_the_field_in_its_type(call):
    _, config, last = call(
        *("--device", "cpu", "--no-compile", "--batch", "3", "--nvtx", "--implementation", "select=cpu", "--last", "2")
    )
    assert config == EngineConfig(device="cpu", compile=False, batch=3, nvtx=True, implementation={"select": "cpu"})
    assert last == 2
    assert call("--compile")[1].compile is True


def test_the_environment_comes_second(call, monkeypatch):
    monkeypatch.setenv("MASKJET_BATCH", "5")
    assert call()[1].batch == 5
    assert call("--batch", "3")[1].batch == 3


def test_a_wrong_choice_is_ours_to_name(call):
    with pytest.raises(InputError, match=r"precision must be one of \('auto', 'fp32', 'fp16', 'bf16'\), got 'fp8'"):
        call("--precision", "fp8")

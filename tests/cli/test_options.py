"""Options made from EngineConfig: a choice, its help and its default are stated once."""

import re
import typing
from dataclasses import fields, replace

import pytest
import typer
from typer.testing import CliRunner

from maskjet.cli import drawing
from maskjet.cli.choosing import parse_thresholds
from maskjet.cli.options import with_config
from maskjet.config import EngineConfig
from maskjet.drawing import Cutout, DrawStyle, Redaction
from maskjet.drawing.style import SWITCHES
from maskjet.errors import InputError

NOTHING = DrawStyle(**dict.fromkeys(SWITCHES, False))
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
            assert "|".join(typing.get_args(kind)) in re.sub(", | or ", "|", text)


def test_values_reach_the_field_in_its_type_and_others_keep_their_default(call, monkeypatch):
    assert call() == ("clip", EngineConfig(), 1)
    _, config, last = call(
        *("--device", "cpu", "--no-compile", "--batch", "3", "--nvtx", "--implementation", "select=cpu", "--last", "2")
    )
    assert config == EngineConfig(device="cpu", compile=False, batch=3, nvtx=True, implementation={"select": "cpu"})
    assert last == 2
    assert call("--compile")[1].compile is True
    monkeypatch.setenv("MASKJET_BATCH", "5")  # comes second
    assert [call()[1].batch, call("--batch", "3")[1].batch] == [5, 3]


def test_the_options_of_redact_and_cutout_are_fields_of_what_they_make():
    for made in (Redaction, Cutout):
        assert {*drawing._REPLACING, "classes", "on_top"} >= {field.name for field in fields(made)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"draw": "redact=person, traffic light", "replace_with": "blur", "margin": 0, "hold": 9},
            Redaction(["person", "traffic light"], "blur", 0, 9),
        ),
        ({"draw": "redact", "boxes": False, "mask_pixels": "box"}, Redaction()),
        ({"mask_pixels": "raw"}, DrawStyle(mask_pixels="raw")),
        ({"draw": "rotated", "masks": False}, DrawStyle(rotated=True, masks=False)),
        ({"palette": "car=ff8800, bus=white"}, DrawStyle(palette={"car": "ff8800", "bus": "white"})),
        ({"draw": "redact", "label": "{name}"}, Redaction(on_top=replace(NOTHING, label="{name}"))),
        (
            {"draw": "cutout", "outlines": True, "line_width": 3.0},
            Cutout(on_top=replace(NOTHING, outlines=True, line_width=3.0)),
        ),
    ],
)
def test_options_of_drawing_make_a_style(given, expected):
    assert drawing.make_style(given) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["car"], "threshold must be a number or CLASS=NUMBER, got 'car'"),
        (["0.5,0.6"], "threshold must be given once, got '0.6' again"),
        (["car=0.5", "car=0.5"], "threshold must be given once for 'car', got 'car=0.5' again"),
    ],
)
def test_what_is_no_threshold_is_told(texts, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_thresholds(texts)

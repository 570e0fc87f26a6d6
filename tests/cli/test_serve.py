"""The options of maskjet serve."""

import dataclasses
import re

import pytest

from maskjet.cli.serve import parse_models
from maskjet.errors import InputError
from maskjet.serve import Settings


def test_every_setting_is_an_option_with_its_help(maskjet):
    code, out, _ = maskjet("serve --help-all")
    assert code == 0
    for each in dataclasses.fields(Settings):
        assert f"--{each.name.replace('_', '-')}" in out
    assert "maskjet serve" in out


def test_models_have_names():
    assert parse_models(["demo"]) == {"demo": "demo"}
    assert parse_models(["cars=a/b.pt", "a/nano.pt", "demo"]) == {"cars": "a/b.pt", "nano": "a/nano.pt", "demo": "demo"}
    with pytest.raises(InputError, match="model must have a name of its own for each, got 'nano' twice"):
        parse_models(["a/nano.pt", "b/nano.pt"])
    with pytest.raises(InputError, match="model must be MODEL or NAME=MODEL, got '=a'"):
        parse_models(["=a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--host 0.0.0.0", "(--)?token must be given to listen on '0.0.0.0', .*"),
        ("--processes 0", "--processes must be auto or a whole number 1..99, got '0'."),
        ("--queue 0", "--queue must be a whole number of at least 1, got 0."),
        ("--weights a.pt --model a --model b", "--weights must go with one model, .*"),
        ("--model dmo --port 0", "--model must be a name or a checkpoint's path, got 'dmo'; did you mean 'demo'?.*"),
    ],
)
def test_mistakes_are_one_line(options, message, maskjet, monkeypatch):
    monkeypatch.delenv("MASKJET_TOKEN", raising=False)
    code, out, err = maskjet(f"serve {options}")
    assert (code, out) == (2, "")
    assert re.fullmatch(f"maskjet: {message}\n", err), err

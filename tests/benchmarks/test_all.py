"""The list of all measurements: commands that are there, and runs that go on."""

import importlib

import pytest
import typer

from benchmarks.all import read_pieces
from tests.snippets import check_command


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_command_is_there_with_its_options(kind, tmp_path):
    steps = [step for piece in read_pieces(kind) for step in piece]
    assert len({step.name for step in steps}) == len(steps) > 20
    for command in (command for step in steps for command in step.commands(tmp_path, str(tmp_path))):
        name, *arguments = command[command.index("-m") + 1 :]
        if name == "maskjet":
            check_command(arguments)
            continue
        module, app = importlib.import_module(name), typer.Typer()
        app.command()(getattr(module, "main", None) or module.command)
        assert typer.main.get_command(app).make_context(name, arguments).params

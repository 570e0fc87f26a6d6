"""The list of all measurements: commands that are there, and runs that go on."""

import importlib
import json

import pytest
import typer

from benchmarks.all import Step, read_pieces, run_piece, time_anchor
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


def test_pieces_fit_the_time_that_a_machine_is_lent():
    assert all(sum(step.minutes for step in piece) <= 8 for piece in read_pieces("cuda"))
    assert all(sum(step.minutes for step in piece) <= 8 for piece in read_pieces("cpu") if len(piece) > 1)


def test_what_fails_is_told_and_what_has_a_result_is_not_run_again(tmp_path, capsys):
    count = "python -c \"print('measured', file=open('{out}.log', 'a'))\""
    steps = [
        Step("first", 1, f"{count} && {count}"),
        Step("bad", 2, f"{count} && python -c \"import sys; sys.exit('no memory')\""),
        Step("last", 1, count),
    ]
    machine = {"gpu": {"name": "NVIDIA H100 80GB HBM3"}, "measured_at": "2026-11-27T06:00:00Z"}
    for p50_ms in (1.5, 1.75):
        assert run_piece(3, steps, {"p50_ms": p50_ms, "machine": machine}, tmp_path) == ["bad"]
    folder = tmp_path / "h100-80gb-hbm3" / "2026-11-27"
    assert [len((folder / f"{step.name}.log").read_text().split()) for step in steps] == [2, 2, 1]
    assert (folder / "bad.partial.txt").read_text() == "no memory\n"
    assert [each["p50_ms"] for each in json.loads((folder / "anchors.json").read_text())] == [1.5, 1.75]
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("  bad: 0.0 minutes, expected 2, failed: exit code 1, no memory")
    assert (lines[5], lines[7]) == ("  first: has a result", "  last: has a result")


@pytest.mark.slow
def test_the_anchor_is_a_frame_of_the_demo_model():
    assert time_anchor("cpu")["p50_ms"] > 0

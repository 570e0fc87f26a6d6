"""The help of every command: for newcomers, in 80 columns and panels, with examples that run."""

import re
import shlex

import pytest
import typer

import maskjet
from maskjet import traffic
from maskjet.cli.app import app
from maskjet.evaluation import speed
from tests.cli.command_line import call
from tools.site_pages import examples_of, split_epilog

ROOT = typer.main.get_command(app)


def walk(command, words=()):
    """Each command and group with the words that call it."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


ALL = dict(walk(ROOT))
EXAMPLES = [(words, line) for words, command in ALL.items() for line in examples_of(command)]


def helped(capsys, monkeypatch, words, flag="--help"):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = call(capsys, "maskjet", *words, flag)
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_is_plain(words, capsys, monkeypatch):
    out = helped(capsys, monkeypatch, words)
    assert out == helped(capsys, monkeypatch, words, "-h")
    assert out.split("\n")[1].startswith(f" Usage: {' '.join(['maskjet', *words])} [OPTIONS]")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out.replace("NAME,NAME,…", ""), "A word is cut."
    assert len(examples_of(ALL[words])) >= 2
    assert {*"\n".join(split_epilog(ALL[words])).split("\n")} <= {line[1:].rstrip() for line in out.split("\n")}


def test_help_begins_with_the_options_that_most_people_use(capsys, monkeypatch):
    options = {}
    for flag in ("--help-all", "--help"):
        out = helped(capsys, monkeypatch, ("run",), flag)
        panels = re.findall(r"^╭─ (.*?) ─+╮\n(.*?)^╰", out, re.MULTILINE | re.DOTALL)
        options[flag] = {title: re.findall(r"^│ (--[\w-]+)", text, re.MULTILINE) for title, text in panels}
    names = "out show model weights threshold classes json track draw device help-all help"
    assert options["--help"] == {"Arguments": [], "Options": [f"--{name}" for name in names.split()]}
    shown = sum(map(len, options["--help-all"].values()))
    assert shown == sum(param.param_type_name == "option" for param in ALL["run",].params) + 1


def test_every_option_has_help_and_a_metavar():
    for words, command in ALL.items():
        for param in command.params:
            assert param.help, (words, param.name)
            assert "[" not in param.help, "Rich would take it for markup."
            takes_no_value = param.param_type_name == "option" and param.is_flag
            assert takes_no_value or param.metavar, (words, param.name)


def test_the_version_is_printed(capsys):
    assert call(capsys, "maskjet", "--version") == (0, f"maskjet {maskjet.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rnu",), "No such command 'rnu'. Did you mean 'run'?"),
        (("run", "a.mp4", "--modle"), "No such option: --modle (Possible options: --compile, --decoder, --model)"),
        (("run", "a.mp4", "--zzz"), "No such option: --zzz"),
        (("run", "a.mp4", "--show=1"), "Option '--show' does not take a value."),
    ],
)
def test_misspelt_commands_and_options_are_answered(words, message, capsys):
    code, out, err = call(capsys, "maskjet", *words)
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", "").split())


@pytest.mark.parametrize(("words", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_every_example_parses(words, line):
    given = shlex.split(line)[1:]
    assert given[: len(words)] == list(words), "An example is one of its own command."
    depth = max(len(known) for known in ALL if tuple(given[: len(known)]) == known)
    context = ROOT.make_context("maskjet", given[:0] or ["--"], resilient_parsing=True)
    command = ALL[tuple(given[:depth])]
    parsed = command.make_context(" ".join(given[:depth]), given[depth:], parent=context)
    assert not parsed.args
    assert not hasattr(command, "commands")


# Names of files in examples, small and in a folder of their own.
SMALL = {"--size": "160x96", "--input-size": "80x80", "--frames": "4", "--images": "2", "--count": "2", "--start": "1"}
NEEDS = ("rf-detr-seg-nano", "--annotations", "--ray", "quantize", "rtsp:")
"""What examples need that tests lack: weights, a data set, a cluster, forty images, cameras."""


def shortened(words):
    """An example with small numbers instead of its own."""
    small = {name: value for name, value in SMALL.items() if name != "--images" or "traffic" in words}
    short = [small.get(before, word) for before, word in zip(["", *words[:-1]], words, strict=True)]
    command = " ".join(words[1:3])
    for known, flags in {
        "traffic video": ("--size", "--frames"),
        "traffic coco": ("--size", "--images"),
        "bench": ("--frames",),
        "export": ("--input-size",),
    }.items():
        if command.startswith(known):
            short += [each for flag in flags if flag not in words for each in (flag, SMALL[flag])]
    return short


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_every_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in {"_BUDGET_S": 0.05, "_RUNS": 1}.items():
        monkeypatch.setattr(speed, name, value)
    (tmp_path / "videos" / "day1").mkdir(parents=True)
    for path in ("videos/a.mp4", "videos/day1/b.mp4"):
        traffic.write_video(tmp_path / path, size_hw=(96, 160), frames=3)
    traffic.write_coco(tmp_path / "frames", images=2, size_hw=(96, 160))
    (tmp_path / "frames" / "images" / "000000.jpg").rename(tmp_path / "frames" / "a.jpg")
    makes = {("traffic",): 0, ("traffic", "coco"): 0, ("traffic", "video"): 0, ("run",): 1}
    for command, line in sorted(EXAMPLES, key=lambda each: makes.get(each[0], 2)):
        if command == ("serve",) or any(name in line for name in NEEDS):  # serving does not end by itself
            continue
        words = shortened(shlex.split(line))
        code, _, err = call(capsys, *words)
        assert code == 0 or (words[2] == "gate" and code == 1), (words, err)


@pytest.mark.parametrize("line", ["run --track", "job run nothing --track"])
def test_a_flag_is_one_whatever_values_another_command_lets_it_have(line, capsys):
    _, _, err = call(capsys, "maskjet", *line.split())
    assert "--track" not in err
    assert "track must be" not in err

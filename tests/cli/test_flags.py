"""Errors name flags on the command line, and arguments in Python."""

import inspect

import pytest
import typer

from maskjet.cli.flags import add_command, in_flags
from maskjet.errors import InputError
from tests.cli.test_help import ALL


def test_options_are_keyword_only_and_have_the_names_of_their_flags():
    for command in (each for each in ALL.values() if not hasattr(each, "commands")):
        parameters = inspect.signature(command.callback).parameters.values()
        flags = {param.name: max(param.opts, key=len) for param in command.params if param.param_type_name == "option"}
        names = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
        assert names == {*flags} - {"help"}
        assert all(flags[name] == f"--{name.removeprefix('as_').replace('_', '-')}" for name in names)


@pytest.mark.parametrize(
    ("message", "argument", "named"),
    [
        ("line_width must be 1.", "line_width", "--line-width"),
        ("line_width='cuda' is not here.", "line_width", "--line-width"),
        ("line_width must be 1\nmaskjet: line_width must be", "line_width", "--line-width"),
        ("source must exist, 'a' does not.", "source", "source"),
        ("image must be whole.", "image", "image"),
        ("size_hw must be 1.", "size_hw", "--size"),
        ("weights must be the path, got None; none.", "weights", "--weights"),
        ("weights must be a file, got 'a', which is none.", "weights", "weights"),
        ("'/tmp/size=3/line_width=2.mp4' can't be read", None, ""),
    ],
)
def test_messages_begin_with_the_flag(message, argument, named):
    def command(source, *, line_width, size, weights): ...

    error = InputError(message)
    assert error.argument == argument
    add_command(typer.Typer(), "")(command)(source="a", line_width=1.0, size="big", weights=None)
    assert in_flags(error) == named + message.removeprefix(argument or "")


def test_advice_and_several_names_at_once_are_flags():
    def command(*, coco, jsonl_lines, incomplete): ...

    add_command(typer.Typer(), "")(command)(coco=None, jsonl_lines=None, incomplete=False)
    for message, expected in {
        "out must be whole: or incomplete=True.": "out must be whole: or --incomplete.",
        "a must be b: use coco='x' with d=1.": "a must be b: use --coco='x' with d=1.",
        "a must be b, got ' coco=x '.": "a must be b, got ' coco=x '.",
        "coco or jsonl_lines must be a path.": "--coco or --jsonl-lines must be a path.",
    }.items():
        assert in_flags(InputError(message)) == expected


WRONG = [  # a command, its argument, and values that its options don't take
    ("run", "CLIP", "out=a.text threshold=x classes=cow every=0 start=x limit=0 line_width=0 color_by=mood device=tpu"),
    ("run", "CLIP", "precision=fp8 engine=x depth=9 implementation=x resample=x max_detections=0 batch=0 model=dmo"),
    ("run", "CLIP", "mask_pixels=x"),
    ("bench", "CLIP", "frames=0 device=tpu precision=x model=dmo"),
    ("val", "set", "map=x threshold=x device=tpu precision=x model=dmo"),
    ("info", "", "model=dmo"),
    ("traffic video", "v.mp4", "size=big frames=0 density=-1 seed=-1"),
    ("traffic coco", "set", "size=big images=0 seed=-1"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("command", "argument", "wrong"), [(*of, each) for *of, options in WRONG for each in options.split()]
)
def test_what_is_wrong_is_named_by_its_flag(command, argument, wrong, tmp_path, monkeypatch, maskjet, clip):
    monkeypatch.chdir(tmp_path)
    name, value = wrong.split("=")
    flag = next(max(param.opts, key=len) for param in ALL[tuple(command.split())].params if param.name == name)
    out = ["--out", "a.jsonl"] if command == "run" and name != "out" else []
    words = argument.replace("CLIP", str(clip)).split()
    code, _, err = maskjet(command, *words, *out, f"{flag}={value}")
    assert code in (2, 3), err
    assert err.count("\n") == 1
    assert flag in err.partition(", got")[0], err

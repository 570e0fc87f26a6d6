"""Errors name flags on the command line, and arguments in Python."""

import inspect

import pytest
import typer

from maskjet.cli.flags import add_command, in_flags
from maskjet.errors import InputError
from tests.cli.test_help import ALL


def test_options_are_keyword_only_and_their_names_are_the_flags():
    for words, command in ALL.items():
        parameters = inspect.signature(command.callback).parameters if words and command.callback else {}
        for param in command.params:
            if param.name in parameters:
                is_option = param.param_type_name == "option"
                kind = parameters[param.name].kind
                assert (kind is inspect.Parameter.KEYWORD_ONLY) == is_option, (words, param.name)
                name = "json" if param.name == "as_json" else param.name.replace("_", "-")
                assert not is_option or f"--{name}" in param.opts, (words, param.name)


@pytest.mark.parametrize(
    ("message", "argument", "expected"),
    [
        ("line_width must be 1.", "line_width", "--line-width must be 1."),
        (
            "line_width='cuda' is not here: use line_width=1.",
            "line_width",
            "--line-width='cuda' is not here: use line_width=1.",
        ),
        ("source must exist, 'a' does not.", "source", "source must exist, 'a' does not."),
        ("image must be whole.", "image", "image must be whole."),
        ("size_hw must be 1.", "size_hw", "--size must be 1."),
        ("weights must be the path, got None; none.", "weights", "--weights must be the path, got None; none."),
        (
            "weights must be a file, got 'a', which is none.",
            "weights",
            "weights must be a file, got 'a', which is none.",
        ),
        ("'/tmp/size=3/line_width=2.mp4' can't be read", None, "'/tmp/size=3/line_width=2.mp4' can't be read"),
        ("line_width must be 1\nmaskjet: b", "line_width", "--line-width must be 1\nmaskjet: b"),
        ("The size must be 1.", None, "The size must be 1."),
    ],
)
def test_messages(message, argument, expected):
    def command(source, *, line_width=1.0, size="big", weights=None): ...

    error = InputError(message)
    assert error.argument == argument
    add_command(typer.Typer(), "")(command)(source="a", line_width=1.0, size="big", weights=None)
    assert in_flags(error) == expected


WRONG = [  # a command, its argument, and values that its options don't take
    ("run", "CLIP", "out=a.txt threshold=x classes=cow every=0 start=x limit=0 line_width=0 color_by=mood device=tpu"),
    ("run", "CLIP", "precision=fp8 engine=x depth=9 implementation=x resample=x max_detections=0 batch=0 model=dmo"),
    ("bench", "CLIP", "frames=0 device=tpu precision=x model=dmo"),
    ("info", "", "model=dmo"),
    ("traffic video", "v.mp4", "size=big frames=0 density=-1 seed=-1"),
    ("traffic coco", "set", "size=big images=0 annotations=x seed=-1"),
    ("parity dump", "d.npz", "images=nowhere coco_dir=nowhere count=0 size=x threshold=2 depth=0 batch=0 seed=-1"),
    ("parity dump", "d.npz", "model=dmo precision=x"),
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

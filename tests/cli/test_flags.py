"""Errors name flags on the command line, and arguments in Python."""

import pytest

from maskjet.cli.flags import flags_of, translate
from tests.cli.test_help import ALL

NOT_GIVEN = ("weights", "limit")
RUN = flags_of(ALL[("run",)].params, {param.name: 1 for param in ALL[("run",)].params if param.name not in NOT_GIVEN})
OPTIONS = [
    (words, param)
    for words, command in ALL.items()
    for param in command.params
    if param.param_type_name == "option" and param.expose_value
]


def test_every_option_is_named_by_its_flag():
    for words, param in OPTIONS:
        flags, flag = flags_of(ALL[words].params, {param.name: 1}), max(param.opts, key=len)
        assert flag.startswith("--")
        assert translate(f"{param.name} must be at least 1, got 0.", flags) == f"{flag} must be at least 1, got 0."
        assert translate(f"use {param.name}=5 instead.", flags).startswith(f"use {flag}")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("out must be a path, got ''.", "--out must be a path, got ''."),
        ("source must exist, 'a' does not.", "source must exist, 'a' does not."),
        ("image must be whole.", "image must be whole."),
        ("device='cuda:7' is not here: use device='cpu'.", "--device cuda:7 is not here: use --device cpu."),
        ("nvtx=True needs a GPU.", "--nvtx needs a GPU."),
        ("compile=True does it, compile=False does not.", "--compile does it, --no-compile does not."),
        ("drop_late must be False for 'a'.", "--drop-late must not be given for 'a'."),
        ("weights must be the path, got None; none.", "--weights must be the path, it is not given; none."),
        ("weights must be a file, got 'a', which is none.", "weights must be a file, got 'a', which is none."),
        ("precision must be one of ('auto', 'fp32'), got 'x'.", "--precision must be one of auto, fp32, got 'x'."),
        ("Name it: maskjet.load(NAME, weights=PATH).", "Name it: --model NAME --weights PATH."),
        ("got 6; load(max_detections=...) sets the most.", "got 6; --max-detections sets the most."),
        ("'/tmp/device=3/every=2.mp4' can't be read", "'/tmp/device=3/every=2.mp4' can't be read"),
        ("/tmp/device=3/a.mp4 is bad", "/tmp/device=3/a.mp4 is bad"),
        ("out must be a path, it is rfdetr's; every=2 isn't", "--out must be a path, it is rfdetr's; --every 2 isn't"),
        ("every must be 1\nmaskjet: b", "--every must be 1\nmaskjet: b"),
    ],
)
def test_messages(message, expected):
    assert translate(message, RUN) == expected


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

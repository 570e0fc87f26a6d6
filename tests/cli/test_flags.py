"""Errors name flags on the command line, and arguments in Python."""

import pytest

from maskjet.cli.flags import flags_of, translate
from tests.cli.command_line import call
from tests.cli.test_help import ALL

NOT_GIVEN = ("weights", "limit")
RUN = flags_of(ALL[("run",)].params, {param.name: 1 for param in ALL[("run",)].params if param.name not in NOT_GIVEN})
OPTIONS = [
    (words, param)
    for words, command in ALL.items()
    for param in command.params
    if param.param_type_name == "option" and param.expose_value
]


@pytest.mark.parametrize(("words", "param"), OPTIONS, ids=[f"{' '.join(w)} {p.name}" for w, p in OPTIONS])
def test_every_option_is_named_by_its_flag(words, param):
    flags = flags_of(ALL[words].params, {param.name: 1})
    told = translate(f"{param.name} must be at least 1, got 0.", flags)
    assert told == f"{max(param.opts, key=len)} must be at least 1, got 0."
    assert max(param.opts, key=len).startswith("--")
    assert translate(f"use {param.name}=5 instead.", flags).startswith(f"use {max(param.opts, key=len)}")


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
        (
            "weights must be the path of a file, got None; none.",
            "--weights must be the path of a file, it is not given; none.",
        ),
        (
            "weights must be a file, got 'a.pt', which is a folder.",
            "weights must be a file, got 'a.pt', which is a folder.",
        ),
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


WRONG = {
    "run": {
        "out": "a.txt",
        "threshold": "x",
        "classes": "cow",
        "every": "0",
        "start": "x",
        "limit": "0",
        "line_width": "0",
        "color_by": "mood",
        "device": "tpu",
        "precision": "fp8",
        "engine": "x",
        "depth": "9",
        "implementation": "x",
        "resample": "x",
        "max_detections": "0",
        "batch": "0",
        "model": "dmo",
    },
    "bench": {"frames": "0", "device": "tpu", "precision": "x", "model": "dmo"},
    "info": {"model": "dmo"},
    "traffic video": {"size": "big", "frames": "0", "density": "-1", "seed": "-1"},
    "traffic coco": {"size": "big", "images": "0", "annotations": "x", "seed": "-1"},
    "parity dump": {
        "images": "nowhere",
        "coco_dir": "nowhere",
        "count": "0",
        "size": "x",
        "threshold": "2",
        "depth": "0",
        "batch": "0",
        "seed": "-1",
        "model": "dmo",
        "precision": "x",
    },
}
POSITIONAL = {
    "run": ["CLIP"],
    "bench": ["CLIP"],
    "traffic video": ["v.mp4"],
    "traffic coco": ["set"],
    "parity dump": ["d.npz"],
}


@pytest.mark.parametrize(
    ("command", "name", "value"),
    [(command, *wrong) for command, each in WRONG.items() for wrong in each.items()],
)
def test_what_is_wrong_is_named_by_its_flag(command, name, value, tmp_path, monkeypatch, capsys, clip):
    monkeypatch.chdir(tmp_path)
    words = command.split()
    flag = next(max(p.opts, key=len) for p in ALL[tuple(words)].params if p.name == name)
    given = [str(clip) if word == "CLIP" else word for word in POSITIONAL.get(command, ())]
    out = ["--out", "a.jsonl"] if command == "run" and name != "out" else []
    code, _, err = call(capsys, "maskjet", *words, *given, *out, f"{flag}={value}")
    assert code in (2, 3), err
    assert err.count("\n") == 1
    assert flag in err.partition(", got")[0], err

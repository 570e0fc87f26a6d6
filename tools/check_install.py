"""Try what the base install promises: every module, every command, its help, and one sentence for each missing extra.

    python tools/check_install.py

runs in the environment that maskjet is installed in; `make check-install` makes one from the pinned lock and a wheel.
With --demo FOLDER, what `make demo`'s commands wrote there is looked at, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SMALL = ("--size", "160x96")
COMMANDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "warm": (("demo",), ""),
    "traffic video": (("street.mp4", *SMALL, "--frames", "4"), ""),
    "traffic coco": (("set", *SMALL, "--images", "2"), ""),
    "info": (("--model", "demo"), ""),
    "run": (("street.mp4", "--out", "a.mp4", "--out", "a.jsonl", "--out", "a.json", "--out", "pictures"), ""),
    "run (frames and outputs)": (
        ("street.mp4", "-o", "a.webm", "-o", "a.csv", "-o", "a.yolo", "--every", "2", "--start", "1", "--limit", "1"),
        "",
    ),
    "run (a folder)": (("set", "--recursive", "-o", "found", "--no-boxes", "--threshold", "car=0.4"), ""),
    "run (torchvision)": (
        ("street.mp4", "-o", "a.csv", "--model", "torchvision:maskrcnn_resnet50_fpn", "--weights", "a.pth"),
        r'a model of torchvision\'s needs torchvision: pip install "maskjet\[torchvision\]"',
    ),
    "bench": (("street.mp4", "--frames", "3"), ""),
    "val": (("set", "--out", "scores"), r'COCO mAP needs hotcoco: pip install "maskjet\[coco\]"'),
    "export": (("demo", "--out", "demo.onnx"), r'maskjet export needs onnx-ir: pip install "maskjet\[onnx\]"'),
    "quantize": (
        ("demo", "--images", "set", "--out", "demo.xml"),
        r'maskjet quantize needs \w+: pip install "maskjet\[quantize\]"',
    ),
    "serve": (("--port", "0"), r'maskjet serve needs fastapi: pip install "maskjet\[serve\]"'),
    "job run": (("street.mp4", "--out", "results"), r'maskjet\.jobs needs pyarrow: pip install "maskjet\[jobs\]"'),
    "job run (Ray)": (
        ("street.mp4", "--out", "results", "--ray", "auto"),
        r'--ray needs ray: pip install "maskjet\[ray\]"',
    ),
    "job merge": (("results", "--jsonl", "a.jsonl"), r'maskjet\.jobs needs pyarrow: pip install "maskjet\[jobs\]"'),
    "run (a record)": (("set/images", "--record", "-o", "one.jsonl"), ""),
    "run (another)": (("set/images", "--record", "-o", "two.jsonl", "--implementation", "reference"), ""),
    "parity gate": (
        ("one.jsonl", "two.jsonl", "--max-unmatched", "1", "--images", "set/images", "--report", "page.html"),
        "",
    ),
    "parity gate (scores)": (
        ("one.jsonl", "two.jsonl", "--check", "--annotations", "set"),
        r'COCO mAP needs hotcoco: pip install "maskjet\[coco\]"',
    ),
}
"""Name, with a remark where a command is tried twice, to arguments and the error that a base install answers with."""
# Packages that ask for their extras before they import their modules.
_ASKED_FOR = ("maskjet.export.onnx_rewrites.", "maskjet.export.", "maskjet.quantization.", "maskjet.serve.")
_NEEDS_EXTRA = re.compile(r"^.+ needs .+: pip install \"maskjet\[\w+\]\"\.$")


def check_help() -> None:
    """Every command helps, and is tried below; none of it loads PyTorch."""
    import typer

    from maskjet.cli.app import app

    names = set(_command_names(typer.main.get_command(app)))
    tried = {re.sub(r" (--|\().*", "", name) for name in COMMANDS}
    assert names == tried, f"COMMANDS must try every command: {names ^ tried} differ."
    for name in sorted(names):
        code, out, err = run(*name.split(), "-h")
        assert (code, err) == (0, ""), (name, code, err)
        assert f"maskjet {name} " in out.splitlines()[1], (name, out)
    assert run("--version")[1].startswith("maskjet "), run("--version")
    assert "torch" not in sys.modules, "Help must not load PyTorch."


def _command_names(command: Any, prefix: str = "") -> Iterator[str]:
    for name, inner in command.commands.items():
        if hasattr(inner, "commands"):
            yield from _command_names(inner, f"{prefix}{name} ")
        else:
            yield prefix + name


def check_commands() -> None:
    """Every command does its work, or says in one line which extra it needs."""
    for name, (arguments, refusal) in COMMANDS.items():
        code, _, err = run(*re.sub(r" (--|\().*", "", name).split(), *arguments)
        if not refusal:
            assert code == 0, (name, code, err)
            continue
        assert code == 2, (name, code, err)
        assert err.count("\n") == 1, (name, err)
        assert re.search(refusal, err), (name, err)


def check_modules() -> None:
    """Every module can be imported, or says which extra it needs; so does what `maskjet` offers."""
    import maskjet

    for name in maskjet.__all__:
        assert getattr(maskjet, name) is not None
    for module in pkgutil.walk_packages(maskjet.__path__, "maskjet.", onerror=lambda _: None):
        if module.name.endswith(".__main__"):
            continue
        refusal = _refusal(lambda name=module.name: importlib.import_module(name))
        assert not refusal or _NEEDS_EXTRA.match(refusal) or module.name.startswith(_ASKED_FOR), (module.name, refusal)


def check_functions() -> None:
    """What needs an extra in Python says so, too."""
    import maskjet

    image = maskjet.traffic.sample(seed=3).image
    found = maskjet.load("demo", device="cpu").predict(image)
    assert len(found) > 0
    for function in (found.to_supervision, found.to_pandas, lambda: maskjet.rewrites.optimize_onnx("a.onnx")):
        assert _NEEDS_EXTRA.match(_refusal(function)), function


def _refusal(function: Callable[[], object]) -> str:
    try:
        function()
    except ImportError as error:
        return str(error)
    return ""


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line within this process; an exception is a traceback and code 1."""
    from maskjet.cli.main import main

    sys.argv = ["maskjet", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return code, out.getvalue(), err.getvalue()


def check_demo(folder: Path) -> None:
    """The demo has a frame in the video and a line of JSON for each frame of the street, and found something."""
    import maskjet.sources.frames

    assert Path(maskjet.__file__).is_relative_to(sys.prefix), f"{maskjet.__file__} must lie in {sys.prefix}."
    street, video = (list(maskjet.open_source(folder / name)) for name in ("street.mp4", "demo.mp4"))
    lines = [json.loads(line) for line in (folder / "demo.jsonl").read_text().splitlines()]
    assert len(street) == len(video) == len(lines) > 0, (len(street), len(video), len(lines))
    assert [line["index"] for line in lines] == list(range(len(lines)))
    assert all(frame.image.shape == street[0].image.shape for frame in video)
    found = sum(len(line["detections"]) for line in lines)
    assert found > len(lines), f"The demo must find more than {len(lines)} things, it found {found}."


def main() -> None:
    """Check everything; the first thing that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, help="a folder that the demo was run in")
    options = parser.parse_args()
    demo = options.demo and options.demo.resolve()
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for check in (check_help, check_commands, check_modules, check_functions):
            check()
            print(f"{check.__name__}: passed")
    if demo is not None:
        check_demo(demo)
        print("check_demo: passed")


if __name__ == "__main__":
    main()

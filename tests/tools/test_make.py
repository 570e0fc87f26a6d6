"""The Python that make takes for an environment: the first promised one, or none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
version="{}"
case "$1" in
    --version) echo "Python $version" ;;
    -c) newest=$(echo "$2" | sed 's/.*(3, \\([0-9]*\\)))$/\\1/'); minor=${{version#3.}}
        [ "${{version%%.*}}" = 3 ] && [ "$minor" -ge 11 ] && [ "$minor" -le "$newest" ] ;;
    -m) mkdir -p "$3/bin" && echo "$version" >"$3/bin/python" ;;
esac
"""


def make(folder, pythons, *given):
    """Run make in a folder whose path has a space, with these versions on PATH; returns its result."""
    for name, version in pythons.items():
        path = folder / "on path" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(PYTHON.format(version))
        path.chmod(0o755)
    for tool in ("sh", "make", "sed", "mkdir", "head"):
        (folder / "on path" / tool).symlink_to(shutil.which(tool))
    # Not those of the make that runs the tests.
    own = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHON" and not name.startswith(("MAKE", "MFLAGS"))
    }
    return subprocess.run(
        ["make", "--file", str(ROOT / "Makefile"), ".venv/bin/python", *given],
        cwd=folder,
        env={**own, "PATH": str(folder / "on path")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": "3.12", "python3.13": "3.13"}, "3.12"),
        ({"python3": "3.10", "python3.11": "3.11", "python3.12": "3.12"}, "3.12"),
        ({"python3": "3.14", "python3.11": "3.11"}, "3.11"),
        ({"python3": "3.14"}, "3.14"),
    ],
)
def test_the_first_promised_python_is_taken_and_else_an_untried_one(tmp_path, pythons, taken):
    done = make(tmp_path, pythons)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / ".venv/bin/python").read_text() == f"{taken}\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "PYTHON must be Python 3.11 to 3.14, got 'python3' (Python 3.15)"),
        (("PYTHON=on path/old",), "PYTHON must be Python 3.11 to 3.14, got 'on path/old' (Python 2.7)"),
    ],
)
def test_others_are_refused_in_one_line(tmp_path, given, said):
    done = make(tmp_path, {"python3": "3.15", "old": "2.7"}, *given)
    line, _ = done.stderr.splitlines()  # make adds one
    assert line == f"{said}; write: make .venv/bin/python PYTHON=/path/to/python3.13"
    assert not (tmp_path / ".venv").exists()

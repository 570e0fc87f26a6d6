"""Completion in a shell, as the script that --show-completion prints asks for it."""

import os
import shlex
import subprocess
import sys

import pytest

from maskjet.spec import SPECS, TORCHVISION_NAMES

# Says on stderr whether PyTorch was loaded: completion must be as fast as help.
PROGRAM = (
    "import atexit, sys; sys.argv[0] = 'maskjet'\n"
    "atexit.register(lambda: 'torch' in sys.modules and sys.stderr.write('torch'))\n"
    "from maskjet.cli.main import main; main()"
)


def ask(*arguments, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("maskjet pa", ["parity"]),
        ("maskjet parity g", ["gate"]),
        ("maskjet run --skip", ["--skip-existing"]),
        ("maskjet run --model rf-detr-seg", [name for name in SPECS if name.startswith("rf-detr-seg")]),
        ("maskjet info --model torchvision", list(TORCHVISION_NAMES)),
        ("maskjet run --precision f", ["fp32", "fp16"]),
        ("maskjet run --color-by ", ["class", "instance"]),
        ("maskjet run --model ./my", []),  # then the shell completes files
    ],
)
def test_bash_is_told(line, expected):
    words = line.split(" ")
    answer = ask(_MASKJET_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert answer.split() == expected


def test_the_script_is_that_of_the_shell():
    command = f"{shlex.join([sys.executable, '-c', PROGRAM, '--show-completion'])}; exit $?"  # not in the shell's place
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_MASKJET_COMPLETE=complete_bash" in done.stdout

"""Completion in a shell, as the script that --show-completion prints asks for it."""

import os
import shlex
import subprocess
import sys

from maskjet.spec import SPECS, TORCHVISION_NAMES

# Says on stderr whether PyTorch was loaded: completion must be as fast as help.
PROGRAM = """
import atexit, sys; sys.argv[0] = 'maskjet'
atexit.register(lambda: 'torch' in sys.modules and sys.stderr.write('torch'))
from maskjet.cli.main import main
"""
COMPLETIONS = {
    "maskjet pa": ["parity"],
    "maskjet parity g": ["gate"],
    "maskjet run --side": ["--side-by-side"],
    "maskjet run --model rf-detr-seg": [name for name in SPECS if name.startswith("rf-detr-seg")],
    "maskjet info --model torchvision": list(TORCHVISION_NAMES),
    "maskjet run --precision f": ["fp32", "fp16"],
    "maskjet run --color-by ": ["class", "instance"],
    "maskjet run --model ./my": [],  # then the shell completes files
}


def test_bash_is_told():
    """One process answers all, each as if it had been asked alone."""
    program = f"""{PROGRAM}
import contextlib, os
for line in {list(COMPLETIONS)}:
    os.environ |= {{"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}}
    with contextlib.suppress(SystemExit):
        main()
    print("----")
"""
    environment = {**os.environ, "_MASKJET_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = [answer.split() for answer in done.stdout.split("----")[:-1]]
    assert dict(zip(COMPLETIONS, answers, strict=True)) == COMPLETIONS


def test_the_script_is_that_of_the_shell():
    program = f"{PROGRAM}main()"
    command = f"{shlex.join([sys.executable, '-c', program, '--show-completion'])}; exit $?"  # not in the shell's place
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_MASKJET_COMPLETE=complete_bash" in done.stdout

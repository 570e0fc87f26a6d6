"""The base install: what it promises, tried where packages that its lock does not name are hidden."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.txt"


@pytest.mark.slow
def test_the_base_install_keeps_its_promises():
    command = [sys.executable, ROOT / "tools" / "check_install.py", "--base", LOCK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed") == 4


def test_what_the_lock_does_not_name_is_hidden():
    program = (
        "import importlib.util, sys\n"
        "from pathlib import Path\n"
        "from tools.check_install import hide_extras\n"
        "hide_extras(Path(sys.argv[1]))\n"
        "found = [importlib.util.find_spec(name) is not None for name in ('torchvision', 'rfdetr', 'PIL', 'numpy')]\n"
        "assert found == [False, False, False, True], found\n"
    )
    subprocess.run([sys.executable, "-c", program, LOCK], cwd=ROOT, check=True, timeout=120)

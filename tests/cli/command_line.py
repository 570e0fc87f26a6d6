"""The command line within the process of a test."""

import sys

import pytest

from maskjet.cli.main import main


def call(capsys, *arguments, start=main):
    """Exit code, stdout, stderr of a program, whose name comes first."""
    sys.argv = [*map(str, arguments)]
    with pytest.raises(SystemExit) as exit_info:
        start()
    return exit_info.value.code, *capsys.readouterr()

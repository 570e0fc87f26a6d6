"""The command line within the process of a test."""

import sys
from unittest import mock

import pytest

from maskjet.cli.main import main


def call(capsys, *arguments, start=main):
    """Exit code, stdout, stderr of a program, whose name comes first."""
    sys.argv = [*map(str, arguments)]
    # Under python -m pytest the program would be called by that name.
    with mock.patch.object(sys.modules["__main__"], "__package__", None), pytest.raises(SystemExit) as exit_info:
        start()
    return exit_info.value.code, *capsys.readouterr()

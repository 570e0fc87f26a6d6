"""A clip for the command line, and runs without what takes most of their time."""

from contextlib import nullcontext

import pytest

from maskjet import traffic
from tests.cli.command_line import call


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=6, seed=2)
    return path


@pytest.fixture
def maskjet(capsys):
    """Exit code, stdout, stderr of the command line within this process, for a line of words and more words."""
    return lambda line, *words: call(capsys, "maskjet", *line.split(), *words)


@pytest.fixture
def quick(monkeypatch):
    """The demo model's input has a ninth of its pixels, and what all tests have left in memory is not collected.

    For tests of what becomes of frames; a test of what is found asks for the input that the model was trained on.
    """
    monkeypatch.setenv("MASKJET_INPUT_SIZE", "80x80")
    monkeypatch.setattr("maskjet.host.process.garbage_frozen", nullcontext)

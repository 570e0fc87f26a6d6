"""One job in a local folder at a time."""

import os
import signal
import subprocess
import sys

import pytest

from maskjet.errors import OutputError
from maskjet.jobs.folders import LOCK, Folder

HOLDING = """
import sys
from maskjet.jobs.folders import Folder

with Folder(sys.argv[1]).lock():
    print(1, flush=True)
    input()
"""


def test_two_drivers_do_not_share_a_folder(tmp_path):
    folder = Folder(str(tmp_path))
    used = f"out must not be in use, .*: process '{os.getpid()} on .*' works on it"
    with folder.lock(), pytest.raises(OutputError, match=used), folder.lock():
        pass
    with folder.lock():
        pass


@pytest.mark.slow
def test_the_lock_ends_with_its_process(tmp_path):
    folder, pipe = Folder(str(tmp_path)), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDING, tmp_path], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "1\n"
        with pytest.raises(OutputError, match=f"process '{other.pid} on"), folder.lock():
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with folder.lock():
        pass


def test_a_folder_that_cannot_be_made_and_a_lock_that_says_nothing(tmp_path):
    folder = Folder(str(tmp_path))
    with folder.lock():
        (tmp_path / LOCK).write_bytes(b"\xff\n" * 1000)
        with pytest.raises(OutputError, match=r"is: process '\ufffd.{1,300}' works on it"), folder.lock():
            pass
    below = Folder(str(tmp_path / LOCK / "out"))
    with pytest.raises(OutputError, match=rf"out must be writable, .*{LOCK}/out' is not"), below.lock():
        pass

"""One job in a local folder at a time; in a store a later one takes over."""

import os
import signal
import subprocess
import sys

import pytest

from maskjet.errors import OutputError
from maskjet.jobs.folders import LOCK, Folder
from maskjet.jobs.work import Worker, parse_answer
from tests.jobs.making import run_driver
from tests.jobs.test_job import contents

HOLDING = """
import sys
from maskjet.jobs.folders import Folder

with Folder(sys.argv[1]).lock(""):
    print(1, flush=True)
    input()
"""


def test_two_drivers_do_not_share_a_folder(tmp_path):
    folder = Folder(str(tmp_path))
    used = f"out must not be in use, .*: process '{os.getpid()} on .*' works on it"
    with folder.lock(""), pytest.raises(OutputError, match=used), folder.lock(""):
        pass
    with folder.lock(""):
        pass


@pytest.mark.slow
def test_the_lock_ends_with_its_process(tmp_path):
    folder, pipe = Folder(str(tmp_path)), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDING, tmp_path], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "1\n"
        with pytest.raises(OutputError, match=f"process '{other.pid} on"), folder.lock(""):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with folder.lock(""):
        pass


def test_a_folder_that_cannot_be_made_and_a_lock_that_says_nothing(tmp_path):
    folder = Folder(str(tmp_path))
    with folder.lock(""):
        (tmp_path / LOCK).write_bytes(b"\xff\n" * 1000)
        with pytest.raises(OutputError, match=r"is: process '\ufffd.{1,300}' works on it"), folder.lock(""):
            pass
    below = Folder(str(tmp_path / LOCK / "out"))
    with pytest.raises(OutputError, match=rf"out must be writable, .*{LOCK}/out' is not"), below.lock(""):
        pass


class Here:
    """A worker in this process; before its second segment `between` is called once."""

    def __init__(self, orders, between=lambda: None):
        self._worker, self._between = Worker({**orders, "device": "cpu", "streams": 1}), between

    def run(self, tasks, _stop):
        for number, (part, segment) in enumerate(filter(None, tasks)):
            if number == 1:
                self._between()
            yield parse_answer(self._worker.answer(part, segment, is_again=False))


@pytest.mark.slow
def test_a_later_job_in_a_store_takes_over(streets, whole, remote_out):
    def take_over():
        later.append(run_driver(streets, remote_out, Here))

    later = []
    with pytest.raises(OutputError, match="a later job works on it"):
        run_driver(streets, remote_out, lambda orders: Here(orders, take_over))
    assert (later[0].done, later[0].skipped, later[0].failures) == (8, 1, 1)
    assert contents(remote_out).keys() == contents(whole).keys()
    (failure,) = Folder(str(whole)).read("failures.jsonl").splitlines()
    assert Folder(remote_out).read("failures.jsonl").splitlines() == [failure]

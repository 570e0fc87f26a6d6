"""One job in a folder at a time, on this machine and in a store."""

import json
import os
import signal
import subprocess
import sys

import pytest

from maskjet.errors import OutputError
from maskjet.jobs import locks
from maskjet.jobs.folders import LocalFolder, open_folder
from maskjet.jobs.locks import LOCK, locked
from tests.waiting import until

HOLDING = """
import sys
from contextlib import ExitStack
from maskjet.jobs import locks
from maskjet.jobs.folders import open_folder

locks.BEAT_S, locks._SETTLE_S = 0.1, 0.02
with ExitStack() as stack:
    for out in sys.argv[1:]:
        stack.enter_context(locks.locked(open_folder(out)))
    print(1, flush=True)
    input()
"""


pytestmark = pytest.mark.usefixtures("quick_leases")


@pytest.fixture
def folder(any_out):
    return open_folder(any_out)


@pytest.fixture
def remote(remote_out):
    return open_folder(remote_out)


def lease(**other):
    """The lease of a driver that is not there, or no longer."""
    owner = {"id": "0" * 32, "pid": 1, "host": "elsewhere", "machine": "another", "beat": 7}
    return json.dumps({**owner, **other}).encode()


def test_two_drivers_do_not_share_a_folder(folder):
    with (
        locked(folder) as check,
        pytest.raises(OutputError, match=f"out must not be in use, .*: process {os.getpid()} on "),
        locked(folder),
    ):
        check()
    with locked(folder):
        pass


@pytest.mark.slow
def test_the_lock_ends_with_its_process(tmp_path, remote_out):
    folders = [open_folder(out) for out in (str(tmp_path), remote_out)]
    command, pipe = [sys.executable, "-c", HOLDING, tmp_path, remote_out], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout.readline() == "1\n"
        for folder in folders:
            with pytest.raises(OutputError, match=f"process {other.pid} on"), locked(folder):
                pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    for folder in folders:
        with locked(folder):
            pass


def test_a_folder_that_cannot_be_made_and_a_lock_that_says_nothing(tmp_path):
    folder = LocalFolder(str(tmp_path))
    with locked(folder):
        (tmp_path / LOCK).write_text("[]")
        with pytest.raises(OutputError, match="is: another process works on it"), locked(folder):
            pass
    below = LocalFolder(str(tmp_path / LOCK / "out"))
    with pytest.raises(OutputError, match=rf"out must be writable, .*{LOCK}/out' is not"), locked(below):
        pass


@pytest.mark.parametrize(
    "other",
    [
        *({}, {"pid": "x"}, {"machine": None}, b"", b"no json", b"[]", b"\xff"),
        {"machine": locks._this_machine(), "pid": 1},  # a process that runs, though it is no driver
    ],
)
def test_a_lease_that_stays_as_it_is_ends(remote, monkeypatch, other):
    monkeypatch.setattr(locks, "_MISSED", 2)
    remote.write(LOCK, other if isinstance(other, bytes) else lease(**other))
    with locked(remote) as check:
        assert json.loads(remote.read(LOCK))["pid"] == os.getpid()
        check()
    assert remote.read(LOCK) is None


def test_a_lease_of_a_process_of_this_machine_that_ended_is_taken_at_once(remote):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    remote.write(LOCK, lease(machine=locks._this_machine(), pid=ended.pid))
    with locked(remote):
        pass


def test_a_lease_that_changes_is_somebody_s(remote, monkeypatch):
    remote.write(LOCK, lease(beat=7))
    monkeypatch.setattr(locks.time, "sleep", lambda _: remote.write(LOCK, lease(beat=8)))
    with pytest.raises(OutputError, match="process 1 on 'elsewhere' works on it"), locked(remote):
        pass


def test_a_driver_whose_lease_was_taken_is_told_and_leaves_it_to_the_other(remote):
    def is_told():
        remote.write(LOCK, lease())  # again and again, as the driver may renew its own meanwhile
        try:
            check()
        except OutputError as error:
            return error
        return None

    with locked(remote) as check:
        check()
        assert "process 1 on 'elsewhere' works on it" in str(until(is_told))
    assert json.loads(remote.read(LOCK))["host"] == "elsewhere"


def test_of_two_of_which_one_overwrites_the_others_lease_one_stays(remote):
    one, other = locks._Lease(remote), locks._Lease(remote)
    one._write(0)
    one._check_owner()
    other._write(0)
    one._write(1)  # it was paused since it has looked
    one._check_owner()
    with pytest.raises(OutputError, match=f"process {os.getpid()} on .* works on it"):
        other._check_owner()


def test_of_two_that_begin_at_once_the_first_to_write_gives_way(remote, monkeypatch):
    monkeypatch.setattr(locks.time, "sleep", lambda _: remote.write(LOCK, lease()))
    with pytest.raises(OutputError, match="process 1 on 'elsewhere' works on it"), locked(remote):
        pass

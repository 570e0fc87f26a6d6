"""One job in a folder at a time, on this machine and in a store."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from maskjet.errors import OutputError
from maskjet.jobs import locks
from maskjet.jobs.folders import LocalFolder, open_folder
from maskjet.jobs.locks import LOCK, locked
from tests.waiting import until

HOLDING = """
import sys
from maskjet.jobs.folders import open_folder
from maskjet.jobs.locks import locked
with locked(open_folder(sys.argv[1])):
    print(1, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.2)
    monkeypatch.setattr(locks, "_SETTLE_S", 0.1)


@pytest.fixture
def folder(any_out):
    return open_folder(any_out)


@pytest.fixture
def remote(remote_out):
    return open_folder(remote_out)


def leave_lease(folder, **other):
    """Write the lease of a driver that is not there, or no longer."""
    owner = {"id": "0" * 32, "pid": 1, "host": "elsewhere", "machine": "another", "beat": 7}
    folder.write(LOCK, json.dumps({**owner, **other}).encode())


def test_two_drivers_do_not_share_a_folder(folder):
    with (
        locked(folder) as check,
        pytest.raises(OutputError, match=f"out must not be in use, .*: process {os.getpid()} on "),
        locked(folder),
    ):
        check()
    with locked(folder):
        pass


def test_the_lock_ends_with_its_process(any_out, folder):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, any_out], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "1\n"
        locks.BEAT_S = 5  # the other's
        with pytest.raises(OutputError, match=f"process {other.pid} on"), locked(folder):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with locked(folder):
        pass


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(OutputError, match=r"out must be writable, .*file/out' is not"),
        locked(LocalFolder(str(tmp_path / "file" / "out"))),
    ):
        pass


def test_a_lock_that_says_nothing_is_another_process(tmp_path):
    with locked(LocalFolder(str(tmp_path))):
        (tmp_path / LOCK).write_text("[]")
        with (
            pytest.raises(OutputError, match="is: another process works on it"),
            locked(LocalFolder(str(tmp_path))),
        ):
            pass


@pytest.mark.parametrize("other", [{}, {"pid": "x"}, {"machine": None}, {"machine": "this", "pid": 1}])
def test_a_lease_that_stays_as_it_is_ends(remote, other):
    if other.get("machine") == "this":  # a process that runs, though it is no driver
        other = {**other, "machine": locks._this_machine()}
    leave_lease(remote, **other)
    with locked(remote) as check:
        assert json.loads(remote.read(LOCK))["pid"] == os.getpid()
        check()
    assert remote.read(LOCK) is None


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b"\xff"])
def test_a_lease_of_anything_ends(remote, content):
    remote.write(LOCK, content)
    with locked(remote):
        pass


def test_a_lease_of_a_process_of_this_machine_that_ended_is_taken_at_once(remote, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 1000.0)  # in which the test would time out
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_lease(remote, machine=locks._this_machine(), pid=ended.pid)
    with locked(remote):
        pass


def test_a_lease_that_changes_is_somebody_s(remote):
    over = threading.Event()

    def renew():
        for beat in range(10**6):
            leave_lease(remote, beat=beat)
            if over.wait(0.02):
                return

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(OutputError, match="process 1 on 'elsewhere' works on it"), locked(remote):
            pass
    finally:
        over.set()
        thread.join()


def test_a_driver_whose_lease_was_taken_is_told_and_leaves_it_to_the_other(remote):
    def is_told():
        try:
            check()
        except OutputError as error:
            return error
        return None

    with locked(remote) as check:
        assert is_told() is None
        leave_lease(remote)
        assert "process 1 on 'elsewhere' works on it" in str(until(is_told))
    assert json.loads(remote.read(LOCK))["host"] == "elsewhere"


def test_of_two_that_begin_at_once_the_first_to_write_gives_way(remote, monkeypatch):
    monkeypatch.setattr(locks.time, "sleep", lambda _: leave_lease(remote))
    with pytest.raises(OutputError, match="process 1 on 'elsewhere' works on it"), locked(remote):
        pass

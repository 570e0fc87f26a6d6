"""After a fork: whether PyTorch's threads still answer.

A fork copies one thread. OpenMP believes that the others of its pool are there, too, and its first parallel loop in the
copy waits for them for ever. It can't be asked, so that a copy of our own tries.
"""

from __future__ import annotations

import os
import signal
import time

import torch

from maskjet.errors import UnsupportedError

_PATIENCE_S = 5.0  # for what takes a millisecond
_SHARED = 2**20  # elements; PyTorch takes a thread for each 32,768
_is_fork = False


def _note_fork() -> None:
    global _is_fork
    _is_fork = True


os.register_at_fork(after_in_child=_note_fork)


def check() -> None:
    """Refuse to run where PyTorch would hang.

    Raises:
        UnsupportedError: This process was forked from one in which PyTorch's threads ran.
    """
    global _is_fork
    if not _is_fork or torch.get_num_threads() == 1:
        return
    if not _has_threads():
        raise UnsupportedError(
            "This process was forked from one in which PyTorch had run with several threads, which would hang here: "
            "start processes with multiprocessing's 'spawn', or call torch.set_num_threads(1) in this one."
        )
    _is_fork = False


def _has_threads() -> bool:
    """Whether a parallel loop ends in a copy of this process."""
    trial = os.fork()
    if trial == 0:
        torch.zeros(_SHARED).add_(1)
        os._exit(0)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if os.waitpid(trial, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    os.kill(trial, signal.SIGKILL)
    os.waitpid(trial, 0)
    return False

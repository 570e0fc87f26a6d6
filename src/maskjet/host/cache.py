"""Cache folder of code compiled for this machine, and a message while compiling."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_S = 2.0  # total compilation time after which a message is printed
_spent_s = 0.0


def folder() -> Path | None:
    """The folder of the cache: `MASKJET_CACHE_DIR`, or maskjet's in the user's cache folder; None without a home.

    It need not exist, nor be writable. Code from it is run, so let nobody else write it.
    """
    named = os.environ.get("MASKJET_CACHE_DIR")
    try:
        return (
            Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "maskjet")
        )
    except RuntimeError:  # no home folder
        return None


def writable(name: str) -> Path | None:
    """A folder in the cache, which is made; None where it can't be written."""
    root = folder()
    with suppress(OSError):
        if root is not None:
            (root / name).mkdir(parents=True, exist_ok=True)
            return root / name if os.access(root / name, os.W_OK) else None
    return None


@contextmanager
def telling() -> Iterator[None]:
    """Print a message once, on a terminal, when compilation has taken two seconds in total."""
    global _spent_s
    timer = threading.Timer(max(_PATIENCE_S - _spent_s, 0), _tell)
    timer.daemon = True
    begin = time.monotonic()
    if _spent_s < _PATIENCE_S and sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _spent_s += time.monotonic() - begin


def _tell() -> None:
    sys.stderr.write("maskjet: compiling for this machine, which later runs need not ...\n")

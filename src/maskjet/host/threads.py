"""Work in threads that are left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """Run work in a thread of its own, which does not keep the program from ending."""
    done: Future[_T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=do, name="maskjet-wait", daemon=True).start()
    return done

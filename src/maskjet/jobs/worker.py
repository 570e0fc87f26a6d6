"""The process of a worker: `python -m maskjet.jobs.worker DESCRIPTOR`, started by `LocalWorkers`."""

from __future__ import annotations

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from maskjet import limits, process
from maskjet.cli.options import print_error, print_warnings
from maskjet.errors import DeviceError, MaskjetError
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import Worker

_FAILED = 5


class _Driver:
    """The connection to the driver."""

    def __init__(self, descriptor: int) -> None:
        self._connection = Connection(descriptor)
        self._sending = threading.Lock()

    def receive(self) -> Any:
        """The next message; the process ends with the driver."""
        try:
            return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(_FAILED)

    def send(self, message: Any) -> None:
        """Send a message; the process ends with the driver."""
        try:
            with self._sending:
                self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            os._exit(_FAILED)

    def fail(self, error: MaskjetError) -> None:
        """Tell why the job can't go on, and end the process."""
        self.send({"error": type(error).__name__, "text": str(error)})
        os._exit(_FAILED)


def main(descriptor: int) -> None:
    """Work on the segments that the driver sends, until it closes the connection.

    Args:
        descriptor: A socket to the driver, open already.
    """
    process.suit_program()
    print_warnings()
    driver = _Driver(descriptor)
    orders = driver.receive()
    try:
        limits.read_environment()
        worker = Worker(orders)
    except MaskjetError as error:
        driver.fail(error)
        raise

    def work(part: str, segment: Segment) -> None:
        try:
            driver.send(worker.do(part, segment).as_dict())
        except DeviceError as error:  # nothing runs on it any more: the driver starts another process
            print_error(error)
            os._exit(_FAILED)
        except MaskjetError as error:
            driver.fail(error)
        except BaseException as error:  # a thread's is not seen by anybody, and the driver would wait for ever
            driver.fail(MaskjetError(f"{segment.name} failed: {error!r}."))

    with process.garbage_frozen(), ThreadPoolExecutor(orders["lanes"], "maskjet-segment") as lanes:
        driver.send({})
        while True:
            task = driver.receive()
            lanes.submit(work, task["part"], Segment.from_dict(task["segment"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Worker processes: `python -m maskjet.jobs.worker DESCRIPTOR`, started by `LocalWorkers`, and the actor of Ray."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from maskjet import limits, process
from maskjet.errors import MaskjetError
from maskjet.jobs.folders import open_folder
from maskjet.jobs.markers import ARRIVED, Markers
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import FAILED, Worker, error_answer

if TYPE_CHECKING:
    import pyarrow


def main(descriptor: int) -> None:
    """Process the segments that the driver sends over an inherited socket, and end the process when it is closed."""
    process.suit_program()
    process.print_warnings()
    driver, sending = Connection(descriptor), threading.Lock()

    def send(part: str | None, answer: dict[str, Any]) -> None:
        with sending, suppress(OSError):
            driver.send_bytes(json.dumps({"part": part, "answer": answer}).encode())

    def work(part: str, segment: Segment) -> None:
        send(part, worker.answer(part, segment))

    with suppress(EOFError, OSError):
        orders = json.loads(driver.recv_bytes())
        try:
            limits.read_environment()
            worker = Worker(orders)
        except MaskjetError as error:
            return send(None, error_answer(error, "a worker"))
        with process.garbage_frozen():
            threads = ThreadPoolExecutor(orders["streams"], "maskjet-segment")
            while True:
                task = json.loads(driver.recv_bytes())
                threads.submit(work, task["part"], Segment.from_dict(task["segment"]))
    os._exit(FAILED)  # without waiting for its threads


class Actor:
    """Ray actor of `RayWorkers`: processes a segment per call.

    Errors are returned, not raised: Ray would log and wrap each, and go on with the tasks of other actors.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        process.suit_program()
        self._resources = ExitStack()
        self._resources.enter_context(process.garbage_frozen())
        self._error: dict[str, Any] | None = None
        try:
            Markers(open_folder(orders["out"]), orders["run"]).put(ARRIVED)
            limits.read_environment()
            self._worker = Worker(orders)
        except Exception as error:
            self._error = error_answer(error, "a worker")

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Process the segment of a batch with one row."""
        import pyarrow

        (row,) = batch.to_pylist()
        answer = self._error or self._worker.answer(row["part"], Segment.from_dict(json.loads(row["segment"])))
        return pyarrow.table({"answer": [json.dumps(answer)]})


if __name__ == "__main__":
    main(int(sys.argv[1]))

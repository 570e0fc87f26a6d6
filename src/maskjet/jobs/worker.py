"""Worker processes, started by `LocalWorkers`, and the actor of Ray."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

from maskjet import limits
from maskjet.errors import MaskjetError
from maskjet.host import process
from maskjet.jobs.segments import Segment
from maskjet.jobs.work import FAILED, Worker, error_answer


def main(descriptor: int) -> None:
    """Worker process: serve segments sent over an inherited socket; exit when it is closed."""
    process.suit_program()
    process.print_warnings()
    driver, sending = Connection(descriptor), threading.Lock()

    def send(part: str | None, answer: dict[str, Any]) -> None:
        with sending, suppress(OSError):
            driver.send_bytes(json.dumps({"part": part, "answer": answer}).encode())

    def work(part: str, segment: Segment, is_again: bool) -> None:
        send(part, worker.answer(part, segment, is_again=is_again))

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
                threads.submit(work, task["part"], Segment.from_dict(task["segment"]), task["is_again"])
    os._exit(FAILED)  # without waiting for its threads


class Actor:
    """Ray actor of `RayWorkers`, for concurrent calls; returns errors, as Ray would log and wrap them."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        process.suit_program()
        self._orders, self._resources = orders, ExitStack()

    def load(self) -> dict[str, Any]:
        """Load the model before any segment; returns {}, or an error that ends the job."""
        try:
            limits.read_environment()
            self._worker = Worker(self._orders)
        except Exception as error:
            return error_answer(error, "a worker")
        self._resources.enter_context(process.garbage_frozen())
        return {}

    def answer(self, part: str, segment: Mapping[str, Any], *, is_again: bool) -> dict[str, Any]:
        """Process a segment, given in JSON types; as `Worker.answer`."""
        return self._worker.answer(part, Segment.from_dict(segment), is_again=is_again)

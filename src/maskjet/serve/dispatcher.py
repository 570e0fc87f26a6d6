"""Batches for a model: requests wait in one bounded queue, and lanes give the engine what came while it was busy.

A lane is the right to call the model. The thread that has decoded an image takes a free lane with it, so that a lone
request crosses threads twice; if none is free the image waits, and whoever has a lane takes it next. After one batch it
hands the lane on to a thread of the dispatcher's own, which also takes those images that came decoded, so that nothing
waits for the model behind others that are decoded.

No artificial delay: a lane takes the oldest image as soon as it is free, and with it the others of the same size and
options that wait, up to the batch. A client that went away, or a deadline that passed, takes the image out of the
queue, so that the work is not done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

import numpy as np

from maskjet.errors import DeviceError
from maskjet.serve import problems
from maskjet.serve.tickets import Answer, Image, Options, Ticket, resolve

if TYPE_CHECKING:
    from maskjet.model import Model

LANES = 2
"""Lanes of a model."""
_CPU_BATCH = 1
_SIZES_HW = ((720, 1280), (1080, 1920), (176, 312))
_PATIENCE_S = 1800.0  # for other lanes, which may compile
_log = logging.getLogger("maskjet.serve")


class Observer(Protocol):
    """Told about a model's work, from its lanes' threads."""

    def warm(self, model: str) -> None:
        """Take note that the model has answered frames."""

    def batch_done(self, model: str, images: int, queue_s: Sequence[float], predict_s: float) -> None:
        """Take note of a batch that was answered."""

    def failed(self, error: Exception) -> None:
        """Take note that the model can't be used any more."""


class Dispatcher:
    """Gives one model what waits for it, in batches.

    Args:
        name: Name of the model in the service.
        model: The model.
        pool: Threads that make images, and call the model with them; more of them than lanes.
        queue: Most images that wait, those that are being made included.
        batch: Largest batch; None for the model's own on a GPU. On a CPU None is 1: larger ones are no faster (one
            lane, demo at 720p, 2 cores: 9.1 images/s alone, 9.6 in twos, 7.3 in eights).
        lanes: Threads that call the model at a time; None for 2, so that one batch is copied in or read out while
            another one is worked on. On a CPU each takes 3 % more of its time, and two fill the cores (9.1 to 11.8
            images/s).
        observer: Told about each batch.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        pool: Executor,
        *,
        queue: int = 64,
        batch: int | None = None,
        lanes: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        on_gpu = model.report().device.startswith("cuda")
        self.name, self.model, self.queue = name, model, queue
        self.batch = batch or (model.config.batch if on_gpu else _CPU_BATCH)
        self._pool, self._observer = pool, observer
        self._lanes = lanes or LANES
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._coming = 0  # tickets whose image is being made
        self._taken = 0  # lanes
        self._cold = self._lanes  # lanes that have not answered a frame
        self._is_started = self._is_closed = self._is_over = False
        self._together = threading.Barrier(self._lanes)
        self._handed = threading.Semaphore(0)  # lanes that own threads are to take
        self._threads: list[threading.Thread] = []

    @property
    def depth(self) -> int:
        """Images that wait now, or are being made."""
        return len(self._waiting) + self._coming

    def start(self) -> None:
        """Answer black frames in all lanes, so that what is compiled and captured is so; then what has come."""
        for number in range(self._lanes):
            thread = threading.Thread(target=self._run_lanes, name=f"maskjet-{self.name}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self, patience_s: float = 5.0) -> None:
        """Refuse new images, and wait a bounded time for those in the queue; blocks the calling thread."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            self._is_closed = True
        self._together.abort()
        with self._changed:
            self._changed.wait_for(
                lambda: not (self.depth or self._taken or (self._cold and self._threads)), patience_s
            )
            self._is_over = True
        self._handed.release(self._lanes)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def check(self, options: Options) -> None:
        """Check options before any work.

        Raises:
            InputError: An option does not fit the model.
        """
        most = self.model.config.max_detections
        if options.max_detections is not None and not 1 <= options.max_detections <= most:
            raise problems.bad_request(f"max_detections must be 1..{most}, got {options.max_detections}.")
        self.model.predict([], **options.arguments())

    def check_room(self, images: int = 1) -> None:
        """Check that so many images may come now.

        Raises:
            ProblemError: 429, the queue is full; 503, the service ends.
        """
        if self._is_closed:
            raise problems.unavailable("The service is shutting down.")
        if self.depth + images > self.queue:
            raise problems.busy(f"The queue of {self.queue} images is full; try again later.")

    async def predict(
        self, image: Image | Callable[[], Image], options: Options | None = None, *, deadline: float | None = None
    ) -> Answer:
        """Detect on one image; see `predict_all`."""
        (answer,) = await self.predict_all([image], options, deadline=deadline)
        return answer

    async def predict_all(
        self,
        images: Sequence[Image | Callable[[], Image]],
        options: Options | None = None,
        *,
        deadline: float | None = None,
    ) -> list[Answer]:
        """Detect on images; all of them or none are taken into the queue. Cancelling takes those that wait out of it.

        Args:
            images: uint8 [H, W, 3] RGB, of any sizes, not changed until answered; or functions that make them, each
                called in a thread of the pool.
            options: What is reported; None is what the model was loaded with.
            deadline: Time of the event loop's clock; an image that still waits then is not worked on.

        Raises:
            ProblemError: 429, the queue is full; 503, the service ends; 504, the deadline passed.
            MaskjetError: An error of `Model.predict`.
            Exception: An error of a function that makes an image.
        """
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            raise problems.too_late("The deadline passed before the image could wait for the model; try again later.")
        tickets = [Ticket(options or Options(), loop) for _ in images]
        timer = None if deadline is None else loop.call_at(deadline, self._expire, tickets)
        try:
            with self._changed:
                self.check_room(len(tickets))
                for ticket, image in zip(tickets, images, strict=True):
                    if callable(image):
                        ticket.make = image
                        self._coming += 1  # first: a pool that can't start a thread has taken the job all the same
                        ticket.job = self._pool.submit(self._make, ticket)
                    else:
                        self._enqueue(ticket, image)
                self._fill_lanes()
            return await asyncio.gather(*(ticket.answer for ticket in tickets))
        finally:
            if timer is not None:
                timer.cancel()
            self._withdraw(tickets)

    def _expire(self, tickets: Sequence[Ticket]) -> None:
        """Answer the tickets that still wait with 504."""
        for ticket in self._withdraw(tickets):
            if not ticket.answer.done():
                ticket.answer.set_exception(problems.too_late("The image waited for its deadline; try again later."))

    def _withdraw(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Take tickets out of the queue; returns those on which no work will be done."""
        with self._changed:
            left = [
                ticket for ticket in tickets if ticket in self._waiting or (ticket.image is None and not ticket.is_gone)
            ]
            for ticket in left:
                ticket.is_gone, ticket.make = True, None
                if ticket.image is not None:
                    self._waiting.remove(ticket)
                elif ticket.job is not None and ticket.job.cancel():
                    self._coming -= 1
            self._changed.notify_all()
        return left

    def _make(self, ticket: Ticket) -> None:
        """Make a ticket's image in this thread, and take a lane with it if one is free."""
        start = time.perf_counter()
        error, takes_lane = None, False
        make, ticket.make = ticket.make, None
        image = None
        try:
            image = None if make is None else make()
        except BaseException as caught:
            error = caught
        with self._changed:
            self._coming -= 1
            if image is not None and not ticket.is_gone:
                ticket.made_s = time.perf_counter() - start
                self._enqueue(ticket, image)
                takes_lane = self._claim()
            self._changed.notify_all()
        if error is not None:
            resolve([ticket], [error])
        elif takes_lane and self._work_once():
            self._handed.release()  # this thread has an image, and others to make

    def _enqueue(self, ticket: Ticket, image: Image) -> None:
        ticket.image, ticket.arrived = image, time.perf_counter()
        self._waiting.append(ticket)

    def _claim(self) -> bool:
        """Take a lane if one is free and an image waits; the caller has the lock, and works without it."""
        is_free = self._is_started and self._taken < self._lanes and bool(self._waiting)
        self._taken += is_free
        return is_free

    def _fill_lanes(self) -> None:
        """Let own threads take lanes with the images that wait; the caller has the lock."""
        for _ in range(len(self._waiting)):
            if self._claim():
                self._handed.release()

    def _run_lanes(self) -> None:
        """Warm up, and then work in each lane that is handed to this thread, until nothing waits."""
        self._warm_up()
        while True:
            self._handed.acquire()
            if self._is_over:
                return
            while self._work_once():
                pass

    def _work_once(self) -> bool:
        """Answer the images that wait for longest in this thread, which has a lane; gives it back if no more wait."""
        with self._changed:
            tickets = self._take()
        if tickets:
            try:
                self._answer(tickets)
            except BaseException as error:
                _log.exception("the model %s was left by a batch", self.name)
                resolve(tickets, [error] * len(tickets))
        with self._changed:
            if self._waiting:
                return True
            self._taken -= 1
            self._changed.notify_all()
            return False

    def _warm_up(self) -> None:
        try:
            self._answer_black()
        except Exception as error:
            self._together.abort()
            if self._observer is not None and not isinstance(error, threading.BrokenBarrierError):
                _log.exception("the model %s failed on its first frames", self.name)
                self._observer.failed(error)
        with self._changed:
            self._cold -= 1
            self._is_started = not self._cold
            self._fill_lanes()
            self._changed.notify_all()

    def _answer_black(self) -> None:
        """Detect on black frames of common sizes in each batch size, in all lanes at once, as each has its slot."""
        batches = [1 << power for power in range(self.batch.bit_length()) if 1 << power <= self.batch]
        for size_hw in _SIZES_HW[: max(1, self.model.config.graphs // len(batches))]:
            for batch in batches:
                for threshold in (0.0, None):  # first with as many detections as there can be
                    self._together.wait(_PATIENCE_S)
                    images = [np.zeros((*size_hw, 3), np.uint8)] * batch
                    found = self.model.predict(images, threshold=threshold)
        found[0].draw(images[0])  # its code is compiled, too
        if not self._together.wait(_PATIENCE_S) and self._observer is not None:
            self._observer.warm(self.name)

    def _take(self) -> list[Ticket]:
        """The oldest ticket, and those like it; none if none waits any more."""
        if not self._waiting:
            return []
        key = self._waiting[0].key
        taken = [ticket for ticket in self._waiting if ticket.key == key][: self.batch]
        for ticket in taken:
            self._waiting.remove(ticket)
        return taken

    def _answer(self, tickets: Sequence[Ticket]) -> None:
        """Run a batch, and give the event loop its results."""
        start = time.perf_counter()
        images = [ticket.image for ticket in tickets if ticket.image is not None]
        try:
            found = self.model.predict(images, **tickets[0].options.arguments())
        except Exception as error:
            if isinstance(error, DeviceError) and self._observer is not None:
                self._observer.failed(error)
            resolve(tickets, [error] * len(tickets))
            return
        predict_s = time.perf_counter() - start
        answers = [
            Answer(each, image, ticket.made_s, start - ticket.arrived, predict_s, len(tickets))
            for ticket, image, each in zip(tickets, images, found, strict=True)
        ]
        resolve(tickets, answers)
        if self._observer is not None:
            self._observer.batch_done(self.name, len(tickets), [answer.queue_s for answer in answers], predict_s)

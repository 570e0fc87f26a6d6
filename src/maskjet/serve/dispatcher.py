"""Batches for a model: a bounded queue, and permits to call the model.

At most `PERMITS` threads call the model at once, each with a permit. The thread that decoded an image takes a free
permit, so that a lone request crosses threads only twice; without a free permit the image waits. After one batch that
thread passes its permit to one of the dispatcher's own threads, which serve the queue until it is empty, so that images
decoded meanwhile need not wait for a thread of the pool.

There is no artificial delay: a free permit takes the oldest image at once, with the waiting images of the same options,
up to the batch size; but beside a batch under way none starts unless as many images wait. A GPU does many small batches
more slowly than few large ones, and each small one would leave as few images for the next. A disconnect or a passed
deadline removes an image from the queue.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskjet.detections import Detections
from maskjet.errors import DeviceError, device_error, first_line
from maskjet.serve import problems
from maskjet.serve.tickets import Answer, Image, Options, Ticket, WholeJPEG, resolve
from maskjet.tiling.layout import MOST_AUTO, check_tiles

if TYPE_CHECKING:
    from maskjet.model import Model
    from maskjet.sources.nvjpeg import JPEGDecoder

PERMITS = 2
"""Threads that may call a model at once."""
_CPU_BATCH = 1
_SIZE_HW = (720, 1280)
_PATIENCE_S = 1800.0  # for other threads, which may compile
_log = logging.getLogger("maskjet.serve")


class Observer(Protocol):
    """Receives a dispatcher's events, in the threads that call the model."""

    def warm(self, model: str) -> None:
        """The model has answered its first frames."""

    def batch_done(self, model: str, images: int, queue_s: Sequence[float], predict_s: float) -> None:
        """A batch was answered."""

    def failed(self, error: Exception) -> None:
        """The model can't be used any more."""


class Dispatcher:
    """Queues the images of one model's requests, and calls the model in batches.

    Args:
        name: Name of the model in the service.
        model: The model.
        pool: Threads that decode images and call the model; more than `permits`.
        queue: Most images that wait, including those being decoded.
        batch: Largest batch; None for the model's own on a GPU. On a CPU None is 1: larger ones are no faster (one
            permit, demo at 720p, 2 cores: 9.1 images/s alone, 9.6 in twos, 7.3 in eights).
        permits: Threads that may call the model at once. With 2, one batch is copied while another one is computed; on
            a CPU two fill the cores (9.1 to 11.8 images/s), and each takes 3 % longer.
        observer: Receives the events.
        jpegs: Decodes each batch's JPEGs on the model's GPU; None if none come undecoded.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        pool: Executor,
        *,
        queue: int = 64,
        batch: int | None = None,
        permits: int = PERMITS,
        observer: Observer | None = None,
        jpegs: JPEGDecoder | None = None,
    ) -> None:
        on_gpu = model.report().device.startswith("cuda")
        self.name, self.model, self.queue = name, model, queue
        self.batch = batch or (model.config.batch if on_gpu else _CPU_BATCH)
        self._pool, self._observer = pool, observer
        self._permits, self._jpegs = permits, jpegs
        self._changed = threading.Condition()
        self._waiting: deque[Ticket] = deque()
        self._decoding = 0  # tickets whose image is being decoded
        self._held = 0  # permits
        self._running = 0  # images of batches under way
        self._warming = permits  # own threads that still predict black frames
        self._largest = 1  # batch that is compiled and captured; larger ones join as they come
        self._is_growing = False  # no batch starts, so that one of the next size is captured
        self._drawn: Detections | None = None  # of the first frames
        self._is_closed = self._is_over = False
        self._barrier = threading.Barrier(permits)
        self._passed = threading.Semaphore(0)  # permits for own threads
        self._threads: list[threading.Thread] = []

    @property
    def depth(self) -> int:
        """Images that wait now, or are being decoded."""
        return len(self._waiting) + self._decoding

    @property
    def largest(self) -> int:
        """Images of the largest batch that is compiled so far."""
        return self._largest

    def start(self) -> None:
        """Start the threads: some warm up for single images and serve the queue, others prepare larger batches."""
        for number in range(self._permits):
            for run, arguments, name in ((self._run_thread, (), ""), (self._grow, (number,), "-growing")):
                name = f"maskjet-{self.name}{name}-{number}"
                thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self, patience_s: float) -> None:
        """Refuse new images and wait a bounded time until the queue is empty; blocks."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            self._is_closed = True
        self._barrier.abort()
        with self._changed:
            self._changed.wait_for(
                lambda: not (self.depth or self._held or (self._warming and self._threads)), patience_s
            )
            self._is_over = True
        self._passed.release(self._permits)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def check(self, options: Options) -> None:
        """Raise InputError if an option does not fit the model."""
        most = self.model.config.max_detections
        if options.max_detections is not None and not 1 <= options.max_detections <= most:
            raise problems.bad_request(f"max_detections must be 1..{most}, got {options.max_detections}.")
        self.model.predict([], **options.arguments())

    def check_room(self, images: int = 1) -> None:
        """Raise ProblemError 429 if the queue has no room for so many images; 503, the service ends."""
        if self._is_closed:
            raise problems.unavailable("The service is shutting down.")
        if self.depth + images > self.queue:
            raise problems.busy(f"The queue of {self.queue} images is full; try again later.")

    async def predict_all(
        self,
        images: Sequence[Image | Callable[[], Image | WholeJPEG]],
        options: Options | None = None,
        *,
        deadline: float | None = None,
    ) -> list[Answer]:
        """Detect on images; all or none enter the queue. Cancelling removes those that wait.

        Args:
            images: uint8 [H, W, 3] RGB, of any sizes, not changed until answered; or functions that decode them, each
                called in a thread of the pool, or find them to be JPEGs for the GPU.
            options: Threshold, classes and most detections; None for the model's own.
            deadline: Time of the event loop's clock; images that still wait then are removed from the queue.

        Raises:
            ProblemError: 429, the queue is full; 503, the service ends; 504, the deadline passed.
            MaskjetError: An error of `Model.predict`.
            Exception: An error of a function that decodes an image.
        """
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            raise problems.too_late("The deadline passed before the image could wait for the model; try again later.")
        tickets = [Ticket(options or Options()) for _ in images]
        timer = None if deadline is None else loop.call_at(deadline, self._expire, tickets)
        try:
            with self._changed:
                self.check_room(len(tickets))
                for ticket, image in zip(tickets, images, strict=True):
                    if callable(image):
                        ticket.decode = image
                        self._decoding += 1  # first: `submit` queues the call even if it fails to start a thread
                        ticket.future = self._pool.submit(self._decode, ticket)
                    else:
                        self._enqueue(ticket, image)
                self._pass_permits()
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
        """Remove tickets from the queue; returns those whose work has not begun."""
        with self._changed:
            left = [
                ticket for ticket in tickets if ticket in self._waiting or (ticket.image is None and not ticket.is_gone)
            ]
            for ticket in left:
                ticket.is_gone, ticket.decode = True, None
                if ticket.image is not None:
                    self._waiting.remove(ticket)
                elif ticket.future is not None and ticket.future.cancel():
                    self._decoding -= 1
            self._changed.notify_all()
        return left

    def _decode(self, ticket: Ticket) -> None:
        """Decode a ticket's image in this thread, and run its batch here if a permit is free."""
        start = time.perf_counter()
        image, error, has_permit = None, None, False
        decode, ticket.decode = ticket.decode, None
        try:
            image = None if decode is None else decode()
        except BaseException as caught:
            error = caught
        with self._changed:
            self._decoding -= 1
            if image is not None and not ticket.is_gone:
                ticket.decode_s = time.perf_counter() - start
                self._enqueue(ticket, image)
                has_permit = self._acquire()
            self._changed.notify_all()
        if error is not None:
            resolve([ticket], [error])
        elif has_permit and self._run_batch():
            self._passed.release()  # this thread is needed for decoding

    def _enqueue(self, ticket: Ticket, image: Image | WholeJPEG) -> None:
        ticket.image, ticket.arrived = image, time.perf_counter()
        self._waiting.append(ticket)

    def _acquire(self) -> bool:
        """Take a permit if one is free and a batch may start; called with the lock held."""
        is_free = not self._warming and self._held < self._permits and self._may_start()
        self._held += is_free
        return is_free

    def _may_start(self) -> bool:
        """Whether a batch may start: at least as many images wait as are in progress; called with the lock held."""
        return not self._is_growing and len(self._waiting) >= max(1, self._running)

    def _pass_permits(self) -> None:
        """Pass free permits to own threads while images wait; called with the lock held."""
        for _ in range(len(self._waiting)):
            if self._acquire():
                self._passed.release()

    def _run_thread(self) -> None:
        """Warm up; then, with each permit passed to this thread, run batches until the queue is empty."""
        self._warm_up()
        while True:
            self._passed.acquire()
            if self._is_over:
                return
            while self._run_batch():
                pass

    def _run_batch(self) -> bool:
        """Run a batch with this thread's permit; returns False, and gives the permit back, if no other may start."""
        with self._changed:
            tickets = self._take_batch()
            self._running += len(tickets)
            self._pass_permits()  # fewer may have been taken than wait
        if tickets:
            try:
                self._answer(self._decode_jpegs(tickets))
            except BaseException as error:
                _log.exception("a batch of the model %s failed outside of predict", self.name)
                resolve(tickets, [error] * len(tickets))
        with self._changed:
            self._running -= len(tickets)
            if self._may_start():
                return True
            self._held -= 1
            self._changed.notify_all()
            return False

    def _warm_up(self) -> None:
        try:
            found = self._predict_black_frames(1)
            if not self._barrier.wait(_PATIENCE_S):
                self._drawn = found
                if self._observer is not None:
                    self._observer.warm(self.name)
        except Exception as error:
            self._barrier.abort()
            if self._observer is not None and not isinstance(error, threading.BrokenBarrierError):
                _log.exception("the model %s failed on its first frames", self.name)
                self._observer.failed(error)
        with self._changed:
            self._warming -= 1
            self._pass_permits()
            self._changed.notify_all()

    def _predict_black_frames(self, batch: int) -> Detections:
        """Detect on black frames, in all permits' threads at once, so that each slot is warmed."""
        for threshold in (0.0, None):  # 0 gives the most detections
            self._barrier.wait(_PATIENCE_S)
            found = self.model.predict([np.zeros((*_SIZE_HW, 3), np.uint8)] * batch, threshold=threshold)
        return found[0]

    def _grow(self, number: int) -> None:
        """Compile for larger batches, while smaller ones are answered; no batch starts only while one is captured."""
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._warming)
            if self._barrier.broken:
                return
            for step in range(1, self.batch.bit_length()):
                if number == 0:
                    self.model.prepare(1 << step)
                self._barrier.wait(_PATIENCE_S)
                self._capture(1 << step)
            self._largest = self.batch
            if number == 0 and self._drawn is not None:
                self._drawn.draw(np.zeros((*_SIZE_HW, 3), np.uint8))  # compiles the drawing
        except threading.BrokenBarrierError:  # the model failed, or is closed
            pass
        except Exception as error:
            self._barrier.abort()
            _log.warning("the model %s has batches of %d at most: %s", self.name, self._largest, first_line(error))
        with self._changed:
            self._is_growing = False
            self._pass_permits()

    def _capture(self, batch: int) -> None:
        with self._changed:
            self._is_growing = True
            self._changed.wait_for(lambda: self._held < self._permits)
            self._held += 1
        try:
            self._predict_black_frames(batch)
            self._barrier.wait(_PATIENCE_S)
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()
        with self._changed:
            self._largest, self._is_growing = batch, False
            self._pass_permits()

    def _take_batch(self) -> list[Ticket]:
        """Take the oldest ticket and others of its options; none if no batch may start."""
        if not self._may_start():
            return []
        options = self._waiting[0].options
        most = self._largest if options.tiling.tile is None else 1  # whose tiles fill batches
        taken = [ticket for ticket in self._waiting if ticket.options == options][:most]
        for ticket in taken:
            self._waiting.remove(ticket)
        return taken

    def _decode_jpegs(self, tickets: list[Ticket]) -> list[Ticket]:
        """Decode the JPEGs of a batch on the GPU; returns the tickets that have their image."""
        jpegs = [(ticket, ticket.image) for ticket in tickets if isinstance(ticket.image, WholeJPEG)]
        if not jpegs or self._jpegs is None:
            return tickets
        start = time.perf_counter()
        try:
            decoded = self._jpegs.decode([jpeg.plain for _, jpeg in jpegs])
        except RuntimeError as error:
            self._fail(tickets, device_error("a JPEG", 0, error))
            return []
        left = list(tickets)
        for (ticket, jpeg), pixels in zip(jpegs, decoded, strict=True):
            try:
                ticket.image = jpeg.decode() if pixels is None else pixels  # the GPU may refuse one
            except Exception as error:
                resolve([ticket], [error])
                left.remove(ticket)
        decode_s = time.perf_counter() - start
        for ticket, _ in jpegs:
            ticket.decode_s += decode_s
            ticket.arrived += decode_s  # it does not wait meanwhile
        return left

    def _fail(self, tickets: Sequence[Ticket], error: Exception) -> None:
        if isinstance(error, DeviceError) and self._observer is not None:
            self._observer.failed(error)
        resolve(tickets, [error] * len(tickets))

    def _answer(self, tickets: Sequence[Ticket]) -> None:
        """Run a batch, and give its results to the event loop."""
        if not tickets:
            return
        start = time.perf_counter()
        images: list[Any] = [ticket.image for ticket in tickets]
        try:
            options = tickets[0].options
            if options.tiling.tile is not None:
                check_tiles(images[0].shape[:2], options.tiling.tile, options.tiling.overlap, MOST_AUTO)
            found = self.model.predict(images, **options.arguments())
        except Exception as error:
            self._fail(tickets, error)
            return
        predict_s = time.perf_counter() - start
        answers = [
            Answer(each, image, ticket.decode_s, start - ticket.arrived, predict_s, len(tickets))
            for ticket, image, each in zip(tickets, images, found, strict=True)
        ]
        resolve(tickets, answers)
        if self._observer is not None:
            self._observer.batch_done(self.name, len(tickets), [answer.queue_s for answer in answers], predict_s)

"""Batches for a model: a bounded queue, and permits to call the model.

docs/design.md has the rules by which images wait, take turns and share batches. An image that is cut into tiles is a
batch alone and takes long, so one permit is left to other images.

A thread that decoded an image runs one batch, if one may start, so that a lone request crosses threads only twice. All
other batches are run by threads of the dispatcher's own, so that images decoded meanwhile need not wait for a thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from maskjet.errors import DeviceError, device_error, first_line
from maskjet.host.threads import in_background
from maskjet.serve import problems
from maskjet.serve.tickets import Answer, Decode, LargeImage, Options, Ticket, WholeJPEG, resolve
from maskjet.sources.images import Image
from maskjet.tiling.layout import MOST_AUTO

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.model import Model
    from maskjet.sources.nvjpeg import JPEGDecoder

PERMITS = 2
"""Batches of a model at once."""
_CPU_BATCH = 1
_SIZE_HW = (720, 1280)
_DECODING, _DETECTING = 0, 1  # stages, in which images take turns
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
        observer: Receives the events.
        queue: Most images that wait, including those being decoded.
        batch: Largest batch; None for the model's own on a GPU. On a CPU None is 1: larger ones are no faster (one
            permit, demo at 720p, 2 cores: 9.1 images/s alone, 9.6 in twos, 7.3 in eights).
        large: Threads that decode large images; None for those of `pool`.
        permits: Batches at once. With 2, one batch is copied while another one is computed; on a CPU two fill the cores
            (9.1 to 11.8 images/s), and each takes 3 % longer.
        jpegs: Decodes each batch's JPEGs on the model's GPU; None if none come undecoded.
    """

    def __init__(
        self,
        name: str,
        model: Model,
        pool: Executor,
        observer: Observer,
        *,
        queue: int = 64,
        batch: int | None = None,
        large: Executor | None = None,
        permits: int = PERMITS,
        jpegs: JPEGDecoder | None = None,
    ) -> None:
        on_gpu = model.report().device.startswith("cuda")
        self.name, self.model, self.queue = name, model, queue
        self.batch = batch or (model.config.batch if on_gpu else _CPU_BATCH)
        self.largest = 1
        """Images of the largest batch that is compiled and captured so far."""
        self._pool, self._large, self._jpegs = pool, large or pool, jpegs
        self._observer, self._permits = observer, permits
        self._lock = threading.Lock()
        self._may_run = threading.Condition(self._lock)  # wakes a thread of our own
        self._has_ended = threading.Condition(self._lock)  # a batch, or the decoding of an image
        self._waiting: list[Ticket] = []
        self._encoded: tuple[list[Ticket], list[Ticket]] = ([], [])  # images to be decoded: small ones, large ones
        self._decoding = 0  # images that are decoded, or wait for it
        self._was_alone = [False, False]  # by stage: whether the last image was its request's only one
        self._batches = self._running = self._cut = 0  # batches under way, their images, and those that are cut
        self._is_paused = True  # no batch starts, so that the model is captured
        self._is_closed = self._is_over = False
        self._threads = [
            threading.Thread(target=run, name=f"maskjet-{name}-{number}", daemon=True)
            for number, run in enumerate([self._prepare, *[self._serve] * permits])
        ]

    @property
    def depth(self) -> int:
        """Images that wait now, or are being decoded."""
        return len(self._waiting) + self._decoding

    def start(self) -> None:
        """Start the threads: one warms up and then prepares larger batches, the others serve the queue."""
        for thread in self._threads:
            thread.start()

    def close(self, patience_s: float) -> None:
        """Refuse new images and wait a bounded time until the queue is empty; blocks."""
        deadline = time.monotonic() + patience_s
        with self._lock:
            self._is_closed = True
            self._has_ended.wait_for(lambda: not (self.depth or self._batches), patience_s)
            self._is_over = True
            self._may_run.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def check(self, options: Options) -> None:
        """Raise InputError if an option does not fit the model."""
        most = self.model.config.max_detections
        if options.max_detections is not None and not 1 <= options.max_detections <= most:
            raise problems.bad_request(f"max_detections must be 1..{most}, got {options.max_detections}.")
        self.model.predict([], **options.arguments())

    def check_room(self, images: int = 1) -> None:
        """Raise ProblemError 429 if the queue has no room for so many images of a request; 503, the service ends."""
        if self._is_closed:
            raise problems.unavailable("The service is shutting down.")
        kept = self.queue // 8 if images > 1 and self.depth else 0  # for requests of one image
        if self.depth + images > self.queue - kept:
            raise problems.busy(f"The queue of {self.queue} images is full; try again later.")

    async def predict_all(
        self,
        images: Sequence[Image | Decode],
        options: Options | None = None,
        *,
        deadline: float | None = None,
        release: Callable[[int], None] | None = None,
    ) -> list[Answer]:
        """Detect on images; all or none enter the queue. Cancelling removes those that wait.

        Args:
            images: uint8 [H, W, 3] RGB, of any sizes, not changed until answered; or functions that decode them, each
                called in a thread of the pool, or find them to be large or JPEGs for the GPU.
            options: Threshold, classes and most detections; None for the model's own.
            deadline: Time of the event loop's clock; images that still wait then are removed from the queue.
            release: Called with the bytes of each image that is detected on; answers are then without it.

        Raises:
            ProblemError: 413, the images have more than 64 tiles together; 429, the queue is full; 503, the service
                ends; 504, the deadline passed; or an error of `Model.predict` or of a function that decodes an image.
        """
        loop = asyncio.get_running_loop()
        if deadline is not None and loop.time() >= deadline:
            raise problems.too_late("The deadline passed before the image could wait for the model; try again later.")
        cut: list[int] = []
        tickets = [Ticket(options or Options(), cut, len(images) == 1, release) for _ in images]
        timer = None if deadline is None else loop.call_at(deadline, partial(self._withdraw, tickets, are_late=True))
        try:
            with self._lock:
                self.check_room(len(tickets))
                for ticket, image in zip(tickets, images, strict=True):
                    if callable(image):
                        self._submit(ticket, image)
                    else:
                        self._enqueue(ticket, image)
                self._wake()
            return await asyncio.gather(*(ticket.answer for ticket in tickets))
        finally:
            if timer is not None:
                timer.cancel()
            self._withdraw(tickets)

    def _withdraw(self, tickets: Sequence[Ticket], *, are_late: bool = False) -> None:
        """Remove tickets from the queue whose work has not begun; late ones are answered with 504."""
        with self._lock:
            for ticket in tickets:
                is_decoded = ticket.image is None and ticket.decode is None  # right now
                if not ticket.is_pending or (are_late and is_decoded):
                    continue
                ticket.is_pending, ticket.decode = False, None
                if ticket.image is not None:
                    self._waiting.remove(ticket)
                for encoded in self._encoded:
                    if ticket in encoded:
                        encoded.remove(ticket)
                        self._decoding -= 1
                if are_late and not ticket.answer.done():
                    text = "The image waited for its deadline; try again later."
                    ticket.answer.set_exception(problems.too_late(text))
            self._has_ended.notify_all()

    def _submit(self, ticket: Ticket, decode: Decode) -> None:
        """Let an image wait to be decoded, or raise ProblemError 429; called with the lock held."""
        is_large = ticket.pixels > 0
        if is_large and len(self._encoded[is_large]) >= max(1, self.queue // 2):
            raise problems.busy(f"{self.queue // 2} large images wait to be decoded; try again later.")
        self._decoding += 1
        ticket.decode = decode
        self._encoded[is_large].append(ticket)  # first: `submit` queues the call even if it fails to start a thread
        (self._large if is_large else self._pool).submit(self._decode, self._encoded[is_large])

    def _decode(self, encoded: list[Ticket]) -> None:
        """Decode the image whose turn it is in this thread, and run a batch here if one may start."""
        with self._lock:
            if not encoded:  # they were withdrawn
                return
            # Small images have 0 pixels here, so that the oldest is taken; in turn, as below, but without sorting.
            others = [each for each in encoded if each.is_alone is not self._was_alone[_DECODING]]
            ticket = min(others or encoded, key=lambda each: each.pixels)
            encoded.remove(ticket)
            self._was_alone[_DECODING] = ticket.is_alone
            decode, ticket.decode = ticket.decode, None
        assert decode is not None
        start = time.perf_counter()
        image, error, batch = None, None, list[Ticket]()
        try:
            image = decode()
        except BaseException as caught:
            error = caught
        with self._lock:
            self._decoding -= 1
            if image is not None and ticket.is_pending:
                ticket.decode_s = time.perf_counter() - start
                try:
                    if isinstance(image, LargeImage):
                        ticket.pixels = image.pixels
                        self._submit(ticket, image.decode)
                    else:
                        self._enqueue(ticket, image)
                        batch = self._take_batch()
                except Exception as caught:
                    error = caught
            self._has_ended.notify_all()
        if error is not None:
            resolve([ticket], [problems.to_problem(error)])
        if batch:
            self._run(batch)

    def _enqueue(self, ticket: Ticket, image: Image | WholeJPEG) -> None:
        if ticket.options.tiling.tile is not None:
            self._count_tiles(ticket, image)
        ticket.image, ticket.arrived = image, time.perf_counter()
        self._waiting.append(ticket)

    def _count_tiles(self, ticket: Ticket, image: Image | WholeJPEG) -> None:
        """Count an image's tiles, which cost as much as images; refuses too many of a request, and of the queue."""
        size_hw = image.size_hw if isinstance(image, WholeJPEG) else (image.shape[0], image.shape[1])
        tiles = self.model.count_tiles(size_hw, ticket.options.tiling, MOST_AUTO)
        if tiles == 1:
            return
        ticket.cut.append(tiles)
        if sum(ticket.cut) > MOST_AUTO:
            detail = f"A request's images must have at most {MOST_AUTO} tiles together, these have {sum(ticket.cut)}."
            raise problems.too_large(detail)
        waiting = sum(each.tiles for each in self._waiting)
        if waiting + tiles > (most := max(self.queue, MOST_AUTO)):
            raise problems.busy(f"The queue of {most} tiles is full; try again later.")
        ticket.tiles = tiles

    def _ready(self) -> Sequence[Ticket]:
        """Tickets whose turn may come: images that are cut leave a permit to others; called with the lock held."""
        if self._cut < max(1, self._permits - 1):
            return self._waiting
        return [ticket for ticket in self._waiting if not ticket.tiles]

    def _may_start(self) -> bool:
        """Whether a batch may start: at least as many images wait as are under way; called with the lock held."""
        has_permit = not self._is_paused and self._batches < self._permits
        return has_permit and len(self._ready()) >= max(1, self._running)

    def _wake(self) -> None:
        """Wake a thread of our own if a batch may start; called with the lock held."""
        if self._may_start():
            self._may_run.notify()

    def _take_batch(self) -> list[Ticket]:
        """Take the tickets of one batch, in turn, if it may start; called with the lock held."""
        if not self._may_start():
            return []
        # First those of the other kind than the last one, each kind by age.
        ready = sorted(self._ready(), key=lambda each: each.is_alone is self._was_alone[_DETECTING])
        options = ready[0].options
        most = self.largest if options.tiling.tile is None else 1  # whose tiles fill batches
        taken = [ticket for ticket in ready if ticket.options == options][:most]
        for ticket in taken:
            self._waiting.remove(ticket)
            ticket.is_pending = False
        self._was_alone[_DETECTING] = taken[0].is_alone
        self._batches += 1
        self._cut += taken[0].tiles > 0
        self._running += len(taken)
        self._wake()  # fewer may have been taken than wait
        return taken

    def _serve(self) -> None:
        while not self._is_over:
            with self._lock:
                self._may_run.wait_for(lambda: self._is_over or self._may_start())
                batch = self._take_batch()
            while batch:
                batch = self._run(batch, goes_on=True)

    def _run(self, tickets: list[Ticket], *, goes_on: bool = False) -> list[Ticket]:
        """Run a batch; returns the next one to run, if this thread goes on."""
        try:
            self._answer(tickets)
        except BaseException as error:
            if isinstance(error, DeviceError):
                self._observer.failed(error)
            resolve(tickets, [problems.to_problem(error)] * len(tickets))
        with self._lock:
            self._batches -= 1
            self._cut -= tickets[0].tiles > 0
            self._running -= len(tickets)
            following = self._take_batch() if goes_on else []
            self._wake()
            self._has_ended.notify_all()
        return following

    def _prepare(self) -> None:
        """Warm up for single images; then compile larger batches, while smaller ones are answered."""
        try:
            found = self._capture(1)
        except Exception as error:
            if not self._is_closed:
                _log.exception("the model %s failed on its first frames", self.name)
                self._observer.failed(error)
            return
        self._observer.warm(self.name)
        try:
            for step in range(1, self.batch.bit_length()):
                self.model.prepare(1 << step)
                if self._is_closed:
                    return
                self._capture(1 << step)
            self.largest = self.batch
            found.draw(np.zeros((*_SIZE_HW, 3), np.uint8))  # compiles the drawing
        except Exception as error:
            _log.warning("the model %s has batches of %d at most: %s", self.name, self.largest, first_line(error))

    def _capture(self, batch: int) -> Detections:
        """Detect on black frames, as many times at once as there are permits, so that each slot is warm."""
        begin, frames = threading.Barrier(self._permits), [np.zeros((*_SIZE_HW, 3), np.uint8)] * batch

        def predict(threshold: float | None) -> list[Detections]:
            begin.wait()
            return self.model.predict(frames, threshold=threshold)

        with self._lock:
            self._is_paused = True
            self._has_ended.wait_for(lambda: not self._batches)
        try:
            for threshold in (0.0, None):  # 0 gives the most detections
                calls = [in_background(partial(predict, threshold)) for _ in range(self._permits)]
                found = [call.result()[0] for call in calls]
            self.largest = batch
        finally:
            with self._lock:
                self._is_paused = False
                self._wake()
        return found[0]

    def _answer(self, tickets: list[Ticket]) -> None:
        """Run a batch, and give its results to the event loop."""
        tickets = self._decode_jpegs(tickets)
        if not tickets:
            return
        start = time.perf_counter()
        images: list[Any] = [ticket.image for ticket in tickets]
        options = tickets[0].options
        found = self.model.predict(images, **options.arguments())
        predict_s = time.perf_counter() - start
        answers = [
            Answer(each, image if ticket.release is None else None, *times, len(tickets))
            for ticket, image, each in zip(tickets, images, found, strict=True)
            for times in [(ticket.decode_s, start - ticket.arrived, predict_s)]
        ]
        images.clear()
        for ticket, each in zip(tickets, found, strict=True):
            ticket.image = None
            if ticket.release is not None:
                ticket.release(3 * math.prod(each.image_size))
        resolve(tickets, answers)
        self._observer.batch_done(self.name, len(tickets), [answer.queue_s for answer in answers], predict_s)

    def _decode_jpegs(self, tickets: list[Ticket]) -> list[Ticket]:
        """Decode the JPEGs of a batch on the GPU; returns the tickets that have their image."""
        jpegs = [(ticket, ticket.image) for ticket in tickets if isinstance(ticket.image, WholeJPEG)]
        if not jpegs or self._jpegs is None:
            return tickets
        start = time.perf_counter()
        try:
            decoded = self._jpegs.decode([jpeg.plain for _, jpeg in jpegs])
        except RuntimeError as error:
            raise device_error("a JPEG", 0, error) from error
        left = list(tickets)
        for (ticket, jpeg), pixels in zip(jpegs, decoded, strict=True):
            try:
                ticket.image = jpeg.decode() if pixels is None else pixels  # the GPU may refuse one
            except Exception as error:
                resolve([ticket], [problems.to_problem(error)])
                left.remove(ticket)
        decode_s = time.perf_counter() - start
        for ticket, _ in jpegs:
            ticket.decode_s += decode_s
            ticket.arrived += decode_s  # it does not wait meanwhile
        return left

"""Lanes of the dispatcher: none is lost or held up, nothing is forgotten or kept, whatever goes wrong."""

import asyncio
import gc
import logging
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.problems import ProblemError
from tests.serve.client import run
from tests.serve.test_dispatcher import until


class Found:
    """What a fake model finds: the number that is an image's first value."""

    def __init__(self, image):
        self.number = int(image[0, 0, 0])

    def draw(self, image):
        return image


class Fake:
    """A model that answers at once; `before` is called with the images of each batch."""

    config = SimpleNamespace(batch=2, graphs=1, max_detections=5)

    def __init__(self):
        self.before = lambda _: None

    def report(self):
        return SimpleNamespace(device="cpu")

    def predict(self, images, **_):
        self.before(images)
        return [Found(image) for image in images]


class Observer:
    def __init__(self):
        self.is_warm = threading.Event()
        self.batches = 0
        self.batch_error = None

    def warm(self, _):
        self.is_warm.set()

    def failed(self, error):
        raise AssertionError from error

    def batch_done(self, *_):
        self.batches += 1
        if self.batch_error is not None:
            raise self.batch_error


@asynccontextmanager
async def started(*, pool=None, threads=3, **options):
    """A dispatcher of a fake model whose lanes are warm."""
    model, observer = Fake(), Observer()
    made = pool or ThreadPoolExecutor(threads)
    dispatcher = Dispatcher("fake", model, made, observer=observer, **options)
    dispatcher.start()
    try:
        assert await asyncio.to_thread(observer.is_warm.wait, 30)
        await until(lambda: dispatcher._is_started)
        yield dispatcher, model, observer
    finally:
        await asyncio.to_thread(dispatcher.close)
        made.shutdown()


def picture(number):
    return np.full((2, 2, 3), number, np.uint8)


@run
async def test_an_image_that_is_here_does_not_wait_for_others_to_be_decoded():
    go = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        decoding = [pool.submit(go.wait, 30) for _ in range(6)]
        try:
            async with started(pool=pool) as (dispatcher, _, _):
                answer = await asyncio.wait_for(dispatcher.predict(picture(7)), 5)
                assert answer.detections.number == 7
                go.set()
        finally:
            go.set()
        assert all(each.result() for each in decoding)


@run
async def test_a_thread_that_decodes_is_not_held_by_what_comes_later():
    class Image(np.ndarray):
        pass

    go, is_busy = threading.Event(), threading.Event()

    def make_first():
        image = picture(1).view(Image)
        made.append(weakref.ref(image))
        return image

    def hold(images):
        if images[0][0, 0, 0] != 1:
            is_busy.set()
            assert go.wait(30)

    made = []
    async with started(lanes=1, threads=1) as (dispatcher, model, _):
        is_waiting, may_run = threading.Event(), threading.Event()
        model.before = lambda _: is_waiting.set() or may_run.wait(30)
        first = asyncio.ensure_future(dispatcher.predict(make_first))
        assert await asyncio.to_thread(is_waiting.wait, 30)
        second = asyncio.ensure_future(dispatcher.predict(picture(2)))
        await until(lambda: dispatcher.depth == 1)
        model.before = hold
        may_run.set()
        assert (await first).detections.number == 1
        assert await asyncio.to_thread(is_busy.wait, 30)
        try:
            assert await asyncio.wait_for(asyncio.wrap_future(dispatcher._pool.submit(int)), 5) == 0
            del first
            gc.collect()
            assert made[0]() is None
        finally:
            go.set()
        assert (await second).detections.number == 2


@run
async def test_an_observer_that_fails_costs_no_lane(caplog):
    async with started() as (dispatcher, _, observer):
        observer.batch_error = ValueError("no room")
        with caplog.at_level(logging.CRITICAL, "maskjet.serve"):
            for number in range(8):
                image = picture(number) if number % 2 else lambda number=number: picture(number)
                answer = await asyncio.wait_for(dispatcher.predict(image), 5)
                assert answer.detections.number == number
        await until(lambda: not dispatcher._taken)


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize("error", [Panic("ouch"), SystemExit(3), StopIteration(), KeyboardInterrupt()])
@run
async def test_what_is_no_exception_is_an_error_of_its_request(error, caplog):
    def fail(*_):
        raise error

    async with started(queue=2) as (dispatcher, model, _):
        with caplog.at_level(logging.CRITICAL, "maskjet.serve"):
            for _ in range(4):
                with pytest.raises(RuntimeError, match=f"^{type(error).__name__}"):
                    await asyncio.wait_for(dispatcher.predict(fail), 5)
            await until(lambda: not dispatcher.depth)
            model.before = fail
            for image in (picture(1), lambda: picture(1)) * 2:
                with pytest.raises(RuntimeError, match=f"^{type(error).__name__}"):
                    await asyncio.wait_for(dispatcher.predict(image), 5)
        model.before = lambda _: None
        assert (await asyncio.wait_for(dispatcher.predict(picture(4)), 5)).detections.number == 4
        await until(lambda: not dispatcher._taken)


class Short(ThreadPoolExecutor):
    """A pool that may find no room for another thread."""

    is_short = False

    def submit(self, *args):
        job = super().submit(*args)
        if self.is_short:
            raise RuntimeError("can't start new thread")
        return job


@run
async def test_a_thread_that_cannot_be_started_leaves_nothing_behind():
    pool = Short(2)
    async with started(pool=pool) as (dispatcher, _, _):
        for count in range(1, 4):
            pool.is_short = True
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await dispatcher.predict_all([lambda: picture(1)] * count)
            pool.is_short = False
            assert (await dispatcher.predict(lambda: picture(2))).detections.number == 2
            await until(lambda: dispatcher.depth == 0 == dispatcher._taken)


@run
async def test_what_nobody_waits_for_is_forgotten_before_its_turn():
    go = threading.Event()
    async with started(threads=1) as (dispatcher, _, _):
        busy = dispatcher._pool.submit(go.wait, 30)

        def make():
            return picture(1)

        kept = weakref.ref(make)
        task = asyncio.ensure_future(dispatcher.predict(make))
        del make
        await until(lambda: dispatcher.depth == 1)
        task.cancel()
        await asyncio.wait((task,))
        del task
        gc.collect()
        assert kept() is None
        assert dispatcher.depth == 0
        go.set()
        assert await asyncio.to_thread(busy.result)


@run
async def test_closing_ends_when_those_who_wait_have_gone():
    go = threading.Event()
    async with started(threads=1) as (dispatcher, _, _):
        busy = dispatcher._pool.submit(go.wait, 30)
        task = asyncio.ensure_future(dispatcher.predict(lambda: picture(1)))
        await until(lambda: dispatcher.depth == 1)
        closing = asyncio.ensure_future(asyncio.to_thread(dispatcher.close, 30))
        await until(lambda: dispatcher._is_closed)
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait_for(closing, 5)
        go.set()
        assert await asyncio.to_thread(busy.result)


@pytest.mark.parametrize("seed", range(3))
@run
async def test_nothing_is_lost_among_cancellations_errors_and_deadlines(seed):
    drawn = random.Random(seed)
    loop = asyncio.get_running_loop()

    def make(number):
        time.sleep(number % 4 / 2000)
        if number % 7 == 0:
            raise ZeroDivisionError
        return picture(number)

    async def ask(dispatcher, first):
        numbers = range(first, first + drawn.choice((1, 1, 3)))
        images = [picture(each) if drawn.random() < 0.3 else partial(make, each) for each in numbers]
        deadline = loop.time() + drawn.random() / 50 if drawn.random() < 0.3 else None
        with suppress(ProblemError, ZeroDivisionError):
            answers = await dispatcher.predict_all(images, deadline=deadline)
            assert [answer.detections.number for answer in answers] == list(numbers)

    async with started(threads=3, queue=20, batch=2) as (dispatcher, model, _):
        model.before = lambda _: time.sleep(0.0005)
        tasks = []
        for number in range(400):
            tasks.append(asyncio.ensure_future(ask(dispatcher, number % 200)))
            if drawn.random() < 0.3:
                loop.call_later(drawn.random() / 100, tasks[drawn.randrange(len(tasks))].cancel)
            if drawn.random() < 0.5:
                await asyncio.sleep(drawn.random() / 500)
        done, _ = await asyncio.wait(tasks, timeout=10)
        assert len(done) == 400
        assert [task for task in done if not task.cancelled() and task.exception()] == []
        await until(lambda: dispatcher.depth == 0 == dispatcher._taken)
        answers = await dispatcher.predict_all([picture(1), lambda: picture(2)])
        assert [answer.detections.number for answer in answers] == [1, 2]

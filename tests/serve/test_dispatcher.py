"""Batches: what waits together is answered together, and what nobody waits for is not done."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from maskjet import traffic
from maskjet.errors import InputError
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.problems import ProblemError
from maskjet.serve.tickets import Options
from tests.serve.client import encoded, problem_of, run, served


class Held:
    """A model that waits to be let go before it predicts, and records what it was given."""

    def __init__(self, model):
        self._model = model
        self.go = threading.Event()
        self.calls = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **options):
        if images:
            self.calls.append((len(images), images[0].shape if images else None, options))
            assert self.go.wait(30)
        return self._model.predict(images, **options)


class Started:
    """A dispatcher of a held model that was warmed up."""

    def __init__(self, model, **options):
        self.model = Held(model)
        self.pool = ThreadPoolExecutor(2)
        self.dispatcher = Dispatcher("demo", self.model, self.pool, observer=self, lanes=1, **options)
        self._warm = threading.Event()

    def warm(self, _):
        self._warm.set()

    def failed(self, error):
        raise error

    def batch_done(self, *_):
        pass

    async def __aenter__(self):
        self.model.go.set()
        self.dispatcher.start()
        assert await asyncio.to_thread(self._warm.wait, 30)
        self.model.go.clear()
        self.model.calls.clear()
        return self.dispatcher, self.model

    async def __aexit__(self, *_):
        self.model.go.set()
        await asyncio.to_thread(self.dispatcher.close)
        self.pool.shutdown()


async def until(is_so):
    """Wait until something is so."""
    for _ in range(3000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


IMAGES = [traffic.sample(seed=seed, size_hw=(90, 160)).image for seed in range(4)]


@run
async def test_what_waits_is_batched_by_size_and_options(model):
    async with Started(model, batch=3) as (dispatcher, held):
        first = asyncio.ensure_future(dispatcher.predict(IMAGES[0]))
        await until(lambda: held.calls)
        other = np.ascontiguousarray(IMAGES[0][:80])
        few = Options(threshold=0.9, classes=("car",))
        waiting = [
            asyncio.ensure_future(dispatcher.predict(image, options))
            for image, options in (
                (IMAGES[1], None),
                (other, None),
                (IMAGES[2], Options()),
                (IMAGES[3], few),
                (IMAGES[3], None),
                (IMAGES[0], None),
            )
        ]
        await until(lambda: dispatcher.depth == 6)
        held.go.set()
        answers = await asyncio.gather(first, *waiting)
        sizes = [(count, shape[0], options["threshold"]) for count, shape, options in held.calls]
        assert sizes == [(1, 90, None), (3, 90, None), (1, 80, None), (1, 90, 0.9), (1, 90, None)]
        assert [answer.batch for answer in answers] == [1, 3, 1, 3, 1, 3, 1]
        images = [IMAGES[0], IMAGES[1], other, IMAGES[2], IMAGES[3], IMAGES[3], IMAGES[0]]
        for image, answer in zip(images, answers, strict=True):
            chosen = few.arguments() if answer is answers[4] else {}
            alone = model.predict(image, **chosen)
            assert np.allclose(answer.detections.confidence, alone.confidence, atol=1e-4)
            assert np.array_equal(answer.detections.class_id, alone.class_id)
            assert answer.queue_s >= 0
            assert answer.predict_s > 0


@run
async def test_a_full_queue_takes_all_or_none(model):
    async with Started(model, queue=3) as (dispatcher, held):
        first = asyncio.ensure_future(dispatcher.predict(IMAGES[0]))
        await until(lambda: held.calls)
        waiting = asyncio.ensure_future(dispatcher.predict_all(IMAGES[:2]))
        await until(lambda: dispatcher.depth == 2)
        with pytest.raises(ProblemError, match="The queue of 3 images is full") as refused:
            await dispatcher.predict_all(IMAGES[:2])
        assert refused.value.status == 429
        assert refused.value.headers["Retry-After"] == "1"
        assert dispatcher.depth == 2
        held.go.set()
        assert len(await waiting) == 2
        await first


@run
async def test_a_deadline_that_passes_while_waiting_saves_the_work(model):
    async with Started(model) as (dispatcher, held):
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(dispatcher.predict(IMAGES[0], deadline=loop.time() + 0.05))
        await until(lambda: held.calls)
        with pytest.raises(ProblemError, match="The image waited for its deadline") as late:
            await dispatcher.predict(IMAGES[1], deadline=loop.time() + 0.05)
        assert late.value.status == 504
        assert dispatcher.depth == 0
        held.go.set()
        assert (await first).batch == 1  # what runs is answered
        assert len(held.calls) == 1


@run
async def test_what_comes_after_its_deadline_is_not_taken(model):
    async with Started(model) as (dispatcher, held):
        held.go.set()
        with pytest.raises(ProblemError, match="deadline passed before") as late:
            await dispatcher.predict(IMAGES[0], deadline=asyncio.get_running_loop().time())
        assert late.value.status == 504
        assert held.calls == []


@run
async def test_what_nobody_waits_for_is_not_done(model):
    async with Started(model) as (dispatcher, held):
        first = asyncio.ensure_future(dispatcher.predict(IMAGES[0]))
        await until(lambda: held.calls)
        gone = asyncio.ensure_future(dispatcher.predict(IMAGES[1]))
        running = first
        await until(lambda: dispatcher.depth == 1)
        gone.cancel()
        running.cancel()
        await asyncio.gather(gone, running, return_exceptions=True)
        assert dispatcher.depth == 0
        held.go.set()
        assert (await dispatcher.predict(IMAGES[2])).batch == 1
        assert len(held.calls) == 2


@run
async def test_images_are_made_by_threads_which_take_a_free_lane(model):
    names = []

    def make(number):
        names.append(threading.current_thread().name)
        return IMAGES[number]

    async with Started(model) as (dispatcher, held):
        held.go.set()
        predict = held.predict
        held.predict = lambda images, **_: names.append(threading.current_thread().name) or predict(images)
        answers = await dispatcher.predict_all([lambda: make(2)])
        assert names[0] == names[1]  # one thread did both
        assert answers[0].image is IMAGES[2]
        assert answers[0].made_s > 0
        several = await dispatcher.predict_all([lambda n=n: make(n) for n in range(4)])
        assert [answer.image is image for answer, image in zip(several, IMAGES, strict=True)] == [True] * 4
        for image, answer in zip(IMAGES, several, strict=True):
            assert np.array_equal(answer.detections.xyxy, model.predict(image).xyxy)
        await until(lambda: not dispatcher._taken)


@run
async def test_images_that_are_being_made_count_as_waiting(model):
    go, begun = threading.Event(), threading.Event()

    def make():
        begun.set()
        assert go.wait(30)
        return IMAGES[0]

    async with Started(model, queue=3) as (dispatcher, held):
        held.go.set()
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(dispatcher.predict_all([make] * 3))]  # two threads: the third is not begun
        await until(begun.is_set)
        assert dispatcher.depth == 3
        with pytest.raises(ProblemError, match="The queue of 3 images is full"):
            await dispatcher.predict(IMAGES[1])
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert dispatcher.depth == 2  # those that threads are at
        with pytest.raises(ProblemError, match="The image waited for its deadline"):
            await dispatcher.predict(make, deadline=loop.time() + 0.05)
        assert dispatcher.depth == 2
        go.set()
        await until(lambda: dispatcher.depth == 0)
        assert held.calls == []  # nobody waits for them
        assert (await dispatcher.predict(make)).batch == 1


@run
async def test_an_image_that_cannot_be_made_is_an_error_of_its_own(model):
    async with Started(model) as (dispatcher, held):
        held.go.set()
        with pytest.raises(ZeroDivisionError):
            await dispatcher.predict_all([lambda: IMAGES[0], lambda: 1 // 0])
        await until(lambda: dispatcher.depth == 0)
        assert (await dispatcher.predict(lambda: IMAGES[1])).batch == 1


@run
async def test_an_error_reaches_those_of_its_batch_alone(model):
    async with Started(model, batch=4) as (dispatcher, held):
        held.go.set()
        with pytest.raises(InputError, match="threshold must name classes"):
            await dispatcher.predict(IMAGES[0], Options(threshold=(("cow", 0.5),)))
        assert (await dispatcher.predict(IMAGES[0])).batch == 1


@run
async def test_closing_answers_what_waits_and_refuses_more(model):
    async with Started(model) as (dispatcher, held):
        tasks = [asyncio.ensure_future(dispatcher.predict(image)) for image in IMAGES]
        await until(lambda: dispatcher.depth == 3)
        closing = asyncio.ensure_future(asyncio.to_thread(dispatcher.close))
        await until(lambda: dispatcher._is_closed)
        with pytest.raises(ProblemError, match="shutting down"):
            await dispatcher.predict(IMAGES[0])
        held.go.set()
        assert len(await asyncio.gather(*tasks)) == 4
        await closing


@run
async def test_over_http_the_queue_and_the_deadline_are_statuses(model, street):
    held = Held(model)
    held.go.set()
    async with served({"demo": held}, queue=1, deadline_s=0.3) as client:
        await client.service.warmed_up()
        held.go.clear()
        held.calls.clear()
        post = lambda: asyncio.ensure_future(client.post("/v1/predict", content=encoded(street)))  # noqa: E731
        running = [post()]
        await until(lambda: len(held.calls) == 1)
        running.append(post())
        await until(lambda: len(held.calls) == 2)  # each lane has one
        waiting = post()
        await until(lambda: client.service.dispatcher().depth == 1)
        assert problem_of(await post()) == (429, "The queue of 1 images is full; try again later.")
        assert problem_of(await waiting)[0] == 504
        held.go.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        assert len(held.calls) == 2

"""Batches and permits: what waits together is answered together, and nothing is lost, held up, forgotten or kept."""

import asyncio
import copy
import gc
import json
import logging
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch

from maskjet.errors import InputError, SourceError, UnsupportedError
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.problems import ProblemError, to_problem
from maskjet.serve.tickets import Answer, LargeImage, Options, WholeJPEG
from maskjet.sources.decoding import Decoding
from maskjet.sources.images import decode_image
from maskjet.tiling.layout import Tiling, cut_tiles
from tests.serve.client import Held, encoded, problem_of, run, served


class Found:
    """What a fake model finds: the number that is an image's first value."""

    def __init__(self, image):
        self.number = int(image[0, 0, 0])

    def draw(self, image):
        return image


class Fake:
    """A model that answers once it is let go, and notes its calls; `before` is called with the images of each batch."""

    config = SimpleNamespace(batch=2, max_detections=5)

    def __init__(self):
        self.go, self.calls, self.before, self.prepare = threading.Event(), [], lambda _: None, lambda _: None
        self.go.set()

    def report(self):
        return SimpleNamespace(device="cpu")

    def count_tiles(self, size_hw, tiling, most):
        return len(cut_tiles(size_hw, tiling.tile, tiling.overlap, (32, 32), full=False, most=most))

    def predict(self, images, **options):
        self.calls.append((len(images), images[0].shape[0], options["threshold"]))
        assert self.go.wait(30)
        self.before(images)
        return [Found(image) for image in images]


class Observer:
    def __init__(self):
        self.is_warm = threading.Event()
        self.batch_error = None

    def warm(self, _):
        self.is_warm.set()

    def failed(self, error):
        raise AssertionError from error

    def batch_done(self, *_):
        if self.batch_error is not None:
            raise self.batch_error


@asynccontextmanager
async def started(*, pool=None, threads=2, is_held=False, **options):
    """A dispatcher of a fake model that is warm."""
    model, observer = Fake(), Observer()
    made = pool or ThreadPoolExecutor(threads)
    dispatcher = Dispatcher("fake", model, made, observer, **options)
    dispatcher.start()
    try:
        assert await asyncio.to_thread(observer.is_warm.wait, 30)
        await until(lambda: dispatcher.largest == dispatcher.batch)
        model.calls.clear()
        if is_held:
            model.go.clear()
        yield dispatcher, model, observer
    finally:
        model.go.set()
        start = time.monotonic()
        await asyncio.to_thread(dispatcher.close, 5)
        assert time.monotonic() - start < 4  # no image and no permit is lost
        made.shutdown()


async def until(is_so):
    """Wait until something is so."""
    for _ in range(6000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError


def is_closed(dispatcher):
    try:
        dispatcher.check_room()
    except ProblemError as refused:
        return refused.status == 503
    return False


def picture(number, height=2):
    return np.full((height, 2, 3), number, np.uint8)


PICTURES = [picture(number) for number in range(4)]


async def predict(dispatcher, image, *args, **options):
    (answer,) = await dispatcher.predict_all([image], *args, **options)
    return answer


def ask(dispatcher, *args, **options):
    """A prediction that is under way."""
    return asyncio.ensure_future(predict(dispatcher, *args, **options))


@run
async def test_what_waits_is_batched_by_options_whatever_its_size():
    async with started(batch=3, permits=1, is_held=True) as (dispatcher, model, _):
        first = ask(dispatcher, picture(0))
        await until(lambda: model.calls)
        few = Options(threshold=0.9, classes=("car",))
        kinds = [(2, None), (1, None), (2, Options()), (2, few), (2, None), (2, None)]
        waiting = [ask(dispatcher, picture(1 + n, height), options) for n, (height, options) in enumerate(kinds)]
        await until(lambda: dispatcher.depth == 6)
        model.go.set()
        answers = await asyncio.gather(first, *waiting)
        assert model.calls == [(1, 2, None), (3, 2, None), (1, 2, 0.9), (2, 2, None)]
        assert [answer.batch for answer in answers] == [1, 3, 3, 3, 1, 2, 2]
        assert [answer.detections.number for answer in answers] == list(range(7))
        assert all(answer.queue_s >= 0 and answer.predict_s > 0 for answer in answers)


@run
async def test_beside_a_batch_under_way_no_smaller_one_starts():
    async with started(batch=4, is_held=True) as (dispatcher, model, _):
        two = asyncio.ensure_future(dispatcher.predict_all(PICTURES[:2]))
        await until(lambda: model.calls)
        others = [ask(dispatcher, PICTURES[2])]
        await asyncio.sleep(0.05)
        assert dispatcher.depth == 1
        others.append(ask(dispatcher, PICTURES[3]))
        await until(lambda: len(model.calls) == 2)
        others.append(ask(dispatcher, PICTURES[0]))
        await until(lambda: dispatcher.depth == 1)
        model.go.set()
        await asyncio.gather(two, *others)
        assert [count for count, *_ in model.calls] == [2, 2, 1]


@run
async def test_images_that_a_batch_leaves_waiting_need_not_wait_for_its_end():
    both = threading.Barrier(2, timeout=30)
    async with started(batch=4, is_held=True) as (dispatcher, model, _):
        three = asyncio.ensure_future(dispatcher.predict_all(PICTURES[:3]))
        await until(lambda: model.calls)
        cut = [ask(dispatcher, PICTURES[3], Options(tiling=Tiling(32, 0.0))) for _ in range(2)]
        await until(lambda: dispatcher.depth == 2)
        model.before = lambda images: both.wait() if len(images) == 1 else None
        model.go.set()
        await asyncio.gather(three, *cut)


@run
async def test_an_image_that_is_cut_fills_batches_alone_and_has_at_most_64_tiles():
    async with started(batch=3, permits=1, is_held=True) as (dispatcher, model, _):
        first = ask(dispatcher, picture(0))
        await until(lambda: model.calls)
        cut = Options(tiling=Tiling(32, 0.0))
        waiting = [ask(dispatcher, np.zeros((height, 2, 3), np.uint8), cut) for height in (1984, 2080, 64)]
        await until(lambda: dispatcher.depth == 2)
        model.go.set()
        answers = await asyncio.gather(first, *waiting, return_exceptions=True)
        assert model.calls == [(1, 2, None), (1, 1984, None), (1, 64, None)]
        assert [type(answer) for answer in answers] == [Answer, Answer, InputError, Answer]


@run
async def test_tiles_are_counted_and_take_turns_with_other_images():
    cut, tall = Options(tiling=Tiling(32, 0.0)), np.zeros((1024, 2, 3), np.uint8)  # 32 tiles
    go = threading.Event()
    async with started() as (dispatcher, model, _):
        model.before = lambda images: images[0].shape[0] == 2 or go.wait(30)
        running = ask(dispatcher, tall, cut)
        await until(lambda: model.calls)
        for form in ([tall] * 3, [lambda: tall] * 3):
            with pytest.raises(ProblemError, match="at most 64 tiles together, these have 96") as refused:
                await dispatcher.predict_all(form, cut)
            assert refused.value.status == 413
        waiting = [ask(dispatcher, tall, cut) for _ in range(2)]
        await until(lambda: dispatcher.depth == 2)
        with pytest.raises(ProblemError, match="The queue of 64 tiles is full") as full:
            await predict(dispatcher, lambda: tall, cut)
        assert full.value.status == 429
        for number in range(3):  # others need not wait for the images that are cut
            answer = await asyncio.wait_for(predict(dispatcher, picture(number)), 10)
            assert answer.detections.number == number
        assert [height for _, height, _ in model.calls] == [1024, 2, 2, 2]
        go.set()
        assert len(await asyncio.gather(running, *waiting)) == 3


@run
async def test_single_images_take_turns_with_those_of_requests_that_have_several():
    async with started(permits=1, is_held=True, queue=16) as (dispatcher, model, _):
        order = []
        model.before = lambda images: order.append(int(images[0][0, 0, 0]))
        forms = [asyncio.ensure_future(dispatcher.predict_all([picture(number)] * 6)) for number in (1, 2)]
        await until(lambda: model.calls and dispatcher.depth == 11)
        with pytest.raises(ProblemError, match="The queue of 16 images is full"):
            await dispatcher.predict_all(PICTURES[:4])  # the last places are for single images
        alone = [ask(dispatcher, picture(3)) for _ in range(2)]
        await until(lambda: dispatcher.depth == 13)
        model.go.set()
        await asyncio.gather(*forms, *alone)
        assert order == [1, 3, 1, 3, 1, 1, 1, 1, *[2] * 6]


@run
async def test_large_images_are_decoded_by_threads_of_their_own():
    go, begun, order = threading.Event(), threading.Event(), []
    with ThreadPoolExecutor(1) as large:
        async with started(large=large, queue=4) as (dispatcher, _, _):
            waiting = []
            for _ in range(3):
                waiting.append(
                    ask(dispatcher, partial(LargeImage, 9, lambda: begun.set() or (go.wait(30) and picture(1))))
                )
                await until(lambda: begun.is_set() and len(dispatcher._encoded[1]) == len(waiting) - 1)
            with pytest.raises(ProblemError, match="2 large images wait"):
                await predict(dispatcher, partial(LargeImage, 9, None))
            assert (await asyncio.wait_for(predict(dispatcher, lambda: picture(2)), 5)).detections.number == 2
            waiting.pop().cancel()
            await until(lambda: dispatcher.depth == 2)
            waiting.append(ask(dispatcher, partial(LargeImage, 8, lambda: order.append(8) or picture(1))))
            await until(lambda: dispatcher.depth == 3)
            waiting[1].add_done_callback(lambda _: order.append(9))
            go.set()
            assert [answer.detections.number for answer in await asyncio.gather(*waiting)] == [1, 1, 1]
            assert order == [8, 9]  # the smallest first


class FakeJPEGs:
    """A GPU that decodes each JPEG to a picture of its number, refuses negative ones, and notes its batches."""

    def __init__(self):
        self.batches, self.error = [], None

    def decode(self, numbers):
        self.batches.append(numbers)
        if self.error is not None:
            raise self.error
        return [None if number < 0 else picture(number) for number in numbers]


def problem_in(answer):
    return answer.status, answer.detail


def cut_off():
    raise SourceError("image must be decodable, it is cut off.")


@run
async def test_jpegs_of_a_batch_are_decoded_together_and_fail_alone():
    gpu = FakeJPEGs()
    async with started(is_held=True, jpegs=gpu, permits=1, batch=8) as (dispatcher, model, observer):
        first = ask(dispatcher, PICTURES[3])
        await until(lambda: model.calls)
        whole = [WholeJPEG(1, None), WholeJPEG(-7, lambda: picture(7)), WholeJPEG(-1, cut_off), WholeJPEG(2, None)]
        rest = []
        for each in (PICTURES[0], *(partial(copy.copy, each) for each in whole)):
            rest.append(ask(dispatcher, each))
            await until(lambda: dispatcher.depth == len(rest))
            await asyncio.sleep(0.01)  # until it is decoded
        model.go.set()
        answers = await asyncio.gather(first, *rest, return_exceptions=True)
        assert gpu.batches == [[1, -7, -1, 2]]  # in one call, in the order of the queue
        assert [each.detections.number for each in answers if not isinstance(each, Exception)] == [3, 0, 1, 7, 2]
        assert problem_in(answers[4]) == (422, "image must be decodable, it is cut off.")
        assert [size for size, *_ in model.calls] == [1, 4]
        jpeg, array = answers[2], answers[1]
        assert jpeg.decode_s > array.decode_s == 0
        assert jpeg.queue_s >= 0
        gpu.error, failed = RuntimeError("CUDA error: unknown"), []
        observer.failed = failed.append
        with pytest.raises(ProblemError, match="The device failed on a JPEG: CUDA error: unknown"):
            await predict(dispatcher, lambda: whole[0])
        assert len(failed) == 1


@pytest.mark.parametrize("form", [False, True])
@run
async def test_over_http_the_gpu_decodes_plain_jpegs_and_the_cpu_all_others(model, street, form, monkeypatch):
    class CPU:
        """Decodes as the GPU is to."""

        def decode(self, images):
            decoded.extend(images)
            return [torch.from_numpy(decode_image(image.data, "it")) for image in images]

    decoded = []
    monkeypatch.setattr(Decoding, "jpeg_decoder", lambda _: CPU())
    monkeypatch.setattr(type(model), "decoding", lambda _: Decoding("cuda:0", is_automatic=True))
    plain = encoded(street, ".jpg")
    progressive = encoded(street, ".jpg", (cv2.IMWRITE_JPEG_PROGRESSIVE, 1))
    async with served({"demo": model}) as client:
        await client.service.warmed_up.wait()

        async def ask_with(data):
            decoded.clear()
            return await client.post("/v1/predict", **({"files": {"a": data}} if form else {"content": data}))

        for data, is_ours in ((plain, True), (progressive, False), (encoded(street), False)):
            answer = (await ask_with(data)).json()
            assert [image.data for image in decoded] == [data] * is_ours
            result = answer["results"][0] if form else answer
            expected = json.loads(model.predict(decode_image(data, "it")).to_json())
            assert {name: result[name] for name in expected} == expected
        assert (await ask_with(plain[:-900])).status_code == 422
        assert decoded == []
        picture = await client.post("/v1/predict", content=plain, headers={"Accept": "image/png"})
        assert picture.status_code == 200
        told = (await client.get("/metrics")).text
        assert 'maskjet_jpegs_on_cpu_total{reason="progressive"} 1.0' in told
        assert (await client.get("/v1/status")).json()["jpegs"] == "cuda:0"


@run
async def test_without_the_library_the_cpu_decodes_unless_the_gpu_was_asked_for(model, monkeypatch):
    monkeypatch.setattr(type(model), "decoding", lambda _: Decoding("cuda:0", is_automatic))
    monkeypatch.setattr(Decoding, "jpeg_decoder", lambda _: fail())

    def fail():
        raise UnsupportedError("device='cuda:0' must have a decoder of JPEGs.")

    is_automatic = True
    async with served({"demo": model}) as client:
        assert (await client.get("/v1/status")).json()["jpegs"] == "cpu (device='cuda:0' must have a decoder of JPEGs.)"
    is_automatic = False
    with pytest.raises(UnsupportedError, match="must have a decoder of JPEGs"):
        async with served({"demo": model}):
            pass


@run
async def test_a_full_queue_takes_all_or_none():
    async with started(queue=3, permits=1, is_held=True) as (dispatcher, model, _):
        first = ask(dispatcher, picture(0))
        await until(lambda: model.calls)
        waiting = asyncio.ensure_future(dispatcher.predict_all(PICTURES[:2]))
        await until(lambda: dispatcher.depth == 2)
        with pytest.raises(ProblemError, match="The queue of 3 images is full") as refused:
            await dispatcher.predict_all(PICTURES[:2])
        assert refused.value.status == 429
        assert refused.value.headers["Retry-After"] == "1"
        assert dispatcher.depth == 2
        model.go.set()
        assert len(await waiting) == 2
        await first


@run
async def test_a_deadline_that_passes_saves_the_work():
    async with started(permits=1, is_held=True) as (dispatcher, model, _):
        loop = asyncio.get_running_loop()
        first = ask(dispatcher, picture(0), deadline=loop.time() + 0.2)
        await until(lambda: model.calls)
        with pytest.raises(ProblemError, match="The image waited for its deadline") as late:
            await predict(dispatcher, picture(1), deadline=loop.time() + 0.25)
        assert late.value.status == 504
        assert dispatcher.depth == 0
        with pytest.raises(ProblemError, match="deadline passed before") as late:
            await predict(dispatcher, picture(2), deadline=loop.time())
        assert late.value.status == 504
        model.go.set()
        assert (await first).batch == 1  # what runs is answered
        assert len(model.calls) == 1
        slow = await predict(dispatcher, lambda: time.sleep(0.2) or picture(3), deadline=loop.time() + 0.1)
        assert slow.detections.number == 3  # and what is being decoded


@run
async def test_images_are_decoded_by_threads_which_take_a_free_permit():
    names = []

    def make(number):
        names.append(threading.current_thread().name)
        return PICTURES[number]

    async with started(permits=1) as (dispatcher, model, _):
        model.before = lambda _: names.append(threading.current_thread().name)
        answers = await dispatcher.predict_all([lambda: make(2)])
        assert names[0] == names[1]  # one thread did both
        assert answers[0].image is PICTURES[2]
        assert answers[0].decode_s > 0
        several = await dispatcher.predict_all([partial(make, n) for n in range(4)])
        assert [answer.image is image for answer, image in zip(several, PICTURES, strict=True)] == [True] * 4
        assert [answer.detections.number for answer in several] == [0, 1, 2, 3]


@run
async def test_images_that_are_being_decoded_count_as_waiting():
    go, begun = threading.Event(), []

    def make():
        begun.append(1)
        assert go.wait(30)
        return picture(0)

    async with started(queue=3, permits=1) as (dispatcher, model, _):
        task = asyncio.ensure_future(dispatcher.predict_all([make] * 3))  # two threads: the third is not begun
        await until(lambda: len(begun) == 2)
        assert dispatcher.depth == 3
        with pytest.raises(ProblemError, match="The queue of 3 images is full"):
            await predict(dispatcher, picture(1))
        task.cancel()
        await asyncio.wait((task,))
        assert dispatcher.depth == 2  # those that threads are at
        with pytest.raises(ProblemError, match="The image waited for its deadline"):
            await predict(dispatcher, make, deadline=asyncio.get_running_loop().time() + 0.05)
        assert dispatcher.depth == 2
        go.set()
        await until(lambda: dispatcher.depth == 0)
        assert model.calls == []  # nobody waits for them
        assert (await predict(dispatcher, make)).batch == 1


@run
async def test_an_error_is_one_of_its_request_alone():
    def fail(_):
        raise InputError("threshold must name classes.")

    async with started(permits=1) as (dispatcher, model, _):
        with pytest.raises(ProblemError, match="its log has the cause"):
            await dispatcher.predict_all([lambda: picture(0), lambda: 1 // 0])
        await until(lambda: dispatcher.depth == 0)
        model.before = fail
        with pytest.raises(ProblemError, match="threshold must name classes"):
            await predict(dispatcher, picture(0))
        model.before = lambda _: None
        assert (await predict(dispatcher, lambda: picture(1))).batch == 1


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize("error", [Panic("ouch"), SystemExit(3), StopIteration(), KeyboardInterrupt()])
@run
async def test_an_error_that_is_not_ours_is_one_of_its_request_and_logged_once(error, caplog):
    def fail(*_):
        raise error

    async with started(queue=2, permits=1) as (dispatcher, model, _):
        for before, image in ((model.before, fail), (fail, picture(1)), (fail, lambda: picture(1))) * 2:
            model.before = before
            with pytest.raises(ProblemError, match="its log has the cause") as failed:
                await asyncio.wait_for(predict(dispatcher, image), 5)
            assert to_problem(failed.value) is failed.value
            (record,) = caplog.records
            assert failed.value.reference in record.getMessage()
            assert record.exc_info[1] is error
            caplog.clear()
            await until(lambda: not dispatcher.depth)
        model.before = lambda _: model.go.wait(30) and fail()
        model.go.clear()
        task = ask(dispatcher, picture(1))
        await until(lambda: len(model.calls) == 5)
        task.cancel()  # nobody waits for the error
        with suppress(asyncio.CancelledError):
            await task
        model.go.set()
        await until(lambda: caplog.records)
        model.before = lambda _: None
        assert (await asyncio.wait_for(predict(dispatcher, picture(4)), 5)).detections.number == 4


@run
async def test_closing_answers_what_waits_and_refuses_more():
    async with started(permits=1, is_held=True) as (dispatcher, model, _):
        tasks = [ask(dispatcher, image) for image in PICTURES]
        await until(lambda: dispatcher.depth == 3)
        closing = asyncio.ensure_future(asyncio.to_thread(dispatcher.close, 5))
        await until(lambda: is_closed(dispatcher))
        with pytest.raises(ProblemError, match="shutting down"):
            await predict(dispatcher, picture(0))
        model.go.set()
        assert len(await asyncio.gather(*tasks)) == 4
        await closing


@run
async def test_an_image_that_is_here_does_not_wait_for_others_to_be_decoded():
    go = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        decoding = [pool.submit(go.wait, 30) for _ in range(6)]
        try:
            async with started(pool=pool) as (dispatcher, _, _):
                answer = await asyncio.wait_for(predict(dispatcher, picture(7)), 5)
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
    pool = ThreadPoolExecutor(1)
    async with started(permits=1, pool=pool) as (dispatcher, model, _):
        is_waiting, may_run = threading.Event(), threading.Event()
        model.before = lambda _: is_waiting.set() or may_run.wait(30)
        first = ask(dispatcher, make_first)
        assert await asyncio.to_thread(is_waiting.wait, 30)
        second = ask(dispatcher, picture(2))
        await until(lambda: dispatcher.depth == 1)
        model.before = hold
        may_run.set()
        assert (await first).detections.number == 1
        assert await asyncio.to_thread(is_busy.wait, 30)
        try:
            assert await asyncio.wait_for(asyncio.wrap_future(pool.submit(int)), 5) == 0
            del first
            gc.collect()
            assert made[0]() is None
        finally:
            go.set()
        assert (await second).detections.number == 2


@run
async def test_an_observer_that_fails_costs_no_permit(caplog):
    async with started() as (dispatcher, _, observer):
        observer.batch_error = ValueError("no room")
        with caplog.at_level(logging.CRITICAL, "maskjet.serve"):
            for number in range(8):
                image = picture(number) if number % 2 else partial(picture, number)
                answer = await asyncio.wait_for(predict(dispatcher, image), 5)
                assert answer.detections.number == number


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
            assert (await predict(dispatcher, lambda: picture(2))).detections.number == 2
            await until(lambda: dispatcher.depth == 0)


@run
async def test_what_nobody_waits_for_is_forgotten_before_its_turn_and_closing_does_not_wait_for_it():
    go = threading.Event()
    pool = ThreadPoolExecutor(1)
    async with started(pool=pool) as (dispatcher, _, _):
        busy = pool.submit(go.wait, 30)

        def make():
            return picture(1)

        kept = weakref.ref(make)
        task = ask(dispatcher, make)
        del make
        await until(lambda: dispatcher.depth == 1)
        closing = asyncio.ensure_future(asyncio.to_thread(dispatcher.close, 30))
        await until(lambda: is_closed(dispatcher))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait((task,))
        del task
        gc.collect()
        assert kept() is None
        assert dispatcher.depth == 0
        await asyncio.wait_for(closing, 5)
        go.set()
        assert await asyncio.to_thread(busy.result)


@run
async def test_nothing_is_lost_among_cancellations_errors_and_deadlines():
    drawn = random.Random(0)
    loop = asyncio.get_running_loop()

    def make(number):
        time.sleep(number % 4 / 2000)
        if number % 7 == 0:
            raise ZeroDivisionError
        return picture(number)

    async def ask_some(dispatcher, first):
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
            tasks.append(asyncio.ensure_future(ask_some(dispatcher, number % 200)))
            if drawn.random() < 0.3:
                loop.call_later(drawn.random() / 100, tasks[drawn.randrange(len(tasks))].cancel)
            if drawn.random() < 0.5:
                await asyncio.sleep(drawn.random() / 500)
        done, _ = await asyncio.wait(tasks, timeout=30)
        assert len(done) == 400
        assert [task for task in done if not task.cancelled() and task.exception()] == []
        await until(lambda: dispatcher.depth == 0)
        answers = await dispatcher.predict_all([picture(1), lambda: picture(2)])
        assert [answer.detections.number for answer in answers] == [1, 2]


@run
async def test_over_http_the_queue_and_the_deadline_are_statuses(model, street):
    held = Held(model)
    image = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 3], "data": [1, 2, 3]}
    async with served({"demo": held}, queue=2, deadline_s=1) as client:
        await client.service.warmed_up.wait()
        post = lambda: asyncio.ensure_future(client.post("/v1/predict", content=encoded(street)))  # noqa: E731
        running = [post()]
        await until(lambda: len(held.images) == 1)
        running.append(post())
        await until(lambda: len(held.images) == 2)  # each permit has one
        waiting = [post()]
        await until(lambda: client.service.dispatcher().depth == 1)
        asked = {"inputs": [image], "parameters": {"timeout": 1000}}  # microseconds
        assert (await client.post("/v2/models/demo/infer", json=asked)).status_code == 504
        assert not waiting[0].done()
        waiting.append(post())
        await until(lambda: client.service.dispatcher().depth == 2)
        assert problem_of(await post()) == (429, "The queue of 2 images is full; try again later.")
        assert [problem_of(await each)[0] for each in waiting] == [504, 504]
        held.go.set()
        assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
        assert len(held.images) == 2


@run
async def test_larger_batches_join_while_images_are_answered():
    async with started(batch=1) as (_, model, observer):
        go, asked = threading.Event(), []
        model.prepare = lambda batch: (asked.append(batch), go.wait(30))
        observer.is_warm.clear()
        with ThreadPoolExecutor(2) as pool:
            dispatcher = Dispatcher("fake", model, pool, observer, batch=4, permits=1)
            dispatcher.start()
            assert await asyncio.to_thread(observer.is_warm.wait, 30)
            await until(lambda: asked)
            await asyncio.gather(*(ask(dispatcher, image) for image in PICTURES))
            assert (asked, dispatcher.largest, {size for size, _, _ in model.calls}) == ([2], 1, {1})
            go.set()
            await until(lambda: dispatcher.largest == 4)
            assert asked == [2, 4]
            model.calls.clear()
            model.go.clear()
            asking = [ask(dispatcher, PICTURES[0])]
            await until(lambda: model.calls)
            asking += [ask(dispatcher, image) for image in (*PICTURES[1:], *PICTURES)]
            await until(lambda: dispatcher.depth == 7)
            model.go.set()
            assert [answer.detections.number for answer in await asyncio.gather(*asking)] == [0, 1, 2, 3] * 2
            assert [size for size, _, _ in model.calls] == [1, 4, 3]
            await asyncio.to_thread(dispatcher.close, 5)


@run
async def test_batches_stay_small_where_larger_ones_can_not_be_compiled(caplog):
    async with started(batch=1) as (_, model, observer):
        model.prepare = lambda _: exec('raise RuntimeError("no memory")')
        with ThreadPoolExecutor(2) as pool:
            dispatcher = Dispatcher("fake", model, pool, observer, batch=4)
            dispatcher.start()
            await until(lambda: "has batches of 1 at most: no memory" in caplog.text)
            answers = await asyncio.gather(*(ask(dispatcher, image) for image in PICTURES))
            assert [answer.detections.number for answer in answers] == [0, 1, 2, 3]
            await asyncio.to_thread(dispatcher.close, 5)

"""Applications of a model, with a client within the process of a test or on a port, and what clients send."""

import asyncio
import functools
import inspect
import random
import threading
from contextlib import asynccontextmanager, contextmanager

import cv2
import httpx
import numpy as np

from maskjet.serve import Settings, create_app, server

TOKEN = "correct-horse"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def encoded(image, suffix=".png", options=()):
    """An RGB image as the bytes of a file."""
    return cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), list(options))[1].tobytes()


def problem_of(answer):
    """Status and detail of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"].startswith("urn:maskjet:problem:")
    assert problem["title"]
    return answer.status_code, problem["detail"]


@asynccontextmanager
async def served(models, **settings):
    """A client of a service that has started."""
    app = create_app(models, Settings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.service = app.state.service
            yield client


class Address(str):
    """Host and port of a service, its state, and a function that ends it."""

    service: object
    end: object


@contextmanager
def serving(models, **settings):
    """A service on a free port, in a thread; ended at the end."""
    settings = Settings(port=0, **{"drain_s": 5, **settings})
    app, ready = create_app(models, settings), threading.Event()
    with server.listen(settings) as listener:
        made = server.Server(server.configure(app, settings), app.state.service, announce=ready.set)
        address = Address(server.url_of(listener).removeprefix("http://"))
        address.service, address.end = app.state.service, lambda: setattr(made, "should_exit", True)
        thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert ready.wait(30)
            yield address
        finally:
            address.end()
            thread.join(20)
            assert not thread.is_alive()


class Held:
    """A model that waits to be let go before it predicts, and then may fail; the first frames are not held up."""

    def __init__(self, model, error=None):
        self._model, self.error = model, error
        self.holds_first_frames = False
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self.images = []

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **options):
        if images and (self.holds_first_frames or images[0].shape[0] > 64):
            self.images += images
            self.begun.release()
            assert self.go.wait(30)
            if self.error is not None:
                raise self.error
        return self._model.predict(images, **options)


def mutants(body, head, count):
    """Copies of a request with one to three places changed, most of them in its head."""
    chance = random.Random(0)
    for _ in range(count):
        mutant = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(head if chance.random() < 0.6 else len(body))
            mutant[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
        yield bytes(mutant)


def check_equal(result, found, *, is_text=False):
    """The outputs of a response of the Open Inference Protocol are these detections."""
    assert result.as_numpy("count").tolist() == [len(one) for one in found]
    assert result.as_numpy("image_size").tolist() == [list(one.image_size) for one in found]
    for name, field in (("boxes", "xyxy"), ("scores", "confidence"), ("class_ids", "class_id")):
        expected = np.concatenate([getattr(one, field) for one in found])
        got = result.as_numpy(name)
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)
    masks = [rle["counts"] for one in found for rle in one.rle]
    assert result.as_numpy("masks").tolist() == [mask.decode() if is_text else mask for mask in masks]


def run(test):
    """Run a test's coroutine function in an event loop, for a minute at most."""

    @functools.wraps(test)
    def wrapped(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    wrapped.__signature__ = inspect.signature(test)
    return wrapped


def asking(**settings):
    """Run a test's coroutine function with a client of a service of the demo model, which is warm."""

    def decorate(test):
        names = inspect.signature(test).parameters

        @functools.wraps(test)
        async def ask(model, **fixtures):
            if "model" in names:
                fixtures["model"] = model
            async with served({"demo": model}, **settings) as client:
                await client.service.warmed_up.wait()
                await test(client=client, **fixtures)

        needed = dict.fromkeys(["model", *(name for name in names if name != "client")])
        kind = inspect.Parameter.KEYWORD_ONLY
        ask.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in needed])
        return run(ask)

    return decorate

"""An application of the demo model, and a client within the process of a test."""

import asyncio
from contextlib import asynccontextmanager

import cv2
import httpx

from maskjet.serve.app import create_app
from maskjet.serve.settings import Settings


def encoded(image, suffix=".png"):
    """An RGB image as the bytes of a file."""
    return cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


@asynccontextmanager
async def served(models, **settings):
    """A client of a service that has started."""
    app = create_app(models, Settings(**settings))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            client.service = app.state.service
            yield client


def run(test):
    """Run a test's coroutine function with its fixtures in an event loop."""

    def wrapped(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    import inspect

    wrapped.__name__ = test.__name__
    wrapped.__signature__ = inspect.signature(test)
    return wrapped

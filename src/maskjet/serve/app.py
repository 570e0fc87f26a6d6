"""The ASGI application of a service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from maskjet.errors import InputError
from maskjet.serve import health, live, metrics, page, problems, source_routes, v1, v2
from maskjet.serve.guard import Guard
from maskjet.serve.metrics import RequestCounter
from maskjet.serve.other_workers import OtherWorkers
from maskjet.serve.service import Service
from maskjet.serve.settings import Settings
from maskjet.serve.sources import Sources
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet.model import Model


def create_app(
    models: Mapping[str, Model], settings: Settings | None = None, other_workers: OtherWorkers | None = None
) -> FastAPI:
    """Create the ASGI application for loaded models; its state is `app.state.service`.

    Its lifespan starts and ends the threads that call the models. The caller closes the models.

    Args:
        models: Models by name, at least one; the first one serves requests that name none.
        settings: Limits and the token; None for the defaults.
        other_workers: The workers of a service of several processes; None for one process.

    Raises:
        InputError: There is no model.
    """
    if not models:
        raise InputError("models must have at least one model, got none.")
    service = Service(models, settings or Settings(), other_workers)
    sources = Sources(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            sources.start()
            yield
        finally:
            await sources.aclose()
            await service.aclose()

    app = FastAPI(
        title="maskjet",
        version=__version__,
        summary="Instance masks from images.",
        description=live.DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # Swagger UI would load scripts from a CDN
        redoc_url=None,
    )
    app.state.service, app.state.sources, app.state.other_workers = service, sources, other_workers
    for router in (v1.router, v2.router, live.router, source_routes.router, health.router, metrics.router, page.router):
        app.include_router(router)
    app.add_exception_handler(HTTPException, _answer_problem)  # `Guard` answers other errors
    app.add_middleware(_Shortcut)
    app.add_middleware(Guard, service=service)
    app.add_middleware(RequestCounter, metrics=service.metrics)  # added last, so the outermost
    return app


class _Shortcut:
    """Calls inference routes directly, as FastAPI's routing, kept for OpenAPI and prefixes, is slower than they."""

    def __init__(self, app: ASGIApp) -> None:
        routes: list[Any] = [*v1.router.routes, *v2.router.routes]
        self._app, self._routes = app, [route for route in routes if route.endpoint in (v1.predict, v2.infer)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; `Guard` answers if it raises an error."""
        is_one = scope["type"] == "http" and scope["method"] == "POST" and not scope.get("root_path")
        answer = self._app
        for route in self._routes if is_one else ():
            if found := route.path_regex.match(scope["path"]):
                scope["route"] = route
                answer = await route.endpoint(Request(scope, receive), **found.groupdict())
        await answer(scope, receive, send)


async def _answer_problem(request: Request, error: Exception) -> Response:
    return problems.to_problem(error).response(request.url.path)

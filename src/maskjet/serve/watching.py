"""Routes of the sources that the service watches: their list, their results, and their preview."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, StreamingResponse

from maskjet.serve import bodies, documents, problems
from maskjet.serve.names import check_host, check_url
from maskjet.serve.service import Service
from maskjet.serve.siblings import Siblings
from maskjet.serve.sources import Sources, WatchedSource
from maskjet.serve.tickets import Options


class _Route(APIRoute):
    """A route of the process that watches the sources; other processes of the service forward its requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_or_forward(request: Request) -> Response:
            siblings: Siblings | None = request.app.state.siblings
            if siblings is None or siblings.has_sources:
                return await answer(request)
            return await siblings.forward(request, await bodies.read(request))

        return answer_or_forward


router = APIRouter(tags=["sources"], route_class=_Route)
_Id = Annotated[str, Path(alias="id", description="Of the source, from GET /v1/sources.")]
_MOST_BYTES = 2**16  # of a description of a source
_MOST_NAME = 100
_HEARTBEAT_S = 15.0
_BOUNDARY = "frame"
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the second: nginx would hold it back
_FIELDS = ("url", "name", "model", "threshold", "classes", "max_detections")


@router.get("/v1/sources", summary="The sources that the service watches", responses=documents.SOURCES)
async def sources(request: Request) -> dict[str, Any]:
    """Each source with its state and counts."""
    return {"sources": [source.as_dict() for source in _sources(request).all()]}


@router.post(
    "/v1/sources",
    status_code=201,
    summary="Watch another source",
    openapi_extra={"requestBody": documents.NEW_SOURCE},
    responses=documents.ADD_SOURCE,
    response_class=JSONResponse,
)
async def add_source(request: Request) -> Response:
    """Only for those who have the service's token. This machine and link-local addresses are refused."""
    service: Service = request.app.state.service
    _check_may_change(service)
    fields = _parse(await bodies.read(request))
    url = check_url(fields.get("url"))
    options = _options(fields)
    await service.in_thread(check_host, url)
    source = _sources(request).add(
        url, name=_text(fields, "name"), model=_text(fields, "model"), options=options, is_from_client=True
    )
    return JSONResponse(source.as_dict(), 201, {"Location": f"{request.url.path}/{source.id}"})


@router.delete("/v1/sources/{id}", status_code=204, summary="Watch a source no longer", responses=documents.ONE_SOURCE)
async def remove_source(request: Request, identity: _Id) -> Response:
    """Only for those who have the service's token."""
    _check_may_change(request.app.state.service)
    _sources(request).remove(identity)
    return Response(status_code=204)


@router.get(
    "/v1/sources/{id}/events",
    summary="A source's results, as they come",
    responses=documents.EVENTS,
    response_class=StreamingResponse,
)
async def events(request: Request, identity: _Id) -> Response:
    """Server-sent events until the source ends. For a reader that is too slow the oldest are left out."""
    source = _sources(request).get(identity)
    return StreamingResponse(_events(source), media_type="text/event-stream", headers=_NO_STORE)


@router.get(
    "/v1/sources/{id}/preview.mjpeg",
    summary="A source's annotated pictures, as they come",
    responses=documents.PREVIEW,
    response_class=StreamingResponse,
)
async def preview(request: Request, identity: _Id) -> Response:
    """Motion JPEG until the source ends. A viewer that is too slow gets the newest picture each time."""
    source = _sources(request).get(identity)
    media_type = f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
    return StreamingResponse(_pictures(source), media_type=media_type, headers=_NO_STORE)


async def _events(source: WatchedSource) -> AsyncIterator[str]:
    with source.followed() as follower:
        yield ": from here on\n\n"
        while (texts := await follower.take(_HEARTBEAT_S)) is not None:
            yield "".join(texts) or ": nothing new\n\n"  # a client that has gone is noticed


async def _pictures(source: WatchedSource) -> AsyncIterator[bytes]:
    number = 0
    with source.viewed() as pictures:
        yield f"--{_BOUNDARY}\r\n".encode()
        while (newest := await pictures.after(number)) is not None:
            number, picture = newest
            head = f"Content-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
            # The boundary at once: browsers show a picture when they see its end.
            yield head.encode() + picture + f"\r\n--{_BOUNDARY}\r\n".encode()


def _sources(request: Request) -> Sources:
    found: Sources = request.app.state.sources
    return found


def _check_may_change(service: Service) -> None:
    if service.settings.token is None:
        raise problems.ProblemError(
            403, "needs-token", "Sources can be changed only at a service that has a token; give them by --source."
        )


def _parse(body: bytes) -> dict[str, Any]:
    """The fields of a new source."""
    if len(body) > _MOST_BYTES:
        raise problems.too_large(f"The body must have at most {_MOST_BYTES:,} bytes, it has {len(body):,}.")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise problems.bad_request("The body must be JSON, it is not.") from None
    if not isinstance(fields, dict):
        raise problems.bad_request(f"The body must be an object, got {type(fields).__name__}.")
    for name in fields:
        if name not in _FIELDS:
            raise problems.bad_request(f"The body must have fields of {', '.join(_FIELDS)}, got {name[:100]!r}.")
    return fields


def _text(fields: dict[str, Any], name: str) -> str | None:
    """A field that is a text; raises ProblemError if it is another value."""
    value = fields.get(name)
    is_fit = isinstance(value, str) and 0 < len(value) <= _MOST_NAME and value.isprintable()
    if value is not None and not is_fit:
        raise problems.bad_request(f"{name} must be a printable text of 1..{_MOST_NAME} characters, it is not.")
    return value


def _options(fields: dict[str, Any]) -> Options:
    """What is reported; raises ProblemError if it is of a wrong type."""
    threshold, classes, most = (fields.get(name) for name in ("threshold", "classes", "max_detections"))
    if isinstance(threshold, dict) and all(map(_is_number, threshold.values())):
        threshold = tuple(threshold.items())
    elif threshold is not None and not _is_number(threshold):
        raise problems.bad_request("threshold must be a number 0..1, or an object of one by class name, it is not.")
    if classes is not None:
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise problems.bad_request("classes must be a list of names, it is not.")
        classes = tuple(classes)
    if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
        raise problems.bad_request("max_detections must be a whole number, it is not.")
    return Options(threshold, classes, most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

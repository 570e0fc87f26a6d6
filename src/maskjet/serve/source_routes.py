"""Routes of the sources that the service watches: list, add, remove, results and preview."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, StreamingResponse

from maskjet.checks import shown
from maskjet.serve import bodies, problems
from maskjet.serve.other_workers import OtherWorkers
from maskjet.serve.service import Service
from maskjet.serve.source_names import check_url
from maskjet.serve.sources import Sources, WatchedSource
from maskjet.serve.tickets import Options


class _Route(APIRoute):
    """Route of the worker that watches the sources; other workers forward its requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_or_forward(request: Request) -> Response:
            other_workers: OtherWorkers | None = request.app.state.other_workers
            if other_workers is None or other_workers.has_sources:
                return await answer(request)
            return await other_workers.forward(request, await bodies.read(request))

        return answer_or_forward


router = APIRouter(tags=["sources"], route_class=_Route, responses=problems.RESPONSES)
_Id = Annotated[str, Path(alias="id", description="Of the source, from GET /v1/sources.")]
_MOST_BYTES = 2**16  # largest JSON of a new source
_HEARTBEAT_S = 15.0
_BOUNDARY = "frame"
_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # second: no buffering in nginx
_Threshold = Annotated[float, Field(ge=0, le=1)]
_ShortText = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^([^\p{C}\p{Z}]| )*$")]  # printable


class NewSource(BaseModel):
    """The JSON body of POST /v1/sources; a field's description is what it must be, also in messages."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: str = Field(description="a text of at most 2048 characters", max_length=2048)
    name: _ShortText | None = Field(None, description="1..100 printable characters")
    model: _ShortText | None = Field(None, description="1..100 printable characters")
    threshold: _Threshold | dict[str, _Threshold] | None = Field(
        None, description="a number 0..1, or an object of them by class name"
    )
    classes: list[str] | None = Field(None, description="a list of at least one text", min_length=1)
    max_detections: int | None = Field(None, description="a whole number of at least 1", ge=1)
    nms: _Threshold | None = Field(None, description="a number 0..1")
    track: bool = Field(False, description="true or false")


_BODY = {
    "required": True,
    "description": "The source.",
    "content": {"application/json": {"schema": NewSource.model_json_schema()}},
}


@router.get("/v1/sources")
async def sources(request: Request) -> dict[str, Any]:
    """Each source with its state and counts."""
    return {"sources": [source.as_dict() for source in _sources(request).all()]}


@router.post("/v1/sources", status_code=201, openapi_extra={"requestBody": _BODY}, response_class=JSONResponse)
async def add_source(request: Request) -> Response:
    """Only where the setting allow_sources lets clients who have the token do so."""
    _check_may_change(request.app.state.service)
    new = _parse(await bodies.read(request))
    url, threshold = check_url(new.url), new.threshold
    options = Options(
        tuple(threshold.items()) if isinstance(threshold, dict) else threshold,
        None if new.classes is None else tuple(new.classes),
        new.max_detections,
        new.nms,
    )
    source = _sources(request).add(url, name=new.name, model=new.model, options=options, track=new.track)
    return JSONResponse(source.as_dict(), 201, {"Location": f"{request.url.path}/{source.id}"})


@router.delete("/v1/sources/{id}", status_code=204)
async def remove_source(request: Request, identity: _Id) -> Response:
    """Only where the setting allow_sources lets clients who have the token do so."""
    _check_may_change(request.app.state.service)
    _sources(request).remove(identity)
    return Response(status_code=204)


@router.get(
    "/v1/sources/{id}/events", responses={200: {"content": {"text/event-stream": {}}}}, response_class=StreamingResponse
)
async def events(request: Request, identity: _Id) -> Response:
    """Server-sent events until the source ends. For a reader that is too slow the oldest are left out."""
    source = _sources(request).get(identity)
    return StreamingResponse(_events(source), media_type="text/event-stream", headers=_NO_STORE)


@router.get(
    "/v1/sources/{id}/preview.mjpeg",
    responses={200: {"content": {"multipart/x-mixed-replace": {}}}},
    response_class=StreamingResponse,
)
async def preview(request: Request, identity: _Id) -> Response:
    """Motion JPEG until the source ends. A viewer that is too slow gets the newest pictures alone."""
    source = _sources(request).get(identity)
    media_type = f"multipart/x-mixed-replace; boundary={_BOUNDARY}"
    return StreamingResponse(_pictures(source), media_type=media_type, headers=_NO_STORE)


async def _events(source: WatchedSource) -> AsyncIterator[str]:
    with source.broadcast.subscribed() as results:
        yield ": from here on\n\n"
        text: str | None = ""
        while text is not None:
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    text = await results.get()
            except TimeoutError:
                text = ": nothing new\n\n"  # heartbeat: writing detects a disconnect
            yield text or ""


async def _pictures(source: WatchedSource) -> AsyncIterator[bytes]:
    with source.broadcast.previewed() as pictures:
        yield f"--{_BOUNDARY}\r\n".encode()
        while (picture := await pictures.get()) is not None:
            head = f"Content-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
            # The boundary is sent with the picture: browsers show it once they see its end.
            yield head.encode() + picture + f"\r\n--{_BOUNDARY}\r\n".encode()


def _sources(request: Request) -> Sources:
    found: Sources = request.app.state.sources
    return found


def _check_may_change(service: Service) -> None:
    if not service.settings.allow_sources or service.settings.token is None:
        raise problems.ProblemError(
            403,
            "fixed-sources",
            "Clients can't change the sources of this service, which was started without allow_sources.",
        )


def _parse(body: bytes) -> NewSource:
    """Parse a new source; messages omit its URL, which may contain a password."""
    if len(body) > _MOST_BYTES:
        raise problems.too_large(f"The body must have at most {_MOST_BYTES:,} bytes, it has {len(body):,}.")
    try:
        return NewSource.model_validate_json(body)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        name = str(mistake["loc"][0])[:100] if mistake["loc"] else ""
        fields = NewSource.model_fields
        if name not in fields:
            got = f", got {name!r}" if name else ""
            raise problems.bad_request(
                f"The body must be a JSON object with fields of {', '.join(fields)}{got}."
            ) from None
        got = "it is not" if name == "url" else f"got {shown(mistake['input'])}"
        raise problems.bad_request(f"{name} must be {fields[name].description}, {got}.") from None

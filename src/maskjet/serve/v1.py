"""The service's own protocol: POST /v1/predict, GET /v1/models, GET /v1/status."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from maskjet import __version__
from maskjet.config import DEFAULT_THRESHOLD
from maskjet.errors import suggest
from maskjet.media.showing import encode
from maskjet.serve import bodies, documents, guard, problems
from maskjet.serve.clients import while_connected
from maskjet.serve.dispatcher import Answer, Dispatcher, Image, Options
from maskjet.serve.service import Service

if TYPE_CHECKING:
    from maskjet.detections import Detections

Masks = Literal["rle", "polygons", "none"]
Kind = Literal["application/json", "image/jpeg", "image/png"]

router = APIRouter(tags=["maskjet"])
_KINDS: tuple[Kind, ...] = ("application/json", "image/jpeg", "image/png")
_PARAMETERS = ("threshold", "classes", "max_detections", "masks", "model")
_SUFFIXES: Mapping[str, str] = {"image/jpeg": ".jpg", "image/png": ".png"}


@router.post(
    "/v1/predict",
    summary="Find things in an image, or in several",
    openapi_extra={"requestBody": documents.IMAGES},
    responses=documents.PREDICT,
    response_class=Response,
)
async def predict(
    request: Request,
    threshold: Annotated[list[str] | None, Query(description=documents.THRESHOLD)] = None,
    classes: Annotated[str | None, Query(description="Names of the classes to report, separated by commas.")] = None,
    max_detections: Annotated[int | None, Query(ge=1, description="Most detections per image.")] = None,
    masks: Annotated[Masks, Query(description=documents.MASKS)] = "rle",
    model: Annotated[
        str | None, Query(description="Name of the model; the first one that is served if left out.")
    ] = None,
) -> Response:
    """Detect on the images of the body. Images that come while the model is busy share a batch."""
    service: Service = request.app.state.service
    deadline = asyncio.get_running_loop().time() + service.settings.deadline_s
    check_query(request.query_params)
    dispatcher = service.dispatcher(model)
    options = Options(parse_threshold(threshold), parse_classes(classes), max_detections)
    dispatcher.check(options)
    kind = choose_kind(request.headers.get("accept", "*/*"))
    dispatcher.check_room()
    body = await bodies.read(request)
    work = _Prediction(service, dispatcher, options, deadline).run(
        request.headers.get("content-type", ""), body, kind, masks
    )
    return await while_connected(request.receive, work)


class _Prediction:
    """The work on one request."""

    def __init__(self, service: Service, dispatcher: Dispatcher, options: Options, deadline: float) -> None:
        self._service, self._dispatcher = service, dispatcher
        self._options, self._deadline = options, deadline

    async def run(self, content_type: str, body: bytes, kind: Kind, masks: Masks) -> Response:
        service = self._service
        start = time.perf_counter()
        parts, needed = await service.in_thread(bodies.inspect, content_type, body, service.settings)
        if kind != "application/json" and len(parts) > 1:
            raise problems.bad_request(f"A body that is answered with a picture must have one image, got {len(parts)}.")
        with service.memory.hold(needed, beside=len(body)):
            self._dispatcher.check_room(len(parts))
            images = await bodies.decode(service, parts)
            decoded = time.perf_counter()
            answers = await self._dispatcher.predict_all(images, self._options, deadline=self._deadline)
            answered = time.perf_counter()
            if kind == "application/json":
                names = [part.name for part in parts] if _is_form(content_type) else None
                data = await service.in_thread(_to_json, answers, names, masks)
            else:
                data = await service.in_thread(_to_picture, images[0], answers[0].detections, _SUFFIXES[kind])
        stages = {
            "decode": decoded - start,
            "queue": max(answer.queue_s for answer in answers),
            "predict": max(answer.predict_s for answer in answers),
            "encode": time.perf_counter() - answered,
        }
        for name in ("decode", "encode"):
            service.metrics.stage_seconds.labels(name).observe(stages[name])
        timing = ", ".join(f"{name};dur={1e3 * seconds:.2f}" for name, seconds in stages.items())
        return Response(data, headers={"Server-Timing": timing}, media_type=kind)


def _is_form(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/")


def check_query(given: Iterable[str]) -> None:
    """Check the names of a query's parameters.

    Raises:
        ProblemError: 400, there is no such parameter.
    """
    for name in given:
        if name not in _PARAMETERS:
            raise problems.bad_request(
                f"The query must have parameters that it knows, got {name!r}{suggest(name, _PARAMETERS)}"
            )


def parse_threshold(texts: Sequence[str] | None) -> float | tuple[tuple[str, float], ...] | None:
    """The threshold that a client asks for: a number, or name=value once for each class.

    Raises:
        ProblemError: 400, it is neither.
    """
    if not texts:
        return None
    try:
        if len(texts) == 1 and "=" not in texts[0]:
            return float(texts[0])
        pairs = [text.rpartition("=") for text in texts]
        if all(separator for _, separator, _ in pairs):
            return tuple((name, float(value)) for name, _, value in pairs)
    except ValueError:
        pass
    raise problems.bad_request(
        f"threshold must be a number 0..1, or name=value for each class, got {', '.join(texts)!r}."
    )


def parse_classes(text: str | None) -> tuple[str, ...] | None:
    """The names of the classes that a client asks for, separated by commas."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


def choose_kind(accept: str) -> Kind:
    """The media type of the answer: the one that the client prefers, JSON among equals.

    Raises:
        ProblemError: 406, the client takes none that there is.
    """
    qualities = dict.fromkeys(_KINDS, 0.0)
    for entry in accept.split(","):
        pattern, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        for kind in _KINDS:
            if pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*", "*", ""):
                qualities[kind] = max(qualities[kind], quality)
    best = max(_KINDS, key=lambda kind: qualities[kind])
    if not qualities[best] > 0:
        raise problems.ProblemError(
            406, "not-acceptable", f"Accept must allow one of {', '.join(_KINDS)}, got {accept[:100]!r}."
        )
    return best


def to_dict(found: Detections, masks: Masks) -> dict[str, Any]:
    """Detections as JSON types: `Detections.as_dict`, or with outlines or nothing in place of its RLE."""
    fields = found.as_dict()
    if masks == "rle" or not fields["has_masks"]:
        return fields
    fields["has_masks"] = False
    for entry in fields["detections"]:
        del entry["rle"]
    if masks == "polygons":
        for entry, outlines in zip(fields["detections"], found.polygons(), strict=True):
            entry["polygons"] = [outline.tolist() for outline in outlines]
    return fields


def _to_json(answers: Sequence[Answer], names: Sequence[str] | None, masks: Masks) -> bytes:
    found = [to_dict(answer.detections, masks) for answer in answers]
    if names is None:
        return json.dumps(found[0], allow_nan=False).encode()
    results = [{"name": name, **fields} for name, fields in zip(names, found, strict=True)]
    return json.dumps({"results": results}, allow_nan=False).encode()


def _to_picture(image: Image, found: Detections, suffix: str) -> bytes:
    return encode(np.asarray(found.draw(image)), suffix)


@router.post("/v1/session", status_code=204, summary="Exchange the token for a cookie", responses=documents.PROBLEMS)
async def open_session(request: Request) -> Response:
    """For pages: browsers send cookies where they send no Authorization header, as for WebSockets and pictures."""
    service: Service = request.app.state.service
    response = Response(status_code=204)
    if service.settings.token is not None:
        value = guard.cookie_of(service.settings.token)
        response.set_cookie(guard.COOKIE, value, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return response


@router.get("/v1/models", summary="The models that are served", responses=documents.PROBLEMS)
async def models(request: Request) -> dict[str, Any]:
    """Each model with its classes, input size and limits; the first one serves requests that name none."""
    service: Service = request.app.state.service
    return {"models": [describe(dispatcher) for dispatcher in service.dispatchers.values()]}


def describe(dispatcher: Dispatcher) -> dict[str, Any]:
    """A model as JSON types."""
    spec, config = dispatcher.model.spec, dispatcher.model.config
    return {
        "name": dispatcher.name,
        "network": spec.name,
        "has_masks": spec.has_masks,
        "threshold": min(dispatcher.model.thresholds.values(), default=DEFAULT_THRESHOLD),
        "classes": {str(number): name for number, name in sorted(spec.class_names.items())},
        "max_detections": config.max_detections,
        "batch": dispatcher.batch,
    }


@router.get("/v1/status", summary="How the service runs", responses=documents.PROBLEMS)
async def status(request: Request) -> dict[str, Any]:
    """What each model's steps run on and why, and what it has done so far."""
    service: Service = request.app.state.service
    return {
        "version": __version__,
        "ready": service.is_ready,
        "draining": service.is_draining,
        "failure": service.failure,
        "models": {
            name: {"queue": dispatcher.depth, **dispatcher.model.report().as_dict()}
            for name, dispatcher in service.dispatchers.items()
        },
    }

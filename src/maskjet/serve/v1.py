"""The service's own protocol: POST /v1/predict, GET /v1/models, GET /v1/status."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response

from maskjet.config import DEFAULT_THRESHOLD
from maskjet.drawing.showing import encode
from maskjet.serve import bodies, problems
from maskjet.serve.clients import while_connected
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.other_workers import OtherWorkers, is_from_worker
from maskjet.serve.queries import PARAMETERS, Masks, Query, parse_query
from maskjet.serve.service import Service
from maskjet.serve.tickets import Answer
from maskjet.sources.images import Image
from maskjet.version import __version__

if TYPE_CHECKING:
    import torch

    from maskjet.detections import Detections

Kind = Literal["application/json", "image/jpeg", "image/png"]

router = APIRouter(tags=["maskjet"], responses=problems.RESPONSES)
_KINDS: tuple[Kind, ...] = get_args(Kind)
_SUFFIXES: Mapping[str, str] = {"image/jpeg": ".jpg", "image/png": ".png"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_IMAGES = {
    "required": True,
    "description": "One image: JPEG, PNG, WebP, BMP, TIFF or GIF (its first image); or a form with several.",
    "content": {
        **{f"image/{name}": _BINARY for name in ("jpeg", "png", "webp", "bmp", "tiff", "gif")},
        "application/octet-stream": _BINARY,
        "multipart/form-data": {"schema": {"type": "object", "additionalProperties": _BINARY["schema"]}},
    },
}
_ANSWERS = {
    "description": "The detections, as maskjet's Detections.as_dict; or with Accept: image/jpeg, drawn.",
    "content": {kind: {} for kind in _KINDS},
}
_MOST_ACCEPT = 1000  # characters; 30,000 types would hold the event loop for 20 ms


@router.post(
    "/v1/predict",
    openapi_extra={"parameters": PARAMETERS, "requestBody": _IMAGES},
    responses={200: _ANSWERS},
    response_class=Response,
)
async def predict(request: Request) -> Response:
    """Detect on the images of the body. Images that come while the model is busy share a batch."""
    service: Service = request.app.state.service
    deadline = asyncio.get_running_loop().time() + service.settings.deadline_s
    query = parse_query(request.scope["query_string"], service)
    kind = choose_kind(request.headers.get("accept", "*/*"))
    query.dispatcher.check_room()
    body = await bodies.read(request)
    work = _predict(service, query, kind, deadline, request.headers.get("content-type", ""), body)
    return await while_connected(request.receive, work)


async def _predict(
    service: Service, query: Query, kind: Kind, deadline: float, content_type: str, body: bytes
) -> Response:
    """Answer a request whose body has been read."""
    is_form = content_type.lower().startswith("multipart/")
    with service.memory.reserve(len(body)) as reservation:
        if is_form:
            reservation.take(len(body))  # its parts are copies
            parts = await service.in_thread(bodies.split, content_type, body, service.settings.parts)
        else:
            parts = bodies.split(content_type, body, service.settings.parts)
        if kind != "application/json" and len(parts) > 1:
            raise problems.bad_request(f"A body that is answered with a picture must have one image, got {len(parts)}.")
        images = bodies.decoders(service, parts, reservation)
        release = reservation.release if kind == "application/json" else None
        answers = await query.dispatcher.predict_all(images, query.options, deadline=deadline, release=release)
        answered, first = time.perf_counter(), answers[0]
        largest = max((answer.detections.image_size for answer in answers), key=math.prod)
        if first.image is not None:
            suffix, label = _SUFFIXES[kind], service.settings.label
            data = await service.on_pixels(largest, _to_picture, first.image, first.detections, suffix, label)
        elif is_form:
            data = await service.on_pixels(largest, _to_results, answers, parts, query)
        else:
            data = await to_json(service, first.detections, query)
    stages = {
        "decode": max(answer.decode_s for answer in answers),
        "queue": max(answer.queue_s for answer in answers),
        "predict": max(answer.predict_s for answer in answers),
        "encode": time.perf_counter() - answered,
    }
    for name in ("decode", "encode"):
        service.metrics.stage_seconds.labels(name).observe(stages[name])
    timing = ", ".join(f"{name};dur={1e3 * seconds:.2f}" for name, seconds in stages.items())
    return Response(data, headers={"Server-Timing": timing}, media_type=kind)


def choose_kind(accept: str) -> Kind:
    """The first media type that Accept names of ours, JSON for any; raises ProblemError 406 if it names none."""
    if len(accept) > _MOST_ACCEPT:
        detail = f"Accept must have at most {_MOST_ACCEPT:,} characters, got {len(accept):,}."
        raise problems.ProblemError(406, "not-acceptable", detail)
    for entry in accept.split(","):
        pattern = entry.partition(";")[0].strip().lower()
        for kind in _KINDS:
            if pattern in (kind, f"{kind.partition('/')[0]}/*", "*/*", "*", ""):
                return kind
    raise problems.ProblemError(
        406, "not-acceptable", f"Accept must allow one of {', '.join(_KINDS)}, got {accept[:100]!r}."
    )


def to_dict(found: Detections, masks: Masks, tolerance: float = 0.0, rotated_boxes: bool = False) -> dict[str, Any]:
    """Convert detections to JSON types: as `Detections.as_dict`, with RLE, polygons or no masks."""
    fields = found.as_dict(rotated_boxes=rotated_boxes)
    if masks == "rle" or not fields["has_masks"]:
        return fields
    fields["has_masks"] = masks == "polygons"
    for entry in fields["detections"]:
        del entry["rle"]
    if masks == "polygons":
        every = found.polygons(tolerance=tolerance, along="edges")  # each outline has an area
        for entry, outlines in zip(fields["detections"], every, strict=True):
            entry["polygons"] = [outline.tolist() for outline in outlines]
    return fields


async def to_json(service: Service, found: Detections, query: Query) -> bytes:
    """Encode a result as JSON; in a thread for shapes made of masks only, as the rest holds the interpreter lock."""
    if query.masks == "polygons" or query.rotated_boxes:
        return await service.on_pixels(found.image_size, _to_json, found, query)
    return _to_json(found, query)


def _to_json(found: Detections, query: Query) -> bytes:
    return orjson.dumps(to_dict(found, query.masks, query.tolerance, query.rotated_boxes))


def _to_results(answers: Sequence[Answer], parts: Sequence[bodies.EncodedImage], query: Query) -> bytes:
    results = [to_dict(answer.detections, query.masks, query.tolerance, query.rotated_boxes) for answer in answers]
    return orjson.dumps({"results": [{"name": part.name, **each} for part, each in zip(parts, results, strict=True)]})


def _to_picture(image: Image | torch.Tensor, found: Detections, suffix: str, label: str | None) -> bytes:
    pixels = image if isinstance(image, np.ndarray) else image.numpy(force=True)
    return encode(np.asarray(found.draw(pixels, label=label)), suffix)


@router.get("/v1/models")
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


@router.get("/v1/status")
async def status(request: Request) -> dict[str, Any]:
    """Device and implementation of each model's steps, and its counts so far.

    With several processes this is the status of the one that answers, and `processes` has those of all.
    """
    service: Service = request.app.state.service
    other_workers: OtherWorkers | None = request.app.state.other_workers
    own = {
        "version": __version__,
        "ready": service.is_ready,
        "draining": service.is_draining,
        "failure": service.failure,
        "jpegs": service.jpegs,
        "models": {
            name: {
                "queue": dispatcher.depth,
                "largest_batch": dispatcher.largest,  # largest batch compiled so far
                **dispatcher.model.report().as_dict(),
            }
            for name, dispatcher in service.dispatchers.items()
        },
    }
    if other_workers is None:
        return own
    own |= other_workers.place
    if is_from_worker(request.scope):
        return own
    answers = await other_workers.ask_all("/v1/status", orjson.dumps(own).decode())
    missing = {"ready": False, "failure": "The process does not answer."}
    statuses = [
        {"process": number, **missing} if text is None else orjson.loads(text) for number, text in answers.items()
    ]
    return {**own, "processes": statuses}

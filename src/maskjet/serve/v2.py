"""The Open Inference Protocol (KServe v2, REST) with the binary tensor extension; `v2_codec` has its wire formats.

Each model has one version, "1". Errors are {"error": "..."}, with the status codes of the /v1 routes. Triton's
extensions (config, statistics, repository, shared memory, ...) are not supported: their paths answer 404.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from maskjet.serve import bodies, problems, v2_codec, v2_schemas
from maskjet.serve.clients import while_connected
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.service import Service
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet.detections import Detections

VERSION = "1"
"""The only version of each model."""
LENGTH_HEADER = "Inference-Header-Content-Length"
_JSON_FACTOR = 8  # bytes of memory per byte of JSON, for its text and Python's objects

router = APIRouter(prefix=problems.PROTOCOL, tags=["Open Inference Protocol"])


@router.get("", summary="The server's name, version and extensions", responses=v2_schemas.SERVER)
async def describe_server() -> dict[str, Any]:
    """Metadata of the server."""
    return {"name": "maskjet", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get("/health/live", summary="Whether the server is alive", responses=v2_schemas.HEALTH)
async def live(request: Request) -> Response:
    """200; or 400, as the protocol demands, when the device has failed and the process must be restarted."""
    service: Service = request.app.state.service
    return _answer_health({"live": service.failure is None})


@router.get("/health/ready", summary="Whether all models are ready", responses=v2_schemas.HEALTH)
async def ready(request: Request) -> Response:
    """200; or 400, as the protocol demands, while the service warms up, shuts down or has failed."""
    service: Service = request.app.state.service
    return _answer_health({"ready": service.is_ready})


@router.get("/models/{model}/ready", summary="Whether a model is ready", responses=v2_schemas.MODEL_HEALTH)
@router.get(
    "/models/{model}/versions/{version}/ready",
    summary="Whether a version of a model is ready",
    responses=v2_schemas.MODEL_HEALTH,
)
async def model_ready(request: Request, model: str, version: str = VERSION) -> Response:
    """200 or 400, as for the server."""
    service, dispatcher = _find(request, model, version)
    return _answer_health({"name": dispatcher.name, "ready": service.is_ready})


def _answer_health(fields: dict[str, Any]) -> Response:
    return JSONResponse(fields, 200 if all(fields.values()) else 400)


@router.get("/models/{model}", summary="A model's inputs and outputs", responses=v2_schemas.MODEL)
@router.get(
    "/models/{model}/versions/{version}",
    summary="The inputs and outputs of a version of a model",
    responses=v2_schemas.MODEL,
)
async def describe_model(request: Request, model: str, version: str = VERSION) -> dict[str, Any]:
    """Metadata of a model; `parameters` names its classes and the other forms of its input."""
    _, dispatcher = _find(request, model, version)
    spec = dispatcher.model.spec
    return {
        "name": dispatcher.name,
        "versions": [VERSION],
        "platform": "maskjet",
        "inputs": [asdict(v2_codec.INPUT)],
        "outputs": [asdict(output) for output in _outputs(dispatcher)],
        "parameters": {
            "network": spec.name,
            "class_names": {str(number): name for number, name in sorted(spec.class_names.items())},
            "max_detections": dispatcher.model.config.max_detections,
            "image": "UINT8 [H, W, 3] or [N, H, W, 3], RGB; or BYTES [N], encoded images",
        },
    }


@router.post(
    "/models/{model}/infer",
    summary="Find things in an image, or in several",
    openapi_extra={"requestBody": v2_schemas.REQUEST},
    responses=v2_schemas.INFER,
    response_class=Response,
)
@router.post(
    "/models/{model}/versions/{version}/infer",
    summary="Find things with a version of a model",
    openapi_extra={"requestBody": v2_schemas.REQUEST},
    responses=v2_schemas.INFER,
    response_class=Response,
)
async def infer(
    request: Request,
    model: str,
    version: str = VERSION,
    inference_header_content_length: Annotated[
        str | None, Header(description="Bytes of the JSON, if the body has binary data after it.")
    ] = None,
) -> Response:
    """Detect on the input's images. Images that come while the model is busy share a batch."""
    start = asyncio.get_running_loop().time()
    service, dispatcher = _find(request, model, version)
    if len(request.headers.getlist(LENGTH_HEADER)) > 1:
        raise problems.bad_request(f"{LENGTH_HEADER} must be given once.")
    if request.query_params:
        raise problems.bad_request("The query must be empty; parameters are in the JSON's `parameters`.")
    dispatcher.check_room()
    body = await bodies.read(request)
    work = _Inference(service, dispatcher, start).run(body, inference_header_content_length)
    return await while_connected(request.receive, work)


class _Inference:
    """One inference request, after its body was read."""

    def __init__(self, service: Service, dispatcher: Dispatcher, start: float) -> None:
        self._service, self._dispatcher, self._start = service, dispatcher, start

    async def run(self, body: bytes, header_length: str | None) -> Response:
        service, dispatcher, settings = self._service, self._dispatcher, self._service.settings
        with service.memory.reserve(len(body)) as reservation:
            reservation.take(_JSON_FACTOR * v2_codec.read_json_size(header_length, len(body)))
            request = await service.in_thread(
                v2_codec.read_request,
                body,
                header_length,
                outputs=_outputs(dispatcher),
                most_images=settings.parts,
                most_pixels=settings.pixels,
            )
        found = await self._predict(request, len(body))
        start = time.perf_counter()
        data, length = await service.in_thread(
            v2_codec.write_response, found, request, model=dispatcher.name, version=VERSION
        )
        service.metrics.stage_seconds.labels("encode").observe(time.perf_counter() - start)
        if length is None:
            return Response(data, media_type="application/json")
        return Response(data, headers={LENGTH_HEADER: str(length)}, media_type="application/octet-stream")

    async def _predict(self, request: v2_codec.InferRequest, body_bytes: int) -> list[Detections]:
        service, dispatcher, settings = self._service, self._dispatcher, self._service.settings
        dispatcher.check(request.options)
        deadline = self._start + min(settings.deadline_s, request.timeout_s or settings.deadline_s)
        encoded = [
            bodies.EncodedImage(one, f"image: element {number}")
            for number, one in enumerate(request.images)
            if isinstance(one, bytes)
        ]
        images: Sequence[Any] = request.images
        dispatcher.check_room(len(images))
        with service.memory.reserve(body_bytes) as reservation:
            if encoded:
                images = await bodies.decoders(service, encoded, reservation)
            else:
                reservation.take(sum(one.nbytes for one in images))  # `predict` copies them: the body is read-only
            answers = await dispatcher.predict_all(images, request.options, deadline=deadline)
        service.metrics.stage_seconds.labels("decode").observe(max(answer.decode_s for answer in answers))
        return [answer.detections for answer in answers]


def _find(request: Request, model: str, version: str) -> tuple[Service, Dispatcher]:
    """The service, and a model's dispatcher.

    Raises:
        ProblemError: 404, there is no such model or version.
    """
    service: Service = request.app.state.service
    dispatcher = service.dispatcher(model)
    if version != VERSION:
        raise problems.ProblemError(404, "no-such-version", f"version must be {VERSION!r}, got {version[:60]!r}.")
    return service, dispatcher


def _outputs(dispatcher: Dispatcher) -> list[v2_codec.TensorSpec]:
    """The model's outputs: `masks` only if it has masks."""
    return [output for output in v2_codec.OUTPUTS if output.name != "masks" or dispatcher.model.spec.has_masks]

"""The Open Inference Protocol (KServe v2) over HTTP; docs/serving.md has its wire formats.

Each model has one version, "1". Errors are {"error": "..."}, with the status codes of the /v1 routes. Of Triton's
extensions only binary tensor data is supported; paths of others (shared memory, config, statistics) answer 404.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from maskjet.checks import shown
from maskjet.serve import bodies, problems, v2_codec
from maskjet.serve.clients import while_connected
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.service import Service
from maskjet.serve.v2_images import read_images
from maskjet.serve.v2_json import read
from maskjet.version import __version__

if TYPE_CHECKING:
    from maskjet.detections import Detections

VERSION = "1"
"""The only version of each model."""
LENGTH_HEADER = "Inference-Header-Content-Length"
_JSON_FACTOR = 8  # bytes of memory per byte of JSON, for text and Python objects
_QUICK_BYTES = 2**12  # bytes of JSON that parse faster than a thread starts
_BY_VERSION = ("/models/{model}", "/models/{model}/versions/{version}")

_BODY = {
    "application/json": {"schema": {"type": "object", "externalDocs": {"url": "https://kserve.github.io/website"}}},
    "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
}
_REQUEST = {
    "required": True,
    "description": f"JSON; or JSON, whose bytes the header {LENGTH_HEADER} states, and the tensor's bytes after it.",
    "content": _BODY,
}
_Responses = dict[int | str, dict[str, Any]]
_INFER: _Responses = {200: {"description": "The outputs; in the form of requests.", "content": _BODY}}
_ERRORS: _Responses = {"default": {"description": "What is wrong: {error: ...}.", "content": {"application/json": {}}}}
router = APIRouter(prefix=problems.PROTOCOL, tags=["Open Inference Protocol"], responses=_ERRORS)


@router.get("")
async def describe_server() -> dict[str, Any]:
    """Metadata of the server."""
    return {"name": "maskjet", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get("/health/live")
async def live(request: Request) -> Response:
    """200; or 400, as the protocol demands, when the device has failed and the process must be restarted."""
    service: Service = request.app.state.service
    return _answer_health({"live": service.failure is None})


@router.get("/health/ready")
async def ready(request: Request) -> Response:
    """200; or 400, as the protocol demands, while the service warms up, shuts down or has failed."""
    service: Service = request.app.state.service
    return _answer_health({"ready": service.is_ready})


async def model_ready(request: Request, model: str, version: str = VERSION) -> Response:
    """200 or 400, as for the server."""
    service: Service = request.app.state.service
    return _answer_health({"name": _find(service, model, version).name, "ready": service.is_ready})


def _answer_health(fields: dict[str, Any]) -> Response:
    return JSONResponse(fields, 200 if all(fields.values()) else 400)


async def describe_model(request: Request, model: str, version: str = VERSION) -> dict[str, Any]:
    """Metadata of a model; `parameters` names its classes and the other forms of its input."""
    dispatcher = _find(request.app.state.service, model, version)
    spec = dispatcher.model.spec
    parameters = {
        "network": spec.name,
        "class_names": {str(number): name for number, name in sorted(spec.class_names.items())},
        "max_detections": dispatcher.model.config.max_detections,
        "image": "UINT8 [H, W, 3] or [N, H, W, 3], RGB; or BYTES [N], encoded images",
    }
    return {
        "name": dispatcher.name,
        "versions": [VERSION],
        "platform": "maskjet",
        "inputs": [asdict(v2_codec.INPUT)],
        "outputs": [asdict(output) for output in _outputs(dispatcher)],
        "parameters": parameters,
    }


async def infer(request: Request, model: str, version: str = VERSION) -> Response:
    """Detect on the input's images. Images that come while the model is busy share a batch."""
    inference = _Inference(request.app.state.service, model, version)
    if request.query_params:
        raise problems.bad_request("The query must be empty; parameters are in the JSON's `parameters`.")
    inference.dispatcher.check_room()
    body = await bodies.read(request)
    size = v2_codec.read_json_size(request.headers.get(LENGTH_HEADER), len(body))
    data, length = await while_connected(request.receive, inference.run(body, size))
    if length is None:
        return Response(data, media_type="application/json")
    return Response(data, headers={LENGTH_HEADER: str(length)}, media_type="application/octet-stream")


for _path in _BY_VERSION:
    router.get(_path)(describe_model)
    router.get(f"{_path}/ready")(model_ready)
    router.post(
        f"{_path}/infer",
        summary="Find instances in an image, or in several",
        openapi_extra={"requestBody": _REQUEST},
        responses=_INFER,
        response_class=Response,
    )(infer)


class _Inference:
    """An inference request; raises as `_find`."""

    def __init__(self, service: Service, model: str, version: str) -> None:
        self.dispatcher = _find(service, model, version)
        self._service, self._start = service, asyncio.get_running_loop().time()

    async def run(self, body: bytes, json_bytes: int) -> tuple[bytes, int | None]:
        """Answer a request, whose first `json_bytes` are JSON, as `v2_codec.write_response` does."""
        service = self._service
        with service.memory.reserve(len(body)) as reservation:
            reservation.take(_JSON_FACTOR * json_bytes)
            parse = partial(read, v2_codec.InferRequest, body[:json_bytes])
            request = parse() if json_bytes <= _QUICK_BYTES else await service.in_thread(parse)
        outputs = request.choose_outputs(_outputs(self.dispatcher))
        found = await self._predict(request, memoryview(body)[json_bytes:], len(body))
        answering = partial(v2_codec.write_response, found, request.id, outputs, self.dispatcher.name, VERSION)
        with service.metrics.stage_seconds.labels("encode").time():
            return answering() if len(found) == 1 else await service.in_thread(answering)

    async def _predict(self, request: v2_codec.InferRequest, binary: memoryview, held: int) -> list[Detections]:
        service, dispatcher, settings = self._service, self.dispatcher, self._service.settings
        options = replace(request.options(), tiling=settings.tiling)
        timeout_s = 1e-6 * (request.parameters.timeout or 2**63)
        dispatcher.check(options)
        deadline = self._start + min(settings.deadline_s, timeout_s)
        with service.memory.reserve(held) as reservation:
            (tensor,) = request.inputs
            reading = partial(read_images, tensor, binary, settings.parts, settings.pixels)
            is_quick = tensor.datatype == "UINT8" and tensor.data is None
            images = reading() if is_quick else await service.in_thread(reading)
            if isinstance(images[0], bytes):
                titled = [bodies.EncodedImage(one, f"image: element {number}") for number, one in enumerate(images)]
                images = bodies.decoders(service, titled, reservation)
            else:  # `predict` copies them, as the body is read-only
                reservation.take(sum(one.nbytes for one in images))
            answers = await dispatcher.predict_all(images, options, deadline=deadline, release=reservation.release)
        service.metrics.stage_seconds.labels("decode").observe(max(answer.decode_s for answer in answers))
        return [answer.detections for answer in answers]


def _find(service: Service, model: str, version: str) -> Dispatcher:
    """Find a model's dispatcher; raises ProblemError 404 if there is no such model or version."""
    dispatcher = service.dispatcher(model)
    if version != VERSION:
        raise problems.ProblemError(404, "no-such-version", f"version must be {VERSION!r}, got {shown(version)}.")
    return dispatcher


def _outputs(dispatcher: Dispatcher) -> list[v2_codec.TensorSpec]:
    """The model's outputs: `masks` only if it has masks."""
    return [output for output in v2_codec.OUTPUTS if output.name != "masks" or dispatcher.model.spec.has_masks]

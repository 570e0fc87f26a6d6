"""The Open Inference Protocol over gRPC, in the process's event loop; runs the requests of `v2`.

Every request is taken as a stream, which is the same on the wire: so a client is refused before its message is
read, and few messages are read at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from maskjet.errors import InputError, UnsupportedError
from maskjet.serve import problems, v2, v2_codec
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.guard import AccessControl
from maskjet.serve.service import Service
from maskjet.serve.v2_messages import SERVICE, messages
from maskjet.serve.v2_regions import KINDS, Regions

if TYPE_CHECKING:
    from maskjet.detections import Detections

_INFER, _STREAM = "ModelInfer", "ModelStreamInfer"
_HEAD_BYTES = 2**16  # largest message without its image: protobuf may take 50 times its size
_FIELDS = range(0x0A, 0x3B, 8)  # tags of a ModelInferRequest's fields, 1 to 7, which all have a length
_RAW_INPUT = _FIELDS[-1]
_AGE_MS = 300_000  # clients reconnect after this, maybe to another process
_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 409: "ALREADY_EXISTS"}
_CODES |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
_CODES |= dict.fromkeys((408, 504), "DEADLINE_EXCEEDED")


@asynccontextmanager
async def serving(service: Service, regions: Regions) -> AsyncIterator[None]:
    """Serve gRPC within the context if a port is set; the service fails if the port is taken.

    The end of the service's WebSockets is that of calls, too.
    """
    if service.settings.grpc_port is None:
        yield
        return
    from grpc import aio

    settings, other_workers = service.settings, service.other_workers
    settings.check_exposure()
    server = aio.server(options=_options(service), maximum_concurrent_rpcs=settings.connections)
    server.add_generic_rpc_handlers((_Methods(service, regions),))
    is_restarted = other_workers is not None and other_workers.are_ready
    listening = asyncio.create_task(_listen(server, service, when_warm=is_restarted))
    if not is_restarted:
        await listening
    ending = asyncio.create_task(_end(server, service))
    try:
        yield
    finally:
        listening.cancel()
        service.ending.set()
        await ending


async def _listen(server: Any, service: Service, *, when_warm: bool) -> None:
    """Listen; a restarted worker only once warm, since clients would wait for it."""
    host, port = service.settings.host.strip("[]"), service.settings.grpc_port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if when_warm:
        await service.warmed_up()
    try:
        server.add_insecure_port(address)
        await server.start()
    except RuntimeError:
        service.failed(UnsupportedError(f"grpc_port must be free to listen on, {address} can't be used."))


async def _end(server: Any, service: Service) -> None:
    await service.ending.wait()
    await server.stop(service.settings.drain_s)


def _options(service: Service) -> list[tuple[str, int]]:
    settings = service.settings
    return [
        ("grpc.so_reuseport", int(service.other_workers is not None)),
        ("grpc.max_receive_message_length", settings.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.http2.bdp_probe", 0),  # would enlarge windows, and thus unread data
        ("grpc.max_concurrent_streams", settings.queue),
        ("grpc.max_allowed_incoming_connections", settings.connections),
        ("grpc.max_connection_age_ms", _AGE_MS),
        ("grpc.max_connection_idle_ms", round(1e3 * settings.idle_s)),
        ("grpc.server_handshake_timeout_ms", round(1e3 * settings.header_s)),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # no compression: small messages could expand
    ]


class _Methods:
    """Finds the handlers of calls, as a `grpc.GenericRpcHandler`."""

    def __init__(self, service: Service, regions: Regions) -> None:
        self._service, self._regions, self._settings = service, regions, service.settings
        self._messages, self._access = messages(), AccessControl(self._settings)
        self._receiving = asyncio.Semaphore(max(1, self._settings.memory_bytes // self._settings.body_bytes))
        self._answers: dict[str, tuple[str, str, Callable[[Any], Any]]] = {  # (request type, response type, handler)
            "ServerLive": ("Empty", "State", lambda _: {"is_so": service.failure is None}),
            "ServerReady": ("Empty", "State", lambda _: {"is_so": service.is_ready}),
            "ServerMetadata": ("Empty", "Server", lambda _: v2.to_metadata(service.settings)),
            "ModelReady": ("Name", "State", lambda asked: {"is_so": self._find(asked) and service.is_ready}),
            "ModelMetadata": ("Name", "Model", lambda asked: v2.describe(self._find(asked))),
        }
        in_thread: Any = service.in_thread
        for kind in KINDS:
            name = kind.title()
            self._answers |= {
                f"{name}SharedMemoryStatus": ("Name", f"{name}List", partial(in_thread, self._list_regions, kind)),
                f"{name}SharedMemoryRegister": (name, "Empty", partial(in_thread, self._register_region, kind)),
                f"{name}SharedMemoryUnregister": ("Name", "Empty", partial(in_thread, self._unregister_region, kind)),
            }

    def service(self, details: Any) -> Any:
        """Handler of a call; None for an unknown method."""
        import grpc.aio

        name = details.method.removeprefix(f"/{SERVICE}/")
        if name not in (*self._answers, _INFER, _STREAM):
            return None

        async def run(_: Any, context: Any) -> bytes | None:
            outcome = "gone"
            try:
                self._check(name, dict(details.invocation_metadata))
                answer = await (self._stream(context) if name == _STREAM else self._answer(name, context))
                outcome = "200"
            except grpc.aio.BaseError:  # the client has gone
                return None
            except Exception as error:
                problem = problems.to_problem(error)
                outcome = str(problem.status)
                code = getattr(grpc.StatusCode, _CODES.get(problem.status, "INVALID_ARGUMENT"))
                await context.abort(code, problem.detail)
            finally:
                self._service.metrics.requests.labels(f"grpc {name}", outcome).inc()
            return answer

        handle = grpc.stream_stream_rpc_method_handler if name == _STREAM else grpc.stream_unary_rpc_method_handler
        return handle(run)

    def _check(self, name: str, metadata: Mapping[str, Any]) -> None:
        """Refuse a call before its message is read; without a token the port is on loopback, or `insecure`."""
        if name in ("ServerLive", "ServerReady"):
            return
        if self._service.is_closed:
            raise problems.unavailable("The service is shutting down.")
        if self._settings.token is not None:
            given = Headers({"authorization": str(metadata.get("authorization", ""))})
            self._access.check({}, given, is_open=False)

    async def _answer(self, name: str, context: Any) -> bytes:
        if name == _INFER:
            answer = await self._infer(await self._read(context))
        else:
            kind, answers, function = self._answers[name]
            # An empty message is not waited for: those without a token would hold permits by sending none.
            data = b"" if kind == "Empty" else await self._read(context)
            fields = function(self._parse(kind, data))
            fields = await fields if isawaitable(fields) else fields
            answer = getattr(self._messages, answers)(**fields or {})
        return bytes(answer.SerializeToString())

    async def _read(self, context: Any) -> bytes:
        try:
            async with asyncio.timeout(self._settings.body_s), self._receiving:
                data = await context.read()
        except TimeoutError:
            raise problems.ProblemError(408, "too-slow", "The message must come in time, it did not.") from None
        if not isinstance(data, bytes):
            raise problems.bad_request("A call must have a message, it has none.")
        return data

    async def _stream(self, context: Any) -> None:
        """Answer the requests of a stream in sequence, until either side ends it."""
        streams, task = self._service.streams, asyncio.current_task()
        if task is None or len(streams) >= self._settings.streams:
            raise problems.busy(f"The service has {self._settings.streams} streams; try again later.")
        streams.add(task)
        ending = asyncio.create_task(self._service.ending.wait())
        try:
            while True:
                reading = asyncio.create_task(context.read())
                either = {reading, ending}
                await asyncio.wait(either, timeout=self._settings.idle_s, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done() or not isinstance(data := reading.result(), bytes):
                    reading.cancel()
                    return
                try:
                    fields: dict[str, Any] = {"infer_response": await self._infer(data)}
                except Exception as error:
                    fields = {"error_message": problems.to_problem(error).detail}
                await context.write(self._messages.InStream(**fields).SerializeToString())
        finally:
            streams.discard(task)
            ending.cancel()

    async def _infer(self, data: bytes) -> Any:
        with self._service.memory.reserve() as reservation:
            reservation.take(len(data))
            head, contents = _split(data)
            asked = self._parse("Request", head)
            inference = v2.Inference(self._service, self._regions, asked.model_name, asked.model_version)
            inference.dispatcher.check_room()
            size = {"binary_data_size": len(contents)} if contents else {}
            stated = {
                **_describe(asked),
                "id": asked.id or None,
                "inputs": [
                    _describe(one, "name", "datatype", **size) | {"shape": list(one.shape)} for one in asked.inputs
                ],
                "outputs": [_describe(one, "name") for one in asked.outputs],
            }
            return await inference.run(stated, contents, self._write)

    def _write(
        self, found: Sequence[Detections], identity: str | None, outputs: Sequence[Any], model: str, version: str
    ) -> Any:
        tensors, values = [], []
        for spec, _ in outputs:
            some, shape = v2_codec.collect(found, spec)
            tensors.append({"name": spec.name, "datatype": spec.datatype, "shape": shape})
            values.append(v2_codec.to_bytes(some))
        return self._messages.Response(
            model_name=model, model_version=version, id=identity, outputs=tensors, raw_output_contents=values
        )

    def _parse(self, kind: str, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        with suppress(DecodeError):
            if len(data) <= _HEAD_BYTES:
                return getattr(self._messages, kind).FromString(data)
        most = f"at most {_HEAD_BYTES:,} bytes without raw_input_contents"
        raise problems.bad_request(f"The message must be the method's, of {most}, it is not.")

    def _find(self, asked: Any) -> Dispatcher:
        return v2.find(self._service, asked.name, asked.version)

    def _list_regions(self, kind: str, asked: Any) -> dict[str, Any]:
        return {"regions": [{"key": each["name"], "value": each} for each in self._regions.status(kind, asked.name)]}

    def _register_region(self, kind: str, asked: Any) -> None:
        self._regions.register(kind, {name: getattr(asked, name) for name in KINDS[kind].model_fields})

    def _unregister_region(self, kind: str, asked: Any) -> None:
        self._regions.unregister(kind, asked.name)


def _split(data: bytes) -> tuple[bytes, memoryview]:
    """Split a ModelInferRequest from its raw_input_contents, which protobuf would copy; raises InputError."""
    head, contents, at = bytearray(), None, 0
    while at < len(data) and len(head) <= _HEAD_BYTES:
        start, size = at, 0
        for shift in range(0, 35, 7):  # a tag of one byte, then a length of up to five
            at = min(at + 1, len(data) - 1)
            size |= (data[at] & 127) << shift
            if data[at] < 128:
                break
        at += 1 + size
        is_raw = data[start] == _RAW_INPUT
        if data[start] not in _FIELDS or at > len(data) or (is_raw and contents is not None):
            raise InputError("The message must be a ModelInferRequest with one of raw_input_contents, it is not.")
        if is_raw:
            contents = memoryview(data)[at - size : at]
        else:
            head += data[start:at]
    return bytes(head), memoryview(b"") if contents is None else contents


def _describe(part: Any, *names: str, **parameters: Any) -> dict[str, Any]:
    """Convert fields and parameters of a part of a message to the JSON form of HTTP."""
    stated = {one.key: getattr(one.value, one.value.WhichOneof("choice") or "bool") for one in part.parameters}
    return {"parameters": stated | parameters} | {name: getattr(part, name) for name in names}

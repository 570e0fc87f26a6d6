"""The Open Inference Protocol over gRPC, in the process's event loop; runs the requests of `v2`.

Every request is taken as a stream, which is the same on the wire: so a client is refused before its message is
read, and few messages are read at a time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from maskjet.errors import InputError, UnsupportedError
from maskjet.serve import problems, v2, v2_codec
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.guard import AccessControl
from maskjet.serve.service import Service
from maskjet.serve.v2_messages import SERVICE, messages

if TYPE_CHECKING:
    from maskjet.detections import Detections

_INFER, _STREAM = "ModelInfer", "ModelStreamInfer"
_HEAD_BYTES = 2**16  # largest message without its image: protobuf may take 50 times its size
_FIELDS = range(0x0A, 0x3B, 8)  # tags of a ModelInferRequest's fields, 1 to 7, which all have a length
_RAW_INPUT = _FIELDS[-1]
_AGE_MS = 300_000  # clients reconnect after this, maybe to another process
_SLOW_S = 0.5  # a message that takes longer is no longer received while other calls wait
_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
_CODES |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}
_CODES |= dict.fromkeys((408, 504), "DEADLINE_EXCEEDED")


@asynccontextmanager
async def serving(service: Service) -> AsyncIterator[None]:
    """Serve gRPC within the context if a port is set; the service fails if the port is taken.

    The end of the service's WebSockets is that of calls, too.
    """
    if service.settings.grpc_port is None:
        yield
        return
    other_workers = service.other_workers
    service.settings.check_exposure()
    server = _make_server(_options(service))
    server.add_registered_method_handlers(SERVICE, _Methods(service).handlers())
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


def _make_server(options: list[tuple[str, int]]) -> Any:
    """Make a server that answers calls of unknown methods itself: grpcio 1.85 ends if a method's name is not UTF-8."""
    from grpc import StatusCode, aio
    from grpc._cython import cygrpc

    async def refuse(call: Any) -> None:
        status = StatusCode.UNIMPLEMENTED.value[0], "The method must be one of the service's, it is not."
        metadata, loop = cygrpc.SendInitialMetadataOperation((), 0), asyncio.get_running_loop()
        with suppress(aio.BaseError):  # the client has gone
            await cygrpc._send_error_status_from_server(call, *status, (), metadata, loop)

    class Server(cygrpc.AioServer):  # type: ignore[misc]
        async def _request_call(self) -> None:
            refusals = set[asyncio.Task[None]]()
            while True:
                refusals.add(task := asyncio.create_task(refuse(await super()._request_call())))
                task.add_done_callback(refusals.discard)

    original, cygrpc.AioServer = cygrpc.AioServer, Server
    try:
        return aio.server(options=options)
    finally:
        cygrpc.AioServer = original


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
        ("grpc.keepalive_timeout_ms", round(1e3 * settings.stall_s)),  # also limits how long sent bytes stay unread
        ("grpc.compression_enabled_algorithms_bitset", 1),  # no compression: small messages could expand
    ]


class _Permits:
    """Permits to receive a message: it takes memory before it is whole, and a silent call looks like a slow one.

    A permit is its call's until the message is whole or the call is over. A connection with fewer calls comes first.
    """

    def __init__(self, most: int, most_calls: int) -> None:
        self._most, self._most_calls = most, most_calls
        self._calls = Counter[str]()  # by connection
        self._waiting: dict[asyncio.Future[None], str] = {}  # and their connections
        self._held: set[asyncio.Future[None]] = set()
        self._receiving: dict[asyncio.Timeout, float] = {}  # and when it began, oldest first

    def admit(self, context: Any) -> None:
        """Count a call until it is over; of too many, a connection's that has more than others raises ProblemError."""
        calls, connection = self._calls, context.peer()

        def leave(_: Any) -> None:
            calls[connection] -= 1
            if not calls[connection]:
                del calls[connection]

        calls[connection] += 1
        context.add_done_callback(leave)
        if calls.total() > self._most_calls and calls[connection] > self._most_calls // len(calls):
            raise problems.busy(f"The service has {self._most_calls} calls; try again later.")

    async def receive(self, context: Any, seconds: float) -> Any:
        """Receive a call's message; raises TimeoutError if it is slow, at `_SLOW_S` already if others wait."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        context.add_done_callback(lambda _: self._release(turn))
        async with asyncio.timeout(seconds) as limit:
            self._waiting[turn] = context.peer()
            self._hand_out()
            try:
                while not turn.done():
                    self._end_slowest(loop.time())
                    await asyncio.wait((turn,), timeout=_SLOW_S)
                self._receiving[limit] = loop.time()
                message = await context.read()
            finally:
                self._waiting.pop(turn, None)
                self._receiving.pop(limit, None)
        self._release(turn)
        return message

    def _hand_out(self) -> None:
        while len(self._held) < self._most and (waiting := [each for each in self._waiting if not each.done()]):
            turn = min(waiting, key=lambda each: self._calls[self._waiting[each]])
            self._held.add(turn)
            turn.set_result(None)

    def _release(self, turn: asyncio.Future[None]) -> None:
        if turn in self._held:
            self._held.remove(turn)
            self._hand_out()

    def _end_slowest(self, now: float) -> None:
        for limit, begin in self._receiving.items():
            if begin + _SLOW_S <= now and not limit.expired():
                del self._receiving[limit]
                limit.reschedule(now)
                return


class _Methods:
    """Answers calls."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings = service, service.settings
        self._messages, self._access = messages(), AccessControl(self._settings)
        messages_at_once = max(1, self._settings.memory_bytes // self._settings.body_bytes)
        self._permits = _Permits(messages_at_once, self._settings.connections)
        # By method: request type, response type, and function from the request to the response's fields.
        self._answers: dict[str, tuple[str, str, Callable[[Any], dict[str, Any]]]] = {
            "ServerLive": ("Empty", "State", lambda _: {"is_so": service.failure is None}),
            "ServerReady": ("Empty", "State", lambda _: {"is_so": service.is_ready}),
            "ServerMetadata": ("Empty", "Server", lambda _: v2.METADATA),
            "ModelReady": ("Name", "State", lambda asked: {"is_so": self._find(asked) and service.is_ready}),
            "ModelMetadata": ("Name", "Model", lambda asked: v2.describe(self._find(asked))),
        }

    def handlers(self) -> dict[str, Any]:
        """Handlers of all methods by name."""
        import grpc

        make = grpc.stream_unary_rpc_method_handler
        made = {name: make(partial(self._run, name)) for name in (*self._answers, _INFER)}
        return made | {_STREAM: grpc.stream_stream_rpc_method_handler(partial(self._run, _STREAM))}

    async def _run(self, name: str, _: Any, context: Any) -> bytes | None:
        import grpc.aio

        outcome = "gone"
        try:
            self._check(name, context)
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

    def _check(self, name: str, context: Any) -> None:
        """Refuse a call before its message is read; without a token the port is on loopback, or `insecure`."""
        if name in ("ServerLive", "ServerReady"):
            return
        if self._service.is_closed:
            raise problems.unavailable("The service is shutting down.")
        if self._settings.token is not None:
            metadata = dict(context.invocation_metadata())
            given = Headers({"authorization": str(metadata.get("authorization", ""))})
            self._access.check({}, given, is_open=False)
        self._permits.admit(context)

    async def _answer(self, name: str, context: Any) -> bytes:
        if name == _INFER:
            answer = await self._infer(await self._read(context))
        else:
            kind, answers, function = self._answers[name]
            # An empty message is not waited for: those without a token would hold permits by sending none.
            data = b"" if kind == "Empty" else await self._read(context)
            answer = getattr(self._messages, answers)(**function(self._parse(kind, data)))
        return bytes(answer.SerializeToString())

    async def _read(self, context: Any) -> bytes:
        try:
            data = await self._permits.receive(context, self._settings.body_s)
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
            inference = v2.Inference(self._service, asked.model_name, asked.model_version)
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

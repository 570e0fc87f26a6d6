"""gRPC's own: streams, the token, limits, the end; requests and answers are in `test_v2`."""

import asyncio
import contextlib
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from maskjet.errors import InputError, MissingDependencyError, UnsupportedError
from maskjet.serve import Settings, server
from maskjet.serve.v2_grpc import _Permits, _split
from tests.serve.client import BEARER, Held, mutants, run, served, serving
from tests.serve.test_processes import counts, started
from tests.waiting import until

triton = pytest.importorskip("tritonclient.grpc", reason="gRPC is not installed", exc_type=ImportError)
http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed", exc_type=ImportError)
service_pb2 = triton.service_pb2
APART = [("grpc.use_local_subchannel_pool", 1)]  # else clients in one process share a connection
HEADERS = {name.lower(): value for name, value in BEARER.items()}


@pytest.fixture(scope="module")
def address(model):
    with serving({"demo": model}, has_grpc=True, body_bytes=2**20, streams=1) as address:
        yield address


@pytest.fixture
def client(address):
    with triton.InferenceServerClient(address.grpc) as client:
        yield client


def make_input(image):
    return triton.InferInput("image", list(image.shape), "UINT8").set_data_from_numpy(image)


def refused(call, *args, **options):
    with pytest.raises(triton.InferenceServerException) as caught:
        call(*args, **options)
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


def count_descriptors():
    """Sockets that are open; gRPC's clients keep other things for a while."""
    open_ones = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(each.startswith("socket") for each in open_ones)


def start_stream(client, **options):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), **options)
    return answers


def test_a_stream_is_answered_in_order_and_survives_errors(client, model, scenes):
    answers = start_stream(client)
    for number, image in enumerate(scenes):
        client.async_stream_infer("demo", [make_input(image)], request_id=str(number))
        client.async_stream_infer("other", [make_input(image)])
    for number, image in enumerate(scenes):
        result, error = answers.get(timeout=30)
        assert error is None
        assert result.get_response().id == str(number)
        assert result.as_numpy("scores").tolist() == model.predict(image).confidence.tolist()
        result, error = answers.get(timeout=30)
        assert result is None
        assert error.message().startswith("model must be one that is served, got 'other'")
    with triton.InferenceServerClient(client._channel._channel.target().decode()) as second:
        _, error = start_stream(second).get(timeout=30)
        assert "The service has 1 streams" in error.message()
    client.stop_stream()


def test_strangers_are_refused_before_they_are_read(model, scenes):
    with (
        serving({"demo": model}, has_grpc=True, token="secret") as address,
        triton.InferenceServerClient(address.grpc) as client,
    ):
        assert client.is_server_live()
        assert client.is_server_ready()
        inputs, large = [make_input(scenes[0])], [make_input(np.zeros((4000, 4000, 3), np.uint8))]
        for given in (inputs, large):
            status, message = refused(client.infer, "demo", given)
            assert (status, "The token is missing" in message) == ("UNAUTHENTICATED", True)
        wrong = {"authorization": "Bearer guess"}
        assert refused(client.get_model_metadata, "demo", headers=wrong) == ("UNAUTHENTICATED", "The token is wrong.")
        _, error = start_stream(client).get(timeout=30)
        assert "The token is missing" in error.message()
        client.stop_stream()
        client.infer("demo", inputs, headers={"authorization": "Bearer secret"})


def test_messages_are_limited(client, scenes):
    status, message = refused(client.infer, "demo", [make_input(np.zeros((600, 600, 3), np.uint8))])
    assert (status, "larger than max" in message) == ("RESOURCE_EXHAUSTED", True)
    status, message = refused(client.infer, "demo", [make_input(scenes[0])], compression_algorithm="gzip")
    assert (status, message) == ("UNIMPLEMENTED", "Compression algorithm 'gzip' is disabled.")
    status, message = refused(client.infer, "demo", [make_input(scenes[0])] * 2)
    assert (status, "one of raw_input_contents" in message) == ("INVALID_ARGUMENT", True)
    assert len(refused(client.infer, "x" * 60_000, [make_input(scenes[0])])[1]) < 200
    status, message = refused(client.infer, "demo", [make_input(scenes[0])], request_id="x" * 70_000)
    assert (status, "at most 65,536 bytes without raw_input_contents" in message) == ("INVALID_ARGUMENT", True)
    assert refused(client.get_model_config, "demo")[0] == "UNIMPLEMENTED"


def test_connections_and_slow_messages_are_limited(model):
    import grpc

    with serving({"demo": model}, has_grpc=True, connections=2, body_s=0.2) as address:
        host, _, port = address.grpc.partition(":")
        with grpc.insecure_channel(address.grpc) as channel, contextlib.ExitStack() as stack:
            call = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            go = threading.Event()
            with pytest.raises(grpc.RpcError) as caught:
                call((b"" for _ in range(1) if go.wait(30)), timeout=30)
            go.set()
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert caught.value.details() == "The message must come in time, it did not."
            sockets = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(2)]
            with triton.InferenceServerClient(address.grpc, channel_args=APART) as another:
                assert refused(another.is_server_live)[0] == "UNAVAILABLE"
            assert sockets[0].recv(1)  # settings of HTTP/2


@pytest.mark.parametrize("method", ["ServerLive", "ModelInfer"])
def test_silent_calls_hold_nobody_up(model, scenes, method):
    import grpc

    with (
        serving({"demo": model}, has_grpc=True, memory_bytes=2**25, connections=8) as address,  # one message at a time
        grpc.insecure_channel(address.grpc) as channel,
        triton.InferenceServerClient(address.grpc, channel_args=APART) as client,
    ):
        go = threading.Event()
        silent = channel.stream_unary(f"/inference.GRPCInferenceService/{method}")
        calls = [silent.future((b"" for _ in range(1) if go.wait(30)), timeout=30) for _ in range(16)]
        for _ in range(3):
            client.infer("demo", [make_input(scenes[0])], client_timeout=10)
        go.set()
        codes = {call.code() for call in calls}
        ended = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert codes == {grpc.StatusCode.OK} if method == "ServerLive" else codes & ended


@run
async def test_a_permit_is_a_calls_until_it_is_over():
    """Else more messages would be held than there are permits: of a client that does not read, a call ends late."""

    class Call(Mock):
        def __init__(self, reading):
            super().__init__(peer=lambda: "a", read=lambda: reading, add_done_callback=self.add)
            self.callbacks = []

        def add(self, callback):
            self.callbacks.append(callback)

        def end(self):
            for callback in self.callbacks:
                callback(self)

    never, whole = asyncio.Future(), asyncio.Future()
    whole.set_result(b"whole")
    permits, slow, good = _Permits(1, 2), Call(never), Call(whole)
    ending = asyncio.create_task(permits.receive(slow, 30))
    await asyncio.sleep(0)
    receiving = asyncio.create_task(permits.receive(good, 30))
    with pytest.raises(TimeoutError):
        await ending
    assert not (await asyncio.wait((receiving,), timeout=0.1))[0]
    slow.end()
    assert await receiving == b"whole"


def test_a_method_that_is_not_utf8_is_refused_and_ends_nothing(client, address, scenes):
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/\xff",
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    block = b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(text)]) + text for name, text in headers.items())
    host, _, port = address.grpc.partition(":")
    with socket.create_connection((host, int(port)), 10) as stranger:
        opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        stranger.sendall(opening + bytes([0, 0, len(block), 1, 5, 0, 0, 0, 1]) + block)
        answer = b""
        while b"method must be one" not in answer:
            answer += stranger.recv(2**16) or pytest.fail("The connection was closed.")
    client.infer("demo", [make_input(scenes[0])])


def test_messages_are_split_as_they_were_joined():
    for size in (1, 127, 128, 2**14, 2**21):
        sent = service_pb2.ModelInferRequest(model_name="demo", id="7", raw_input_contents=[bytes(size)])
        head, contents = _split(sent.SerializeToString())
        sent.ClearField("raw_input_contents")
        assert service_pb2.ModelInferRequest.FromString(head) == sent
        assert contents == bytes(size)
    assert _split(b"") == (b"", b"")
    head, _ = _split(b"\x2a\x00" * 2**20)
    assert len(head) < 2**17  # protobuf would make a million inputs of them
    for wrong in (
        b"\x3a",
        b"\x3a\xff",
        b"\x3a\x05abc",
        b"\x3a" + b"\xff" * 9,
        b"\x3a\x00\x3a\x00",
        b"\x08\x01",
        b"\x42\x00",
    ):
        with pytest.raises(InputError, match="The message must be a ModelInferRequest"):
            _split(wrong)


def test_who_has_gone_is_not_worked_for_and_the_rest_is_answered_at_the_end(model, scenes):
    held, answers = Held(model), {}
    with (
        serving({"demo": held}, has_grpc=True, batch=1) as address,
        triton.InferenceServerClient(address.grpc) as client,
    ):

        def keep(result, error):
            answers[result.get_response().id if result else error] = result

        for number in range(2):
            client.async_infer("demo", [make_input(scenes[number])], keep, request_id=str(number))
            assert held.begun.acquire(timeout=30)
        status, _ = refused(client.infer, "demo", [make_input(scenes[2])], client_timeout=0.3)
        assert status == "DEADLINE_EXCEEDED"
        until(lambda: address.service.dispatchers["demo"].depth == 0)
        address.end()
        threading.Timer(0.3, held.go.set).start()
        until(lambda: len(answers) == 2)
    assert len(held.images) == 2
    for number in range(2):
        expected = model.predict(scenes[number]).confidence.tolist()
        assert answers[str(number)].as_numpy("scores").tolist() == expected


def test_an_idle_stream_does_not_hold_the_end(model, scenes):
    with serving({"demo": model}, has_grpc=True, drain_s=20) as address:
        client = triton.InferenceServerClient(address.grpc)
        answers = start_stream(client)
        client.async_stream_infer("demo", [make_input(scenes[0])])
        assert answers.get(timeout=30)[1] is None
        start = time.monotonic()
    assert time.monotonic() - start < 15
    client.stop_stream(cancel_requests=True)
    client.close()


@run
async def test_a_port_that_is_taken_ends_the_service(model, address):
    port = int(address.grpc.rpartition(":")[2])
    async with served({"demo": model}, grpc_port=port) as client:
        assert client.service.failure.startswith(
            f"grpc_port must be free to listen on, 127.0.0.1:{port} can't be used."
        )


def test_a_port_that_is_taken_is_an_error_though_the_models_were_warm_before(monkeypatch):
    service = Mock(error=UnsupportedError("grpc_port must be free."), is_warm=True, has_hung=False)
    monkeypatch.setattr(server, "Server", Mock())
    monkeypatch.setattr(server, "configure", Mock())
    with pytest.raises(UnsupportedError, match="grpc_port must be free"):
        server.run(Mock(**{"state.service": service}), Mock(), announce=print)


def test_calls_are_counted(client, address, scenes):
    def count(method, status):
        labels = {"route": f"grpc {method}", "outcome": status}
        return address.service.metrics.registry.get_sample_value("maskjet_requests_total", labels) or 0

    before = count("ModelInfer", "200"), count("ModelInfer", "404")
    client.infer("demo", [make_input(scenes[0])])
    refused(client.infer, "other", [make_input(scenes[0])])
    until(lambda: (count("ModelInfer", "200"), count("ModelInfer", "404")) == (before[0] + 1, before[1] + 1))


def test_a_missing_package_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingDependencyError, match=r'grpc_port needs grpc: pip install "maskjet\[grpc\]"'):
        Settings(grpc_port=8001)


@pytest.mark.slow
def test_processes_share_the_port(tmp_path, model, street):
    """Each connection is one process's; all answer alike, also one that starts again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        started(tmp_path, "--grpc-port", str(port)) as service,
        contextlib.ExitStack() as stack,
    ):
        service.wait_until_ready()
        clients = [
            stack.enter_context(triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=APART))
            for _ in range(24)
        ]
        tensor = make_input(street)
        expected = model.predict(street).confidence.tolist()
        options = {"parameters": {"threshold": 0.3}, "headers": HEADERS}
        for client in clients:
            assert client.infer("demo", [tensor], **options).as_numpy("scores").tolist() == expected
        with service.connect() as connection:
            told = counts(connection.ask("/metrics")[1], "maskjet_requests_total", route="grpc ModelInfer")
        assert sum(told.values()) == 24
        assert set(told) == {"0", "1"}
        pids = service.pids()
        os.kill(pids[0], signal.SIGKILL)
        until(lambda: service.statuses()[0].get("pid", pids[0]) != pids[0])
        for client in clients:
            until(lambda client=client: client.is_server_live())
            assert client.infer("demo", [tensor], **options).as_numpy("scores").tolist() == expected
        service.process.terminate()
        assert service.process.wait(30) == 0


@pytest.mark.slow
def test_clients_that_come_and_go_leave_nothing_behind(model, scenes):
    """Both protocols and streams at once, with clients that give up."""
    images = [np.ascontiguousarray(scene[:64, :64]) for scene in scenes]
    scores = [model.predict(image).confidence.tolist() for image in images]
    failures, end = queue.Queue(), time.monotonic() + 8

    def come_and_go(number):
        chance = random.Random(number)
        try:
            while time.monotonic() < end:
                at = chance.randrange(len(images))
                if chance.random() < 0.3:
                    tensor = http.InferInput("image", list(images[at].shape), "UINT8").set_data_from_numpy(images[at])
                    with http.InferenceServerClient(address) as client:
                        assert client.infer("demo", [tensor]).as_numpy("scores").tolist() == scores[at]
                    continue
                with triton.InferenceServerClient(address.grpc) as client:
                    tensor = make_input(images[at])
                    answers = start_stream(client)
                    client.async_stream_infer("demo", [tensor])
                    if chance.random() < 0.5:
                        assert answers.get(timeout=30)[0].as_numpy("scores").tolist() == scores[at]
                    client.stop_stream(cancel_requests=True)
                    try:
                        found = client.infer("demo", [tensor], client_timeout=chance.choice((0.001, 30)))
                        assert found.as_numpy("scores").tolist() == scores[at]
                    except triton.InferenceServerException as error:
                        assert error.status() == "StatusCode.DEADLINE_EXCEEDED"  # noqa: PT017
        except BaseException as error:
            failures.put(error)

    with serving({"demo": model}, has_grpc=True) as address:
        with triton.InferenceServerClient(address.grpc) as client:
            client.infer("demo", [make_input(images[0])])
        before = count_descriptors() + 4
        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures.empty(), failures.get()
        service = address.service
        until(lambda: not (service.memory.taken or service.streams or service.dispatchers["demo"].depth))
        until(lambda: count_descriptors() <= before)


@pytest.mark.slow
def test_damaged_messages_are_never_the_services_fault(client, address, scenes):
    """Whatever comes, the answer is a result or a status that blames the client, and the next call is answered."""
    import grpc

    image = scenes[0][:32, :48]
    sent = service_pb2.ModelInferRequest(model_name="demo", raw_input_contents=[image.tobytes()])
    sent.inputs.add(name="image", datatype="UINT8", shape=image.shape)
    sent.parameters["threshold"].double_param = 0.4
    sent.outputs.add(name="boxes")
    body, codes = sent.SerializeToString(), set()
    with grpc.insecure_channel(address.grpc) as channel:
        for method in ("ModelInfer", "ModelMetadata", "ModelReady"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            for mutant in mutants(body, len(body) - image.nbytes, 400):
                try:
                    call(mutant, timeout=30)
                    codes.add("OK")
                except grpc.RpcError as error:
                    codes.add(error.code().name)
    assert codes <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert {"OK", "INVALID_ARGUMENT"} <= codes
    client.infer("demo", [make_input(scenes[0])])
    assert address.service.memory.taken == 0

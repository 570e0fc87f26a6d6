"""The service on a port of its own: sockets, slow senders, and its end."""

import concurrent.futures
import contextlib
import os
import queue
import signal
import socket
import threading
import time

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as websocket

from maskjet.errors import DeviceError, UnsupportedError
from maskjet.serve import Settings, connections, create_app, server
from maskjet.serve.connections import SPARE
from tests.cli.command_line import call
from tests.serve.client import Held, encoded, problem_of, serving
from tests.waiting import until

REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = REQUEST + b"Transfer-Encoding: chunked\r\n\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def connect(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_all(connection):
    """What comes until the other side closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.fixture(scope="module")
def address(model):
    with serving({"demo": model}, body_bytes=1_000_000, connections=4) as address:
        yield address


@pytest.fixture(scope="module")
def hasty(model):
    with serving({"demo": model}, header_s=0.5, body_s=0.5) as address:
        yield address


def test_a_body_that_is_too_large_is_answered_while_it_is_sent(address):
    with httpx.Client(base_url=f"http://{address}") as client:
        stated = client.post("/v1/predict", content=b"x" * 1_000_001)
        counted = client.post("/v1/predict", content=(b"x" * 100_000 for _ in range(50)))
        assert (stated.status_code, counted.status_code) == (413, 413)
        assert (stated.headers["connection"], counted.headers["connection"]) == ("close", "close")
        assert counted.json()["detail"] == "The body has more bytes than the limit of 1,000,000."
        assert "server" not in stated.headers
        assert client.get("/health/ready").text == "ready"
    until(lambda: not address.service.memory.taken)


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 20, b"9" * 5000])
def test_lengths_that_are_no_numbers_are_refused(address, length):
    with connect(address) as connection:
        connection.sendall(REQUEST + b"Content-Length: " + length + b"\r\n\r\nx")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")


def test_slow_senders_time_out(hasty):
    sent = (b"", REQUEST, REQUEST + b"Content-Length: 9\r\n\r\nx", LIVE, b"")
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(connect(hasty)) for _ in range(5)]
        for data, connection in zip(sent, connections, strict=True):
            connection.sendall(data)
        *_, second, trickling = connections
        received = b""
        while not received.endswith(b"live"):
            received += second.recv(65536)
        second.sendall(b"GET /health/live HTTP/1.1\r\nX: ")  # the next request of a connection is limited, too
        for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX: yyyyyyyyyyyyyyyyyyyyyy":  # activity does not prolong it
            with contextlib.suppress(OSError):
                trickling.sendall(bytes([byte]))
            time.sleep(0.015)
        details = [b"The headers must come within 0.5 s"] * 2 + [b"The body must come within 0.5 s"]
        for connection, detail in zip(connections, details + [b"The headers must come within"] * 2, strict=True):
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert detail in answer
            assert b"application/problem+json" in answer


def test_bytes_that_begin_no_request_do_not_hold_a_connection(hasty):
    with connect(hasty) as connection:
        connection.sendall(LIVE)
        connection.recv(65536)
        for _ in range(3):
            connection.sendall(b"\r\n")
            time.sleep(0.1)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_an_answer_that_is_not_read_does_not_hold_a_connection(model, monkeypatch):
    original = server.listen

    def listen(settings):
        made = original(settings)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that less than uvicorn's 64 KiB are left unsent
        return made

    monkeypatch.setattr(server, "listen", listen)
    with serving({"demo": model}, connections=1, stall_s=0.5) as address, contextlib.ExitStack() as stack:
        host, port = address.split(":")
        for _ in range(1 + SPARE):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect((host, int(port)))
            client.sendall(b"GET /docs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        until(lambda: httpx.get(f"http://{address}/health/live").status_code == 200, 10)


def test_a_connection_has_one_request_at_a_time(hasty):
    for after in (LIVE * 2, b"garbage"):
        with connect(hasty) as connection:
            connection.sendall(LIVE + after)
            answers = read_all(connection)
            assert answers.startswith(b"HTTP/1.1 200 OK")
            assert answers.count(b"HTTP/1.1") == 1


def test_an_offer_of_another_protocol_is_ignored(address, street):
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
    data = encoded(street)
    with httpx.Client(base_url=f"http://{address}", timeout=30) as client:
        expected = client.post("/v1/predict", content=data).json()
        assert expected["detections"]
        for content in (data, (data[start : start + 1000] for start in range(0, len(data), 1000))):
            answer = client.post("/v1/predict", content=content, headers=offer)
            assert (answer.http_version, answer.json()) == ("HTTP/1.1", expected)
        assert client.get("/health/live", headers=offer).text == "live"  # on the same connection
    lines = "".join(f"{name}: {value}\r\n" for name, value in offer.items())
    request = REQUEST + f"{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data
    for pause in (0, len(REQUEST) + 20):  # in one packet, and within the headers
        with connect(address) as connection:
            connection.sendall(request[:pause])
            time.sleep(0.05)
            connection.sendall(request[pause:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_connections_are_limited(address):
    with contextlib.ExitStack() as stack:
        for _ in range(4 + SPARE):
            stack.enter_context(connect(address))
        time.sleep(0.1)
        over = stack.enter_context(connect(address))
        assert read_all(over).startswith(b"HTTP/1.1 503 ")
    until(lambda: httpx.get(f"http://{address}/health/live").status_code == 200)


def test_garbage_and_endless_headers_are_answered_and_left(address):
    for garbage in (b"\0" * 1000, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        with connect(address) as connection:
            connection.sendall(garbage)
            assert read_all(connection).startswith(b"HTTP/1.1 40")
    for target in (b"localhost:80", b"/"):
        with connect(address) as connection:
            connection.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"GET / HTTP/1.1\r\n", b"X: " + b"y" * 100_000),
        (b"GET / HTTP/1.1\r\n", b"X: " + b"y" * 70_000 + b"\r\n\r\n"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b""),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: y\r\n" * 20_000),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X: " + b"y" * 100_000),
        (CHUNKED, b"1\r\nx\r\n" * 20_000),
        (CHUNKED, b"1;" + b"x" * 100_000),
    ],
    ids=["header", "whole header", "path", "trailers", "trailer", "chunks of one byte", "extension of a chunk"],
)
def test_headers_and_all_that_is_no_body_are_limited(head, more, address):
    with connect(address) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(head)
        connection.sendall(more)
        answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 431 "), answer


def test_trailers_are_no_headers_and_chunks_may_be_small(address, street):
    data = encoded(street)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (data[i : i + 9] for i in range(0, len(data), 9)))
    assert len(chunks) - len(data) > 2**15
    with connect(address) as connection:
        connection.sendall(CHUNKED + chunks + b"0\r\nContent-Encoding: gzip\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_handshake_beyond_the_limits_of_websockets_is_answered(address):
    for extra in (b"X: " + b"y" * 9000 + b"\r\n", b"X: y\r\n" * 200):
        with connect(address) as connection:
            connection.sendall(HANDSHAKE + extra + b"\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("frame", [b"\x82\x81\0\0\0\0x", b"\x89\x80\0\0\0\0", b"\x8a\x80\0\0\0\0", b"\x00\x80\0\0\0\0"])
def test_a_flood_of_tiny_frames_ends_the_websocket(frame, address, monkeypatch):
    parsed, original = [], connections._WebSocket.handle_events

    def handle(self):
        parsed.append(len(self.conn.events))
        original(self)

    monkeypatch.setattr(connections._WebSocket, "handle_events", handle)
    with connect(address) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(HANDSHAKE + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
        connection.sendall(b"\x02\x81\0\0\0\0x" if frame[0] == 0 else b"")
        connection.sendall(frame * 100_000)
        read_all(connection)
    assert 4096 < sum(parsed) < 6000


def test_a_stalled_client_does_not_hold_the_end(model):
    with serving({"demo": model}, drain_s=1, body_s=60) as address, connect(address) as connection:
        connection.sendall(REQUEST + b"Content-Length: 9\r\n\r\nx")
        time.sleep(0.1)
        address.end()  # and `serving` waits for it


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fails", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_failed_device_or_a_signal_ends_the_service_when_all_are_answered(fails, model, street, capsys, monkeypatch):
    held = Held(model, error=DeviceError("The device failed.", index=0) if fails else None)
    announced = queue.SimpleQueue()
    monkeypatch.setattr("maskjet.model.open_model", lambda *_: contextlib.nullcontext(held))
    monkeypatch.setattr("maskjet.cli.serve.print_result", announced.put)

    def use():
        """Statuses and details of five requests, while the device fails on two of them or a signal comes."""
        url = announced.get(timeout=30).split()[-1]

        def ask():
            answer = httpx.post(f"{url}/v1/predict", content=encoded(street), timeout=30)
            return answer.status_code, answer.json().get("detail")

        with websocket(f"{url.replace('http', 'ws')}/v1/stream") as idle:
            asking = [pool.submit(ask) for _ in range(5)]  # two are worked on
            until(lambda: 'maskjet_queue_depth{model="demo"} 3.0' in httpx.get(f"{url}/metrics").text)
            if not fails:
                os.kill(os.getpid(), signal.SIGTERM)
            held.go.set()
            with pytest.raises(ConnectionClosed, match=r"1011.*device failed" if fails else r"1001.*shutting down"):
                idle.recv(30)
            return [each.result() for each in asking]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        using = pool.submit(use)
        code, _, err = call(capsys, "maskjet", "serve", "--port", "0", "--device", "cpu")
        assert using.result() == [(503, "The device failed.") if fails else (200, None)] * 5
    assert (code, err.splitlines()[-1:]) == ((5, ["maskjet: The device failed."]) if fails else (0, []))


def test_a_decode_without_end_does_not_hold_the_end(model, monkeypatch, capsys):
    go, begun, ended = threading.Event(), threading.Event(), []
    monkeypatch.setattr("maskjet.model.open_model", lambda *_: contextlib.nullcontext(model))
    monkeypatch.setattr("maskjet.serve.bodies._decode", lambda *_: begun.set() or go.wait(60))
    monkeypatch.setattr("maskjet.serve.service._END_S", 0.2)
    monkeypatch.setattr("os._exit", lambda code: ended.append(code) or go.set())
    announced = queue.SimpleQueue()
    monkeypatch.setattr("maskjet.cli.serve.print_result", announced.put)

    def use():
        url = announced.get(timeout=30).split()[-1]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asking = pool.submit(httpx.post, f"{url}/v1/predict", content=b"x", timeout=30)
            assert begun.wait(30)
            os.kill(os.getpid(), signal.SIGTERM)
            assert problem_of(asking.result()) == (503, "The service is shutting down.")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        using = pool.submit(use)
        code, _, err = call(capsys, "maskjet", "serve", "--port", "0", "--device", "cpu", "--drain-s", "0.5")
        using.result()
    assert ended == [0]
    assert (code, "A thread has not ended in time; the process ends without it." in err) == (0, True)


def test_the_first_signal_after_a_failure_lets_requests_end(model, monkeypatch):
    app = create_app({"demo": model})
    made = server.Server(server.configure(app, Settings()), app.state.service, announce=print)
    ended = []
    monkeypatch.setattr("os._exit", ended.append)
    made.should_exit = True  # the device has failed
    made._end(signal.SIGTERM, None)
    assert ended == []
    made._end(signal.SIGTERM, None)
    assert ended == [128 + signal.SIGTERM]


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnsupportedError, match=rf"127.0.0.1:{port} can't be used: Address already in use\.$"):
            server.listen(Settings(port=port))
    with server.listen(Settings(port=0)) as first, pytest.raises(UnsupportedError, match="Address already in use"):
        server.listen(Settings(port=first.getsockname()[1]))  # while the first one's models are loaded


def test_a_client_that_goes_away_takes_its_image_out_of_the_queue(model, street):
    held, data = Held(model), encoded(street)
    with serving({"demo": held}, threads=2) as address, contextlib.ExitStack() as gone:
        dispatcher = address.service.dispatcher()
        for seen in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
            connection = gone.enter_context(connect(address))
            connection.sendall(REQUEST + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            until(lambda seen=seen: (len(held.images), dispatcher.depth) == seen)
        gone.close()
        until(lambda: dispatcher.depth == 0)
        held.go.set()
        assert httpx.post(f"http://{address}/v1/predict", content=data, timeout=60).status_code == 200
        lines = httpx.get(f"http://{address}/metrics").text.splitlines()
    assert len(held.images) == 3
    assert any('outcome="gone"' in line for line in lines)

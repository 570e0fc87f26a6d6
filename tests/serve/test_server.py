"""The service on a port of its own: sockets, slow senders, signals."""

import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect as websocket

from maskjet.errors import DeviceError, InputError, UnsupportedError
from maskjet.serve import Settings, create_app, server
from tests.serve.client import encoded

REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n"


@contextlib.contextmanager
def running(*options, **environment):
    """The URL and process of `maskjet serve`; killed at the end."""
    command = [sys.executable, "-m", "maskjet", "serve", "--port", "0", "--device", "cpu", *options]
    own = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **environment}  # which decide on rounding
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=own)
    try:
        line = process.stderr.readline()
        assert line.startswith("maskjet: serving demo at http://127.0.0.1:"), line + process.stderr.read()
        yield line.split()[-1], process
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def connect(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def read_all(connection):
    """What comes until the other side closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


@pytest.fixture(scope="module")
def url():
    with running("--header-s", "0.5", "--body-s", "0.5", "--body-bytes", "3000000", "--connections", "4") as (url, _):
        yield url


def test_answers_equal_those_of_predict(url, model, street):
    with httpx.Client(base_url=url) as client:
        answer = client.post("/v1/predict", content=encoded(street), params={"threshold": 0.3})
    assert answer.json() == json.loads(model.predict(street).to_json())
    assert "server" not in answer.headers


def test_a_body_that_is_too_large_is_answered_while_it_is_sent(url):
    with httpx.Client(base_url=url) as client:
        stated = client.post("/v1/predict", content=b"x" * 3_000_001)
        counted = client.post("/v1/predict", content=(b"x" * 100_000 for _ in range(50)))
        assert (stated.status_code, counted.status_code) == (413, 413)
        assert (stated.headers["connection"], counted.headers["connection"]) == ("close", "close")
        assert client.get("/health/ready").text == "ready"


def test_slow_senders_time_out(url):
    for sent, detail in (
        (b"", b"The headers must come within 0.5 s"),
        (b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\n", b"The headers must come within 0.5 s"),
        (
            REQUEST + b"Content-Length: 9\r\n\r\nx",
            b"The body must come within 0.5",
        ),
    ):
        with connect(url) as connection:
            start = time.monotonic()
            connection.sendall(sent)
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert detail in answer
            assert b"application/problem+json" in answer
            assert time.monotonic() - start < 5
    with connect(url) as connection:  # byte by byte: activity does not prolong it
        for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX: yyyyyyyyyyyyyyyyyyyyyy":
            with contextlib.suppress(OSError):
                connection.sendall(bytes([byte]))
            time.sleep(0.02)
        assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_the_second_request_of_a_connection_is_limited_too(url):
    with connect(url) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while not received.endswith(b"live"):
            received += connection.recv(65536)
        assert b"200 OK" in received
        connection.sendall(b"GET /health/live HTTP/1.1\r\nX: ")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_headers_without_end_are_refused(url):
    with connect(url) as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.sendall(b"X: " + b"y" * 100_000)
        answer = read_all(connection)
        assert b"431" in answer.partition(b"\r\n")[0], answer


def test_connections_are_limited(url):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(url)) for _ in range(4 + 16)]
        time.sleep(0.1)
        over = stack.enter_context(connect(url))
        assert read_all(over).startswith(b"HTTP/1.1 503 ")
        del held
    time.sleep(0.1)
    assert httpx.get(f"{url}/health/live").status_code == 200


def test_garbage_is_answered_and_left(url):
    for garbage in (b"\0" * 1000, b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
        with connect(url) as connection:
            connection.sendall(garbage)
            assert read_all(connection).startswith(b"HTTP/1.1 40")


def test_a_signal_under_load_answers_everything_and_exits_with_0(street):
    data = encoded(street)

    def ask(url):
        """When the request had been sent, and its status; None if there was nobody to take it."""
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        sent = math.inf
        try:
            connection.request("POST", "/v1/predict", data)
            sent = time.monotonic()
            return sent, connection.getresponse().status
        except OSError:
            return sent, None
        finally:
            connection.close()

    with running("--queue", "100") as (url, process), concurrent.futures.ThreadPoolExecutor(12) as pool:
        clients = [pool.submit(ask, url) for _ in range(60)]
        time.sleep(0.5)
        signalled = time.monotonic()
        process.send_signal(signal.SIGTERM)
        outcomes = [client.result() for client in clients]
        assert process.wait(20) == 0
        assert time.monotonic() - signalled < 20
    before = [status for sent, status in outcomes if sent < signalled]
    assert before.count(200) == len(before) > 0, outcomes
    assert {status for _, status in outcomes} <= {200, 503, None}, outcomes


def test_a_stalled_client_does_not_hold_the_end():
    with running("--drain-s", "1") as (url, process), connect(url) as connection:
        connection.sendall(REQUEST + b"Content-Length: 9\r\n\r\nx")
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_second_signal_ends_it_now():
    with running("--drain-s", "60", "--body-s", "60") as (url, process), connect(url) as connection:
        connection.sendall(REQUEST + b"Content-Length: 9\r\n\r\nx")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 128 + signal.SIGTERM


class Breaking:
    """A model whose device fails once it is let go."""

    def __init__(self, model):
        self._model = model
        self.go = threading.Event()

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **options):
        if images and images[0].shape[0] > 64:
            assert self.go.wait(30)
            raise DeviceError("The device failed.", index=0)
        return self._model.predict(images, **options)


def test_a_device_that_fails_ends_the_service_when_all_are_answered(model, street, monkeypatch):
    monkeypatch.setattr("maskjet.serve.dispatcher._SIZES_HW", ((64, 64),))
    breaking, ready = Breaking(model), threading.Event()
    app = create_app({"demo": breaking}, Settings(port=0))
    listener = server.listen(app.state.service.settings)
    url = server.url_of(listener)

    def ask():
        answer = httpx.post(f"{url}/v1/predict", content=encoded(street), timeout=30)
        return answer.status_code, answer.json()["detail"]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        running = pool.submit(server.run, app, listener, announce=lambda _: ready.set())
        assert ready.wait(30)
        with websocket(f"{url.replace('http', 'ws')}/v1/stream") as idle:
            asking = [pool.submit(ask) for _ in range(5)]
            deadline = time.monotonic() + 10
            while app.state.service.dispatcher().depth < 3:  # and two are worked on
                assert time.monotonic() < deadline
                time.sleep(0.01)
            breaking.go.set()
            assert [each.result() for each in asking] == [(503, "The device failed.")] * 5
            with pytest.raises(ConnectionClosedError, match=r"1011.*The device failed"):
                idle.recv(30)
        assert isinstance(running.exception(10), DeviceError)


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


def test_a_token_comes_from_the_environment():
    with running(MASKJET_TOKEN="secret") as (url, _):
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnsupportedError, match=rf"127.0.0.1:{port} can't be used: Address already in use\.$"):
            server.listen(Settings(port=port))
    with pytest.raises(InputError, match="token must be given"):
        server.listen(Settings(host="0.0.0.0"))


def test_a_client_that_goes_away_takes_its_image_out_of_the_queue(street):
    data = encoded(np.repeat(np.repeat(street, 6, axis=0), 6, axis=1), ".jpg")
    request = REQUEST + b"Content-Length: %d\r\n\r\n" % len(data) + data
    with running("--queue", "50") as (url, _):
        for _ in range(30):
            connect_and_leave(url, request)
        start = time.monotonic()
        assert httpx.post(f"{url}/v1/predict", content=data, timeout=60).status_code == 200
        lines = httpx.get(f"{url}/metrics").text.splitlines()
    done = next(float(line.split()[1]) for line in lines if line.startswith("maskjet_batch_images_sum"))
    assert done < 20, (done, time.monotonic() - start)  # the demo takes longer for one than the clients did for all
    assert any('outcome="gone"' in line for line in lines)


def connect_and_leave(url, request):
    with connect(url) as connection:
        connection.sendall(request)
        time.sleep(0.005)

"""Events of lines and zones as JSON lines, and delivered to webhooks and MQTT brokers, which may fail."""

import json
import socket
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from maskjet.errors import InputError, MissingDependencyError
from maskjet.outputs import events
from maskjet.outputs.events import EventDelivery
from maskjet.outputs.opening import open_sinks
from maskjet.sources.counts import Count, Event
from tests.detections.test_detections import tracked_detections
from tests.outputs.outputs import frames, lines

pytestmark = pytest.mark.usefixtures("in_folder")
FOUND = tracked_detections(1)


def counted(count):
    """Frames with an event each."""
    for frame in frames(count):
        event = Event("gate", "out", 7, "car", (3.0, 4.5), 1.5 if frame.index else None)
        counts = [Count("gate", ((0, 0), (9, 9)), {}, {"car": 1}, events=[event])]
        yield replace(frame, counts=counts)


@contextmanager
def hook(*statuses):
    """A web server that answers with these, then with 204; yields its URL and the list of what it was sent."""
    given, left = [], list(statuses)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = left.pop(0) if left else 204
            if status == 204:
                given.append((json.loads(body), dict(self.headers), self.path))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/b")
            self.end_headers()

        def do_GET(self):  # where a redirect leads, but nobody goes
            given.append(({"index": "redirected"}, dict(self.headers), self.path))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/a?b=1", given
        finally:
            server.shutdown()
            thread.join()


def send(url, count=3):
    with open_sinks([url]) as sinks:
        for frame in counted(count):
            sinks.write(frame, FOUND)
    return sinks


def test_lines_list_events_alone_and_json_lines_the_counts():
    with open_sinks(["a.events.jsonl", "a.jsonl"]) as sinks:
        for frame in [*counted(2), *frames(1)]:
            sinks.write(frame, FOUND)
    assert lines("a.events.jsonl")[1] == {
        "index": 1,
        "time_s": 0.1,
        "source": "clip.mp4",
        "counter": "gate",
        "track_id": 7,
        "class_name": "car",
        "point": [3.0, 4.5],
        "direction": "out",
        "dwell_s": 1.5,
    }
    assert len(lines("a.events.jsonl")) == 2
    assert [each.get("counts") for each in lines("a.jsonl")] == [{"gate": {"in": {}, "out": {"car": 1}}}] * 2 + [None]


def test_a_webhook_gets_each_event_and_one_that_fails_is_tried_again(monkeypatch):
    monkeypatch.setattr(events, "_DELAYS_S", (0.0, 0.0, 0.0))
    with hook(503, 429) as (url, given):
        sinks = send(url.replace("http://", "http://me:p%40ss@") + "%41ü d")
    assert [body["index"] for body, _, _ in given] == [0, 1, 2]
    assert given[0][1]["Authorization"] == "Basic bWU6cEBzcw=="
    assert given[0][2] == "/a?b=1%41%C3%BC%20d"
    assert sinks.lost == 0
    assert "p%40ss" not in str(sinks.paths)


def test_an_event_that_is_refused_too_often_is_counted(monkeypatch):
    monkeypatch.setattr(events, "_DELAYS_S", (0.0, 0.0, 0.0))
    with hook(404, 302, 500) as (url, given):
        sinks = send(url)
    assert [body["index"] for body, _, _ in given] == [1, 2]
    assert sinks.lost == 1


@pytest.mark.parametrize("kind", ["http", "mqtt"])
def test_nobody_there_never_stops_a_run_and_all_that_is_lost_is_counted(kind, monkeypatch):
    if kind == "mqtt":
        pytest.importorskip("paho.mqtt.client")
    monkeypatch.setattr(events, "_MOST_WAITING", 4)
    monkeypatch.setattr(events, "_DELAYS_S", (0.0, 0.01))
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        sinks = send(f"{kind}://127.0.0.1:{unused.getsockname()[1]}/a", count=20)
    assert sinks.lost == 20
    assert sinks.paths == []


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"\x20\x02\x00\x05", "Not authorized"), (b"", "the broker closed the connection")]
)
def test_a_broker_that_refuses_is_quoted_once(answer, reason, monkeypatch, caplog):
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setattr(events, "_DELAYS_S", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            for _ in range(3):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert send(f"mqtt://{address}/a").lost == 3
    told = [record.getMessage() for record in caplog.records if record.name == "maskjet"]
    assert told == [f"mqtt://{address}/a took 0 of 3 events: {reason}"]


def test_one_that_never_answers_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(events, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert send(f"http://127.0.0.1:{server.getsockname()[1]}").lost == 3


@contextmanager
def broker(topics, clients):
    """A broker that takes what is published with QoS 1 to it, from clients one after another; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for _ in range(clients):
                connection, _ = server.accept()
                with connection, connection.makefile("rb") as data:
                    while head := data.read(1):  # packets are shorter than 16 kB
                        length = data.read(1)[0]
                        length += (data.read(1)[0] - 1) * 128 if length >= 128 else 0
                        body = data.read(length)
                        if head[0] >> 4 == 1:
                            connection.sendall(b"\x20\x02\x00\x00")
                        elif head[0] >> 4 == 3:
                            end = 2 + int.from_bytes(body[:2], "big")
                            topics.append((body[2:end].decode(), json.loads(body[end + 2 :])))
                            connection.sendall(b"\x40\x02" + body[end : end + 2])

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_topic_gets_each_event():
    pytest.importorskip("paho.mqtt.client")
    topics = []
    with broker(topics, 3) as address:
        assert send(f"mqtt://{address}/street/gate").lost == 0
    assert [(topic, event["index"]) for topic, event in topics] == [("street/gate", index) for index in range(3)]


def test_a_topic_without_paho_is_one_clear_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "paho.mqtt.client", None)
    with pytest.raises(MissingDependencyError, match=r'^mqtt:// needs paho.*: pip install "maskjet\[mqtt\]"\.$'):
        EventDelivery("mqtt://host/a")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://", "a URL as"),
        ("http://host:x/", "a URL as"),
        ("mqtt://me:secret@host", "a URL as .*, got 'mqtt://host'"),
        ("mqtt://host/a/#", "a URL as"),
        ("mqtt://host/a%2B", "a URL as"),
        ("ftp://host/a", "a path, got the URL"),
    ],
)
def test_what_is_wrong_in_a_url_is_told_without_its_password(url, message):
    with pytest.raises(InputError, match=rf"^out must be {message}") as raised:
        open_sinks([url])
    assert "secret" not in str(raised.value)

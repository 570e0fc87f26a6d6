"""Frames over a WebSocket, and the sources that the service watches; over a real port."""

import asyncio
import base64
import contextlib
import json
import math
import re
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import cv2
import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from maskjet.errors import InputError, SourceError
from maskjet.serve import Settings, server, source_names, sources, subscribers
from maskjet.tracking import Tracker
from maskjet.traffic import Street
from tests.serve.client import BEARER, TOKEN, Held, encoded, problem_of, run, served, serving
from tests.sources.test_hostile_images import png_of
from tests.waiting import until


def open_stream(address, query="", **options):
    return connect(f"ws://{address}/v1/stream{query}", subprotocols=["maskjet"], compression=None, **options)


async def receive(stream, within_s=20):
    return json.loads(await asyncio.wait_for(stream.recv(), within_s))


async def closing_of(stream):
    """Code and reason of the server's close."""
    try:
        while True:
            await asyncio.wait_for(stream.recv(), 20)
    except ConnectionClosed as closed:
        return closed.rcvd.code, closed.rcvd.reason


@pytest.fixture(scope="module")
def video(write_video):
    return write_video("Front door.mp4", frames=6, rate=10)


@pytest.fixture(scope="module")
def plain(model):
    """A service for tests that change nothing in it."""
    with serving({"demo": model}, pixels=100_000, frame_bytes=200_000) as address:
        yield address


async def wait_for(client, identity, state, within_s=20):
    """The facts of a source once it is in a state."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        facts = {each["id"]: each for each in (await client.get("/v1/sources")).json()["sources"]}
        if facts[identity]["state"] == state:
            return facts[identity]
        await asyncio.sleep(0.02)
    pytest.fail(f"{facts}")


async def events_of(client, identity, last=math.inf):
    """The results of a source until it ends, or until that of a frame so late."""
    found = []
    async with client.stream("GET", f"/v1/sources/{identity}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                found.append(json.loads(line[5:]))
                if found[-1]["frame"] >= last:
                    break
    return found


@pytest.fixture
def gate(monkeypatch):
    """Sources are opened once it is set."""
    gate = threading.Event()
    real = sources.open_source

    def open_late(*args, **kwargs):
        assert gate.wait(20)
        return real(*args, **kwargs)

    monkeypatch.setattr(sources, "open_source", open_late)
    return gate


@run
async def test_frames_are_answered_in_order_and_with_options_as_predict_does(model, scenes):
    with serving({"demo": model}) as address:
        async with open_stream(address) as stream:
            assert stream.subprotocol == "maskjet"
            for number, scene in enumerate(scenes[:3]):
                await stream.send(encoded(scene))
                answer = await receive(stream)
                assert (answer["frame"], answer["dropped"]) == (number, 0)
                assert answer["result"] == json.loads(model.predict(scene).to_json())
        async with open_stream(address, "?threshold=0.05&max_detections=2&masks=polygons&classes=car") as stream:
            await stream.send(encoded(scenes[0]))
            found = (await receive(stream))["result"]
        text = (await asyncio.to_thread(httpx.get, f"http://{address}/metrics")).text
    assert 'maskjet_frames_total{source="stream"} 4.0' in text
    expected = model.predict(scenes[0], threshold=0.05, max_detections=2, classes=["car"])
    assert [each["confidence"] for each in found["detections"]] == expected.confidence.tolist()
    assert all("polygons" in each and "rle" not in each for each in found["detections"])


@run
async def test_a_tracked_stream_has_the_same_detections_with_ids(model, monkeypatch):
    street, ids, given, update = Street(seed=7, size_hw=(240, 320)), [], [], Tracker.update
    tracker, found = model.tracker(), model.predict(street.frame(0).image)
    for now in (0.0, 0.1):  # compiles, for which the service's clock would lose the tracks
        tracker.update(found, now)
    monkeypatch.setattr(Tracker, "update", lambda self, found, now: given.append(found) or update(self, found, now))
    some = {"threshold": 0.93, "max_detections": 2, "classes": ["car", "truck"]}
    cases = [("", {}), ("&threshold=0.93&max_detections=2&classes=car,truck", some)]
    with serving({"demo": model}) as address:
        for query, options in cases:
            async with open_stream(address, f"?track=true&masks=none{query}") as stream:
                for number in range(4):
                    image = street.frame(number).image
                    await stream.send(encoded(image))
                    found = (await receive(stream))["result"]["detections"]
                    ids.append({each.pop("track_id") for each in found} - {-1})
                    assert all(each.pop("track_class_id") in range(5) for each in found)
                    assert [each["xyxy"] for each in found] == model.predict(image, **options).xyxy.tolist()
                    assert len(given[-1]) > len(found)  # weak ones hold tracks together
        async with open_stream(address, "?track=true&threshold=car=0.6") as stream:
            await stream.send(encoded(image))
            found = (await receive(stream))["result"]["detections"]
            assert [each["xyxy"] for each in found] == model.predict(image, threshold={"car": 0.6}).xyxy.tolist()
            assert len(given[-1]) > len(found)
        answer = await asyncio.to_thread(httpx.post, f"http://{address}/v1/predict?track=true", content=encoded(image))
    assert len(ids[0] & ids[3]) >= 2
    assert problem_of(answer)[0] == 400


@run
async def test_an_invalid_query_closes_the_socket(plain):
    for query, reason in (
        ("?track=yes", "track must be true or false, got 'yes'."),
        ("?model=other", "model must be one that is served, got 'other'"),
        ("?threshold=2", "threshold must be 0..1, got 2.0."),
    ):
        async with open_stream(plain, query) as stream:
            code, told = await closing_of(stream)
            assert (code, told[: len(reason)]) == (1008, reason)


@run
async def test_a_bad_frame_is_a_problem_and_the_socket_stays(plain, scenes):
    async with open_stream(plain) as stream:
        for number, (data, status, detail) in enumerate(
            [
                (b"garbage", 422, "the frame"),
                (b"", 422, "the frame"),
                (encoded(scenes[0])[:2000], 422, "the frame"),
                (png_of(50_000, 50_000), 413, "the frame has 50000×50000 pixels, the limit is 100,000."),
            ]
        ):
            await stream.send(data)
            answer = await receive(stream)
            assert answer["frame"] == number
            assert answer["problem"]["status"] == status
            assert detail in answer["problem"]["detail"]
        await stream.send(encoded(scenes[0]))
        assert (await receive(stream))["result"]["size"] == [120, 160]
    assert plain.service.memory.taken == 0


@run
async def test_what_is_no_frame_closes_the_socket_and_another_sites_page_gets_none(plain):
    with pytest.raises(InvalidStatus) as caught:
        await open_stream(plain, origin="http://evil.example")
    assert caught.value.response.status_code == 403
    async with open_stream(plain) as stream:
        await stream.send("hello")
        assert (await closing_of(stream))[0] == 1003
    async with open_stream(plain) as stream:
        with contextlib.suppress(ConnectionClosed):
            await stream.send(b"x" * 300_000)
        assert (await closing_of(stream))[0] == 1009
    async with open_stream(plain) as stream:  # in fragments

        async def fragments():
            for _ in range(3):
                yield b"x" * 90_000
            # Sent after the server has closed, the message's end would meet a reset, and the reason might go unread.
            await asyncio.wait_for(stream.wait_closed(), 20)

        with contextlib.suppress(ConnectionClosed):
            await stream.send(fragments())
        assert (await closing_of(stream))[0] == 1009
    async with open_stream(plain) as stream:  # in empty fragments, which no size limits
        with pytest.raises(ConnectionClosed):  # noqa: PT012
            await asyncio.wait_for(stream.send([b""] * 6000), 20)
            await stream.recv()


@run
async def test_the_newest_frame_wins_and_drops_are_counted(model, scenes):
    held = Held(model)
    data = [encoded(scene) for scene in scenes]
    with serving({"demo": held}) as address:
        async with open_stream(address) as stream:
            for number in range(2):  # under way
                await stream.send(data[number])
                assert await asyncio.to_thread(held.begun.acquire, timeout=10)
            for number in (2, 3, 0):
                await stream.send(data[number])
            await (await stream.ping())  # the frames before it have come
            await asyncio.sleep(0.3)
            held.go.set()
            answers = [await receive(stream) for _ in range(3)]
            assert [answer["frame"] for answer in answers] == [0, 1, 4]
            assert answers[2]["dropped"] == 2
        assert len(held.images) == 3
        assert address.service.metrics.dropped.labels("stream")._value.get() == 2


@run
async def test_a_client_that_leaves_takes_its_frames_along(model, scenes):
    held = Held(model)
    with serving({"demo": held}) as address:
        async with open_stream(address) as stream:
            await stream.send(encoded(scenes[0]))
            assert await asyncio.to_thread(held.begun.acquire, timeout=10)
            await stream.send(encoded(scenes[1]))
        held.go.set()
        await asyncio.to_thread(until, lambda: not address.service.streams and not address.service.memory.taken)


@run
async def test_sockets_frames_and_patience_are_limited(model, scenes):
    data = encoded(scenes[0])
    with serving({"demo": model}, streams=2, frame_rate=5, idle_s=0.5) as address:
        async with open_stream(address) as one, open_stream(address) as other:
            async with open_stream(address) as third:
                assert await closing_of(third) == (1013, "The service has 2 WebSockets already; try again later.")
            with contextlib.suppress(ConnectionClosed):
                for _ in range(11):
                    await one.send(data)
            assert await closing_of(one) == (1008, "At most 5 frames may come a second, more came.")
            assert await closing_of(other) == (1008, "No frame came for 0.5 s.")


@run
async def test_the_token_is_a_header_or_a_subprotocol(model, scenes):
    def protocol(token):
        return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")

    with serving({"demo": model}, token=TOKEN) as address:
        url = f"ws://{address}/v1/stream"
        for options in (
            {},
            {"subprotocols": ["maskjet"]},
            {"subprotocols": ["maskjet", protocol("wrong")]},
            {"subprotocols": ["maskjet", "bearer.%"]},
            {"additional_headers": {"Authorization": "Bearer wrong"}},
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(url, **options):
                    pass
            assert caught.value.response.status_code == 401
            assert json.loads(caught.value.response.body)["type"] == "urn:maskjet:problem:unauthorized"
        for options in (
            {"subprotocols": ["maskjet", protocol(TOKEN)]},
            {"additional_headers": BEARER},
        ):
            async with connect(url, **options) as stream:
                assert stream.subprotocol == ("maskjet" if "subprotocols" in options else None)
                await stream.send(encoded(scenes[0]))
                assert "result" in await receive(stream)


@run
async def test_the_end_comes_after_the_frame_in_flight(model, scenes, video, gate):
    held = Held(model)
    with serving({"demo": held}, source=(f"door={video}",)) as address:
        async with (
            httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client,
            open_stream(address) as stream,
            open_stream(address) as idle,
        ):
            looking = asyncio.gather(events_of(client, "door"), client.get("/v1/sources/door/preview.mjpeg"))
            await stream.send(encoded(scenes[0]))
            assert await asyncio.to_thread(held.begun.acquire, timeout=10)
            await asyncio.sleep(0.2)
            address.end()
            assert await closing_of(idle) == (1001, "The service is shutting down.")
            events, preview = await looking
            assert (events, preview.status_code) == ([], 200)
            held.go.set()
            assert (await receive(stream))["frame"] == 0
            assert await closing_of(stream) == (1001, "The service is shutting down.")
            gate.set()


@pytest.mark.slow
def test_a_client_that_does_not_read_is_cut_off(model, scenes):
    data = encoded(scenes[0], ".jpg")
    frame = b"\x82\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data  # masked by zeros
    key = base64.b64encode(b"0" * 16).decode()
    with serving({"demo": model}, stall_s=1, frame_rate=10_000) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, port = address.split(":")
        connection.connect((host, int(port)))
        connection.sendall(
            f"GET /v1/stream?threshold=0&masks=polygons HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        start = time.monotonic()
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            while time.monotonic() - start < 40:
                connection.sendall(frame)
                time.sleep(0.005)
        dropped = address.service.metrics.dropped.labels("stream")._value.get()
        assert dropped > 100  # while nothing could be sent
        until(lambda: not address.service.streams)


@run
async def test_a_videos_results_and_pictures_come_until_it_ends(model, video, gate, monkeypatch):
    drawn = []
    real = subscribers._to_jpeg
    monkeypatch.setattr(subscribers, "_to_jpeg", lambda *args: drawn.append(1) or real(*args))
    with (
        serving({"demo": model}, source=(str(video),), preview_fps=5, detect="3") as address,
        contextlib.ExitStack() as held,
    ):
        for path in ("events", "preview.mjpeg"):  # slow readers hold nothing back
            connection = held.enter_context(socket.create_connection(address.split(":")))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.sendall(f"GET /v1/sources/front-door-mp4/{path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client:

            async def look():
                async with client.stream("GET", "/v1/sources/front-door-mp4/preview.mjpeg") as answer:
                    assert answer.headers["content-type"] == "multipart/x-mixed-replace; boundary=frame"
                    return await answer.aread()

            following = asyncio.create_task(events_of(client, "front-door-mp4"))
            looking = [asyncio.create_task(look()) for _ in range(2)]
            await asyncio.sleep(0.3)
            gate.set()
            start = time.monotonic()
            events, bodies = await following, await asyncio.gather(*looking)
            took_s, count = time.monotonic() - start, len(drawn)
            assert took_s > 0.4  # no faster than its own time
            assert 2 <= count <= 2 + 5 * took_s  # once for all
            for body in bodies:
                pictures = body.split(b"--frame\r\n")[1:-1]
                assert 2 <= len(pictures) <= count
                for picture in pictures:
                    head, _, data = picture.partition(b"\r\n\r\n")
                    assert f"Content-Length: {len(data) - 2}".encode() in head
                    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
                    assert image.shape == (120, 160, 3)
            facts = await wait_for(client, "front-door-mp4", "ended")
            assert facts["name"] == "Front door.mp4"
            assert (facts["frames"], facts["dropped"], facts["error"]) == (6, 0, None)
            assert facts["size"] == [120, 160]
            assert await events_of(client, "front-door-mp4") == []
            assert b"\xff\xd8" in await look()  # the last picture
            text = (await client.get("/metrics")).text
    assert 'maskjet_frames_total{source="front-door-mp4"} 6.0' in text
    assert events == [
        {"frame": frame.index, "time_s": frame.time_s, "result": json.loads(found.to_json())}
        for frame, found in model.stream(str(video), detect=3)
    ]


@run
async def test_a_subscriber_that_is_too_slow_misses_the_oldest():
    queue = asyncio.Queue(subscribers.EVENTS_WAITING)
    for number in range(100):
        subscribers.offer(queue, number)
    assert [queue.get_nowait() for _ in range(queue.qsize())] == list(range(36, 100))


@run
async def test_a_viewer_that_comes_as_the_last_one_leaves_sees_the_newest_picture():
    async def in_thread(_to_jpeg, frame, *_):
        await asyncio.sleep(0)
        return frame

    service = SimpleNamespace(in_thread=in_thread, settings=Settings(preview_fps=1000))
    broadcast = subscribers.Broadcast("a", service)
    broadcast.publish("one", None, None)
    with broadcast.previewed() as pictures:
        assert await pictures.get() == "one"
    with broadcast.previewed() as pictures:
        assert await pictures.get() == "one"
        broadcast.publish("two", None, None)
        assert await pictures.get() == "two"
        broadcast.finish()
        assert [await pictures.get() for _ in range(2)] == ["two", None]


@run
async def test_sources_come_and_go_with_a_token(model, video, gate):
    secret = "http://user:hunter2@127.0.0.1:9/live?key=hunter3"
    with serving({"demo": model}, token=TOKEN, allow_sources=True, sources=2, source=(str(video),)) as address:
        async with httpx.AsyncClient(base_url=f"http://{address}", headers=BEARER, timeout=30) as client:
            answer = await client.post("/v1/sources", json={"url": secret, "threshold": 0.4, "classes": ["car"]})
            assert answer.status_code == 201, answer.text
            added = answer.json()
            assert added["name"] == "http://127.0.0.1:9/live"
            assert answer.headers["location"] == f"/v1/sources/{added['id']}"
            facts = await wait_for(client, added["id"], "waiting")  # it may come back
            assert "Connection refused" in facts["error"]
            for text in (json.dumps(facts), (await client.get("/metrics")).text):
                assert "hunter" not in text
            full = await client.post("/v1/sources", json={"url": secret})
            assert full.status_code == 429
            assert (await client.delete(f"/v1/sources/{added['id']}")).status_code == 204
            assert (await client.delete(f"/v1/sources/{added['id']}")).status_code == 404
            assert len((await client.get("/v1/sources")).json()["sources"]) == 1
            for path in ("events", "preview.mjpeg"):
                assert (await client.get(f"/v1/sources/{added['id']}/{path}")).status_code == 404
            following = asyncio.create_task(events_of(client, "front-door-mp4"))
            await asyncio.sleep(0.2)
            assert (await client.delete("/v1/sources/front-door-mp4")).status_code == 204
            assert await following == []  # a source that is removed ends for those who look on
            gate.set()


@run
async def test_the_place_of_a_source_is_free_when_its_thread_has_ended(model, gate, monkeypatch):
    def wait_for_host(*_):
        gate.wait(20)
        raise SourceError("It is away.")

    monkeypatch.setattr(sources, "open_stream", wait_for_host)
    async with served({"demo": model}, token=TOKEN, allow_sources=True, sources=2) as client:
        await client.service.warmed_up.wait()
        statuses = []
        for _ in range(5):
            answer = await client.post("/v1/sources", json={"url": "rtsp://camera/"}, headers=BEARER)
            statuses.append(answer.status_code)
            if answer.status_code == 201:
                assert (await client.delete(answer.headers["location"], headers=BEARER)).status_code == 204
        assert statuses == [201, 201, 429, 429, 429]
        assert problem_of(answer)[1] == "The service watches 0 sources already, and 2 removed ones are not closed yet."
        assert sum(thread.name.startswith("maskjet-source-") for thread in threading.enumerate()) == 2
        gate.set()
        while (await client.post("/v1/sources", json={"url": "rtsp://camera/"}, headers=BEARER)).status_code == 429:
            await asyncio.sleep(0.02)


@run
async def test_sources_may_be_none_and_are_changed_only_where_that_is_allowed(model, monkeypatch):
    for name in ("open_stream", "open_source"):
        monkeypatch.setattr(sources, name, lambda *_, **__: pytest.fail("It was opened."))
    inner = ("[2002:7f00:1::]", "100.100.100.200", "[fd00:ec2::254]", "127.0.0.1", "169.254.169.254")
    for settings in ({}, {"token": TOKEN}, {"allow_sources": True}):
        async with served({"demo": model}, **settings) as client:
            assert (await client.get("/v1/sources", headers=BEARER)).json() == {"sources": []}
            for answer in (
                *[await client.post("/v1/sources", json={"url": f"http://{host}/"}, headers=BEARER) for host in inner],
                await client.delete("/v1/sources/door", headers=BEARER),
            ):
                assert problem_of(answer)[0] == 403
                assert problem_of(answer)[1].endswith("which was started without allow_sources.")
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("maskjet-source-")]
    async with served({"demo": model}, token=TOKEN, allow_sources=True, sources=0) as client:
        answer = await client.post("/v1/sources", json={"url": "rtsp://192.0.2.1/"}, headers=BEARER)
        assert problem_of(answer)[0] == 403
        assert problem_of(answer)[1].startswith("This service watches no sources: its setting sources is 0")
    with pytest.raises(InputError, match=r"^source must be given at most 1 times, got 2; see sources\.$"):
        Settings(source=("a", "b"), sources=1)
    with pytest.raises(InputError, match=r"^sources must be a whole number of at least 0, got -1\.$"):
        Settings(sources=-1)
    assert "hunter2" not in repr(Settings(source=("rtsp://user:hunter2@camera/",)))


@run
async def test_a_new_source_that_is_malformed_is_one_sentence_without_its_secrets(model):
    mistakes = (
        ({"url": 1}, "url must be a text of at most 2048 characters, it is not."),
        ({"url": "http://" + "a" * 3000}, "url must be a text of at most 2048 characters, it is not."),
        ({"url": "rtsp://user:hunter2@[camera/"}, "url must be a URL of rtsp, rtsps, http, https that names a host, "),
        ({"urls": "rtsp://camera/"}, "url must be a text of at most 2048 characters, it is not."),
        (
            {"url": "rtsp://camera/", "key": 1},
            "The body must be a JSON object with fields of url, name, model, threshold, ",
        ),
        ({"url": "rtsp://camera/", "name": "a\n"}, "name must be 1..100 printable characters, got 'a\\n'."),
        (
            {"url": "rtsp://camera/", "threshold": True},
            "threshold must be a number 0..1, or an object of them by class name, got True.",
        ),
        (
            {"url": "rtsp://camera/", "threshold": {"car": 1.5}},
            "threshold must be a number 0..1, or an object of them by class name, got a dict.",
        ),
        (
            {"url": "rtsp://camera/", "max_detections": 2.5},
            "max_detections must be a whole number of at least 1, got 2.5.",
        ),
        (["hunter2"], "The body must be a JSON object with fields of url, name, model, "),
    )
    async with served({"demo": model}, token=TOKEN, allow_sources=True) as client:
        for new, detail in mistakes:
            answer = await client.post("/v1/sources", json=new, headers=BEARER)
            assert problem_of(answer)[0] == 400
            assert problem_of(answer)[1].startswith(detail), answer.text
            assert "hunter" not in answer.text


@pytest.fixture
def camera(scenes, monkeypatch):
    """The URL of a camera that breaks off after 15 pictures, and can be opened again."""
    monkeypatch.setattr("maskjet.sources.live._FIRST_WAIT_S", 0.1)
    pictures = [encoded(scene, ".jpg") for scene in scenes]

    class Camera(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=b")
            self.end_headers()
            for data in (pictures * 4)[:15]:
                head = b"--b\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(data)
                self.wfile.write(head + data + b"\r\n")
                time.sleep(0.02)

    with ThreadingHTTPServer(("127.0.0.1", 0), Camera) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        yield f"http://127.0.0.1:{server.server_port}/live"
        server.shutdown()


@pytest.mark.slow
@run
async def test_a_camera_that_breaks_off_is_opened_again(model, camera):
    with serving({"demo": model}, source=(f"door={camera}",)) as address:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client:
            events = await events_of(client, "door", last=30)
            facts = await wait_for(client, "door", "running")
            text = (await client.get("/metrics")).text
    indices = [event["frame"] for event in events]
    assert indices == sorted(set(indices))
    assert all(event["result"]["size"] == [120, 160] for event in events)
    assert facts["frames"] >= len(indices)
    assert facts["reconnects"] >= 1
    assert facts["bad_frames"] >= 1  # the gap
    assert re.search(r'maskjet_source_reconnects_total{source="door"} [1-9]', text)
    assert re.search(r'maskjet_source_bad_frames_total{source="door"} [1-9]', text)
    assert 'maskjet_source_connected{source="door"} ' in text


@run
async def test_a_camera_by_its_number_is_waited_for(model, camera, monkeypatch):
    opened = []

    def open_late(stream, *how):
        opened.append(stream)
        if len(opened) < 3:
            raise SourceError(f"source must be there, {stream!r} is not.")
        return real(camera, *how)

    real = sources.open_stream
    monkeypatch.setattr(sources, "open_stream", open_late)
    with serving({"demo": model}, source=("door=0",)) as address:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30) as client:
            facts = await wait_for(client, "door", "waiting")
            assert facts["error"] == "source must be there, '/dev/video0' is not."
            assert 'maskjet_source_connected{source="door"} 0.0' in (await client.get("/metrics")).text
            facts = await wait_for(client, "door", "running")
    assert opened == ["/dev/video0"] * 3
    assert facts["error"] is None


@run
async def test_a_clients_source_is_tracked_if_it_asks(model, camera):
    with serving({"demo": model}, token=TOKEN, allow_sources=True) as address:
        async with httpx.AsyncClient(base_url=f"http://{address}", headers=BEARER, timeout=30) as client:
            identity = (await client.post("/v1/sources", json={"url": camera, "track": True})).json()["id"]
            (event, *_) = await events_of(client, identity, last=0)
    found = event["result"]["detections"]
    assert found
    assert all("track_id" in each for each in found)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "/dev/video0",
        "rtsp+file://host/etc/passwd",
        "http:///nohost",
        "http://host:99999/",
        "http://host/ a",
        "http://host/\n",
        "http://[::1/",
    ],
)
def test_clients_name_network_urls_alone(url):
    with pytest.raises(source_names.problems.ProblemError, match=r"^url must be a URL of rtsp, rtsps, http, https"):
        source_names.check_url(url)


def test_urls_of_cameras_are_allowed_and_names_have_no_passwords():
    assert source_names.check_url("RTSP://User:Pass@Camera:554/A?b=c") == "rtsp://User:Pass@Camera:554/A?b=c"
    for what, name in (
        ("rtsp://user:pa@ss@camera:554/live?key=1#x", "rtsp://camera:554/live"),
        ("/home/me/videos/a.mp4", "a.mp4"),
        ("0", "0"),
    ):
        assert source_names.shown_name(what) == name
        assert source_names.redact(f"source {what!r} broke", what) == f"source {name!r} broke"
    for text, split in (
        ("door=rtsp://camera/?a=b", ("door", "rtsp://camera/?a=b")),
        ("rtsp://camera/?a=b", (None, "rtsp://camera/?a=b")),
        ("a.mp4", (None, "a.mp4")),
    ):
        assert source_names.split_name(text) == split


@run
async def test_a_source_that_does_not_exist_is_told(model):
    async with served({"demo": model}, source=("/nowhere/at all.mp4",)) as client:  # it is gone since the start
        facts = await wait_for(client, "at-all-mp4", "failed")
    assert facts["error"] == "source must exist, 'at all.mp4' does not."


@pytest.mark.parametrize("source", ["typo.mp4", "door=/nowhere/a.mp4", "file:///nowhere/a.mp4", "/nowhere/*.jpg"])
def test_a_file_to_watch_that_does_not_exist_ends_the_start(source):
    with pytest.raises(SourceError, match=r"^source must (exist|be a glob that matches files), "):
        server.listen(Settings(port=0, source=("rtsp://192.0.2.1/", "0", "/dev/video9", source)))

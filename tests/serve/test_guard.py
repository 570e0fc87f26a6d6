"""Limits and the token, before any work."""

import asyncio
import gc
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from maskjet.errors import InputError
from maskjet.serve import Settings, bodies, service, v1
from maskjet.serve.problems import GoneError, ProblemError
from maskjet.serve.service import Memory
from tests.serve.client import BEARER, TOKEN, asking, encoded, problem_of, run, served
from tests.sources.test_hostile_images import png_of


@pytest.fixture
def never_read(monkeypatch):
    """A body that no route may read; what is sent after a refusal is dropped."""

    async def body():
        yield b"x"

    monkeypatch.setattr("maskjet.serve.guard._GuardedRequest.receive", lambda _: pytest.fail("The body was read."))
    return body


@asking(token=TOKEN)
async def test_a_token_is_asked_for_before_the_body_is_read(client, never_read):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Cookie": "a=b"}):
        sent = {"Content-Length": "5", **headers}
        answer = await client.post("/v1/predict", content=never_read(), headers=sent)
        assert problem_of(answer)[0] == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert TOKEN not in answer.text
    for path in ("/metrics", "/v1/models", "/v1/status", "/nowhere"):
        assert problem_of(await client.get(path))[0] == 401
    for path in ("/health/live", "/openapi.json"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/models", headers=BEARER)).status_code == 200


@asking(token=TOKEN)
async def test_another_sites_page_reads_nothing(client):
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST", **BEARER}
    answer = await client.options("/v1/predict", headers=asked)  # nothing lets another site's page read
    assert not any(name.startswith("access-control") for name in answer.headers)


@asking()
async def test_without_a_token_another_sites_page_is_refused(client):
    foreign = [{"Host": host} for host in ("evil.example", "127.0.0.1.evil.example", "")]
    foreign += [{"Origin": origin} for origin in ("http://evil.example", "null", "")]
    for headers in foreign:
        assert problem_of(await client.get("/v1/models", headers=headers))[0] == 403
    for headers in ({"Host": "["}, {"Host": "[x]"}, {"Origin": "http://["}):
        assert problem_of(await client.get("/v1/models", headers=headers))[0] == 400
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        own = {"Host": host, "Origin": f"http://{host}"}
        assert (await client.get("/v1/models", headers=own)).status_code == 200


@run
async def test_without_a_token_only_connections_to_this_machine_are_answered(model):
    for settings, status in (({}, 403), ({"insecure": True}, 200), ({"host": "10.0.0.5"}, 200)):
        async with served({"demo": model}, **settings) as client:
            answer = await client.get("http://10.0.0.5/v1/models", headers={"Host": "127.0.0.1"})
            assert answer.status_code == status
            if status == 403:
                assert "Without a token only this machine is answered: set MASKJET_TOKEN" in problem_of(answer)[1]
            assert (await client.get("http://10.0.0.5/health/live")).text == "live"
    async with served({"demo": model}, token=TOKEN) as client:
        assert (await client.get("http://10.0.0.5/v1/models", headers=BEARER)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_listening_beyond_this_machine_needs_a_token(host):
    with pytest.raises(InputError, match=f"token must be given to listen on '{host}'"):
        Settings(host=host).check_exposure()
    Settings(host=host, token="a").check_exposure()
    Settings(host=host, insecure=True).check_exposure()
    for own in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        Settings(host=own).check_exposure()


def test_sources_of_clients_need_a_token():
    message = r"^token must be given with allow_sources, as whoever may add a source reaches .*: set MASKJET_TOKEN\.$"
    with pytest.raises(InputError, match=message):
        Settings(allow_sources=True, insecure=True).check_exposure()
    Settings(allow_sources=True, token="a").check_exposure()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("body_bytes", 1.5, "body_bytes must be a whole number of at least 1, got 1.5."),
        ("deadline_s", 0, "deadline_s must be a number of seconds above 0, got 0."),
        ("port", 70000, "port must be 0..65535, got 70000."),
        ("detect", "0", "detect must be a whole number from 1 to 64"),
        ("token", "", "token must be printable ASCII characters, at least one; the given one is not shown here."),
    ],
)
def test_settings_are_checked(field, value, message):
    with pytest.raises(InputError, match=f"^{message}"):
        Settings(**{field: value})
    assert "secret" not in repr(Settings(token="secret"))


@asking(body_bytes=10_000)
async def test_a_body_is_limited_before_it_is_read(client, never_read):
    answer = await client.post("/v1/predict", content=never_read(), headers={"Content-Length": "10001"})
    assert problem_of(answer) == (413, "The body has 10001 bytes, the limit is 10,000.")


@asking()
async def test_an_image_of_many_pixels_takes_no_memory(client, monkeypatch):
    monkeypatch.setattr("maskjet.serve.bodies.decode_image", lambda *_: pytest.fail("It was decoded."))
    data = png_of(50_000, 50_000)
    tracemalloc.start()
    answer = await client.post("/v1/predict", content=data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem_of(answer) == (413, "the body has 50000×50000 pixels, the limit is 67,108,864.")
    assert peak < 2**20
    form = await client.post("/v1/predict", files={"big": ("big.png", data)})
    assert problem_of(form) == (413, "part 'big.png' has 50000×50000 pixels, the limit is 67,108,864.")


@asking(parts=3)
async def test_the_number_of_parts_is_limited(client, street):
    files = [("image", (f"{number}.png", encoded(street))) for number in range(4)]
    assert problem_of(await client.post("/v1/predict", files=files)) == (413, "The body has more than 3 parts.")
    assert (await client.post("/v1/predict", files=files[:3])).status_code == 200


@run
async def test_the_memory_of_images_is_limited(model, street):
    data = encoded(street)
    async with served({"demo": model}, memory_bytes=len(data) + street.nbytes) as client:
        assert (await client.post("/v1/predict", content=data)).status_code == 200
        with client.service.memory.reserve() as reservation:
            reservation.take(street.nbytes)
            answer = await client.post("/v1/predict", content=data)
        assert problem_of(answer)[0] == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert client.service.memory.taken == 0
    async with served({"demo": model}, memory_bytes=len(data) + street.nbytes - 1) as client:
        assert problem_of(await client.post("/v1/predict", content=data))[0] == 413  # it would never fit
        assert client.service.memory.taken == 0
    form = {"files": {"a": data}}
    twice = 2 * len(httpx.Request("POST", "http://localhost", **form).read())  # its parts are copies
    for memory_bytes, status in ((twice + street.nbytes, 200), (twice + street.nbytes - 1, 413)):
        async with served({"demo": model}, memory_bytes=memory_bytes) as client:
            assert (await client.post("/v1/predict", **form)).status_code == status


@pytest.mark.parametrize(("most", "name"), [(1000, "maskjet-large"), (10**6, "maskjet-work")])
@run
async def test_large_images_are_decoded_and_encoded_in_threads_of_their_own(model, street, most, name, monkeypatch):
    def note(work, *args):
        names.append(threading.current_thread().name.rpartition("_")[0])
        return work(*args)

    names, data = [], encoded(street)
    for module in (bodies, service):
        monkeypatch.setattr(module, "LARGE", most)
    for module, function in ((bodies, "decode_image"), (v1, "_to_json"), (v1, "_to_results"), (v1, "_to_picture")):
        monkeypatch.setattr(module, function, partial(note, getattr(module, function)))
    async with served({"demo": model}) as client:
        await client.post("/v1/predict?masks=polygons", content=data)
        await client.post("/v1/predict", content=data, headers={"Accept": "image/png"})
        await client.post("/v1/predict", files={"a": data})
        assert client.service.memory.taken == 0
    assert names == [name] * 6


@asking()
async def test_what_was_refused_is_freed_at_once(client, street):
    junk = b"junk" * 100
    gc.collect()
    gc.disable()
    try:
        for sent in ({"content": junk}, {"files": {"a": junk, "b": encoded(street), "c": junk}}):
            assert problem_of(await client.post("/v1/predict", **sent))[0] == 422
            for _ in range(20):  # threads end soon after the answer
                left = [each.name for each in gc.get_objects() if type(each) is bodies.EncodedImage]
                if not left:
                    break
                await asyncio.sleep(0.05)
            assert left == []
    finally:
        gc.enable()


@asking(connections=2)
async def test_requests_at_a_time_are_limited(client, street):
    answers = await asyncio.gather(*(client.post("/v1/predict", content=encoded(street)) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
    assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff\x01\x00\x00" * 2**21,
        b"\xff\xd8" + b"\xff\xd0" * 2**22,
        b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0tEXt\0\0\0\0" * 2**19,
        b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0" + b"\xff" * 8 + b"\0" * 2**23,
    ],
    ids=["segments", "restarts", "chunks", "entries"],
)
@asking()
async def test_a_file_of_nothing_but_headers_is_refused_soon(client, data):
    start = time.perf_counter()
    assert problem_of(await client.post("/v1/predict", content=data))[0] == 422
    assert time.perf_counter() - start < 2


def test_a_memory_reservation_ends_with_its_request():
    memory = Memory(100)
    with memory.reserve(held=30) as reservation:
        reservation.take(60)
        reservation.take(10)
        reservation.release(10)
        reservation.take(10)
        assert memory.taken == 70
        with pytest.raises(ProblemError) as never:
            reservation.take(1)
        assert never.value.status == 413  # 30 + 70 + 1
        with memory.reserve() as other, pytest.raises(ProblemError) as later:
            other.take(31)
        assert later.value.status == 429
    assert memory.taken == 0
    with pytest.raises(GoneError):  # a thread that was still at work
        reservation.take(1)
    reservation.release(1)
    assert memory.taken == 0


def test_work_on_large_images_waits_for_memory_and_the_largest_is_done_alone():
    memory, order = Memory(100 * 12), []

    def work(pixels):
        with memory.working(pixels):
            order.append(pixels)

    with ThreadPoolExecutor(1) as pool, memory.working(60):
        with memory.working(40):
            waiting = pool.submit(work, 1000)
            time.sleep(0.05)
            order.append(40)
        time.sleep(0.05)
        order.append(60)
    assert (waiting.result(), order) == (None, [40, 60, 1000])

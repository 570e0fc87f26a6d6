"""The service's benchmark: its clients, its arithmetic, and its bad clients."""

import asyncio
import contextlib
import json
import os
import random
import threading
from collections import Counter

import pytest

from benchmarks import serve
from benchmarks.serve_load import Load, Outcome, Plan, parse_head, request_bytes
from benchmarks.serve_report import agree, sum_up
from benchmarks.serve_soak import BAD
from benchmarks.trend import trend

SIZE_HW = (4, 4)
FOUND = {"class_id": 0, "class_name": "car", "confidence": 0.75, "xyxy": [0.0, 0.0, 2.0, 2.0]}


def answer(*detections):
    return {"size": [4, 4], "has_masks": False, "detections": list(detections)}


def seen(*bodies, image=0):
    outcome = Outcome()
    for body in bodies:
        outcome.add_answer(image, json.dumps(body).encode())
        outcome.statuses["200"] += 1
    return outcome


def test_answers_are_compared_with_what_predict_finds():
    off = {**FOUND, "confidence": 0.76}
    far = {**FOUND, "confidence": 0.9}
    elsewhere = {**FOUND, "xyxy": [2.0, 2.0, 4.0, 4.0]}
    outcome = seen(*(answer(each) for each in (FOUND, FOUND, off, far, elsewhere)))
    found = agree(outcome, [answer(FOUND)])
    assert (found.answers, found.equal, found.close, found.different) == (5, 2, 1, 2)
    assert found.matched == 4 / 6
    assert agree(Outcome(), [answer(FOUND)]).matched == 1


def test_runs_are_summed_up_by_their_medians():
    fast, slow, middle = Outcome(), Outcome(), Outcome()
    fast.latencies_ms, fast.per_second = [1.0, 1.0, 1.0], 6.0
    slow.latencies_ms, slow.per_second = [9.0], 2.0
    middle.latencies_ms, middle.per_second = [2.0, 2.0, 8.0], 4.0
    slow.statuses.update({"200": 1, "503": 2})
    cost = sum_up([fast, slow, middle], server="it", size_hw=SIZE_HW, clients=8, rate=None, expected=None, load=0.0)
    assert (cost.per_second, cost.p50_ms, cost.p95_ms, cost.p99_ms) == (4, 2, 8, 8)
    assert (cost.requests, cost.errors, cost.late_ms, cost.spread) == (7, 2, None, 4)
    nothing = sum_up([Outcome()], server="it", size_hw=SIZE_HW, clients=1, rate=2.0, expected=[], load=0.0)
    assert (nothing.per_second, nothing.p99_ms, nothing.spread) == (0, 0, 0)


def test_outcomes_travel_between_processes_and_are_merged():
    first, second = seen(answer(FOUND)), seen(answer(FOUND), answer())
    first.latencies_ms, first.statuses = [1.0], Counter({"200": 1, "ConnectionResetError": 1})
    back = Outcome.from_dict(json.loads(json.dumps(first.as_dict())))
    assert back == first
    back.merge(second)
    assert back.errors == 1
    assert sorted(back.answers[0].values()) == [1, 2]


def test_the_trend_is_that_of_the_second_half():
    times = [float(second) for second in range(120)]
    flat = trend(times, [0.0] * 60 + [5.0] * 60)
    assert (flat.start, flat.end, flat.most, flat.per_minute) == (5, 5, 5, 0)
    rising = trend(times, [100.0] * 60 + [float(second) for second in range(60)])
    assert rising.per_minute == pytest.approx(60)
    assert (rising.start, rising.end, rising.most) == (2.5, 56.5, 100)


@pytest.fixture
def server():
    """A server that answers with the length of a body, or 503 to every third request; its port and the lengths."""
    loop, lengths = asyncio.new_event_loop(), []

    async def talk(reader, writer):
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[2]
                _, headers = parse_head(b"HTTP/1.1 200 OK\r\n" + lines)
                body = await reader.readexactly(int(headers[b"content-length"]))
                lengths.append(len(body))
                status = b"503 No" if len(lengths) % 3 == 0 else b"200 OK"
                text = str(len(body)).encode()
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listener = loop.run_until_complete(asyncio.start_server(talk, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield listener.sockets[0].getsockname()[1], lengths

    async def end():
        listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def files(tmp_path):
    names = []
    for length in (10, 2000, 30):
        (tmp_path / str(length)).write_bytes(b"x" * length)
        names.append(str(tmp_path / str(length)))
    return names


def test_a_number_of_requests_rotates_the_images(server, files):
    port, lengths = server
    outcome = asyncio.run(Load(Plan(port, "/", files, count=6)).run())
    assert lengths == [10, 2000, 30] * 2
    assert outcome.statuses == {"200": 4, "503": 2}
    assert (outcome.errors, len(outcome.latencies_ms)) == (2, 4)
    assert outcome.per_second > 4
    assert outcome.answers == {0: {b"10": 2}, 1: {b"2000": 2}}


def test_an_open_loop_keeps_its_rate(server, files):
    port, lengths = server
    outcome = asyncio.run(Load(Plan(port, "/", files, clients=4, rate=50.0, seconds=0.4, warm_up_s=0.2)).run())
    assert 25 <= len(lengths) <= 30
    assert len(outcome.late_ms) == len(lengths)
    assert 0 < len(outcome.latencies_ms) < outcome.statuses["200"]  # those of the first 0.2 s are left out


def test_a_server_that_is_gone_is_an_error(files):
    outcome = asyncio.run(Load(Plan(1, "/", files, count=2)).run())
    assert outcome.errors == 2
    assert not outcome.latencies_ms


@pytest.mark.parametrize("answers_new_ones", [True, False])
def test_a_kept_connection_may_end_between_requests(files, answers_new_ones):
    async def talk():
        opened = []

        async def answer(reader, writer):
            opened.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            if answers_new_ones or len(opened) == 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
            found = await Load(Plan(listener.sockets[0].getsockname()[1], "/", files, count=4)).run()
            await asyncio.sleep(0.1)  # for the connections to be closed
        return found.statuses, len(opened)

    statuses, opened = asyncio.run(talk())
    assert statuses == ({"200": 4} if answers_new_ones else {"200": 1, "EOFError": 3})
    assert opened >= 4


def test_forms_carry_the_image():
    request = request_bytes(Plan(1, "/predict", [], is_form=True), b"\xff\xd8image")
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"\r\n\r\n\xff\xd8image\r\n--" in body


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_made_of_any_image(name):
    request, waits = BAD[name](random.Random(0), [b"x" * 500])
    assert request
    assert isinstance(waits, bool)


def test_a_slow_server_is_measured_for_longer():
    async def talk():
        async def answer(reader, writer):
            with contextlib.suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    await asyncio.sleep(0.2)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            load = Load(Plan(port, "/", [os.devnull], clients=4, seconds=0.05, warm_up_s=0.05))
            found = await load.run()
            await asyncio.sleep(0.1)  # for the connections to be closed
            return found

    outcome = asyncio.run(talk())
    assert len(outcome.latencies_ms) >= 8
    assert min(outcome.latencies_ms) > 190
    assert 10 < outcome.per_second < 21


def test_an_interrupted_run_keeps_the_sizes_before(monkeypatch, tmp_path):
    ceiling = dict.fromkeys(("stream_fps", "files_fps", "decode_ms", "predict_ms", "encode_ms"), 1.0)
    ceiling |= {"stream_how": "1 source", "files_how": "1 source", "expected": [answer(FOUND)], "report": {}}
    cost = sum_up([Outcome()], server="it", size_hw=SIZE_HW, clients=1, rate=None, expected=None, load=0.0)

    def measure(_bench, size_hw, *_):
        if size_hw != SIZE_HW:
            raise KeyboardInterrupt
        return [cost]

    monkeypatch.setattr(serve, "draw_images", lambda *_: [])
    monkeypatch.setattr(serve, "run_ceiling", lambda *_: ceiling)
    monkeypatch.setattr(serve, "_start", lambda *_: ([], []))
    monkeypatch.setattr(serve._Bench, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        serve.run(tmp_path / "found.json", sizes_hw=[SIZE_HW, (8, 8)])
    (kept,) = json.loads((tmp_path / "found.json").read_text())["measurements"]
    assert (kept["server"], kept["size_hw"]) == ("it", [*SIZE_HW])

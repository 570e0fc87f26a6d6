"""The service's benchmark: its clients, its arithmetic, and its bad clients."""

import asyncio
import contextlib
import json
from collections import Counter

import pytest

from benchmarks import serve_soak
from benchmarks.serve_load import Load, Outcome, Plan, parse_head
from benchmarks.serve_processes import started
from benchmarks.serve_report import agree, sum_up
from benchmarks.serve_sharing import unevenness
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
def files(tmp_path):
    names = []
    for length in (10, 2000, 30):
        (tmp_path / str(length)).write_bytes(b"x" * length)
        names.append(str(tmp_path / str(length)))
    return names


@pytest.mark.slow
def test_the_floor_says_that_it_is_ready():
    with started("floor", ["benchmarks.serve_servers", "floor"], path="/", ready="/") as server:
        assert server.name == "floor"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_bad_clients_hold_neither_the_loop_nor_the_good_ones(monkeypatch):
    monkeypatch.setattr(serve_soak, "_SIZES_HW", ((64, 96), (96, 128)))
    for _ in range(3):  # a client that holds the loop does so in each, other tests beside it do not
        found = serve_soak.soak(8, clients=2)
        if found.longest_block_s < serve_soak.MOST_BLOCK_S:
            break
    assert found.longest_block_s < serve_soak.MOST_BLOCK_S
    assert (found.unanswered, found.failures) == (0, 0)
    assert found.statuses.keys() == {"200"}
    assert all(sum(counts.values()) for counts in found.bad.values())
    assert all(each.matched == 1 for each in found.agreement.values())


def load(answer, **plan):
    """The outcome of a load on a server that runs beside it."""

    async def talk():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
            found = await Load(Plan(listener.sockets[0].getsockname()[1], "/", **plan)).run()
            await asyncio.sleep(0.02)  # for the connections to be closed
        return found

    return asyncio.run(talk())


def count_bytes(lengths):
    """A server that answers with the length of a body, or 503 to every third request, and keeps the lengths."""

    async def answer(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[2]
                _, headers = parse_head(b"HTTP/1.1 200 OK\r\n" + lines)
                lengths.append(len(await reader.readexactly(int(headers[b"content-length"]))))
                status = b"503 No" if len(lengths) % 3 == 0 else b"200 OK"
                text = str(lengths[-1]).encode()
                writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(text), text))
        writer.close()

    return answer


def test_connections_are_counted_by_the_process_that_they_reach(files):
    numbers = iter(range(100))

    async def answer(reader, writer):
        number = next(numbers)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                text = b'{"process": %d}' % (number % 3 // 2) if head.startswith(b"GET /v1/status ") else b"1"
                if b"ontent-length: 10" in head.lower():
                    await reader.readexactly(10)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        writer.close()

    outcome = load(answer, files=files[:1], count=8, clients=4, is_asking=True)
    assert outcome.processes == {"0": 3, "1": 1}
    assert unevenness(outcome, 2) == 1.5


def test_a_number_of_requests_rotates_the_images(files):
    outcome = load(count_bytes(lengths := []), files=files, count=6)
    assert lengths == [10, 2000, 30] * 2
    assert outcome.statuses == {"200": 4, "503": 2}
    assert (outcome.errors, len(outcome.latencies_ms)) == (2, 4)
    assert outcome.answers == {0: {b"10": 2}, 1: {b"2000": 2}}
    outcome = asyncio.run(Load(Plan(1, "/", files, count=2)).run())  # no server
    assert (outcome.errors, outcome.latencies_ms) == (2, [])


def test_an_open_loop_keeps_its_rate(files):
    outcome = load(count_bytes(lengths := []), files=files, clients=4, rate=50.0, seconds=0.4, warm_up_s=0.2)
    assert 0 < len(lengths) <= 30
    assert len(outcome.late_ms) == len(lengths)
    assert 0 < len(outcome.latencies_ms) < outcome.statuses["200"]  # those of the first 0.2 s are left out

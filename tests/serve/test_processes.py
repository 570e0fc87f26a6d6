"""A service of one or several processes: connections, measurements, sources, signals, and processes that end."""

import collections
import concurrent.futures
import contextlib
import http.client
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect as websocket

from tests.cli.command_line import call
from tests.serve.client import BEARER, TOKEN, encoded
from tests.waiting import until

SMALL = "from maskjet.serve import dispatcher\ndispatcher._SIZE_HW = (64, 64)\n"
"""First frames that take no time; Python runs it at the start of each process, as it finds it in PYTHONPATH."""
BREAKS = """
from maskjet.errors import DeviceError
from maskjet.serve import processes, other_workers

processes._HUNG_S = 3.0
answer, make = dispatcher.Dispatcher._answer, other_workers.OtherWorkers.__init__

def answer_or_break(self, tickets):
    if tickets[0].image.shape != (3, 5, 3):
        answer(self, tickets)
        return
    error = DeviceError("The device failed.", index=0)
    self._observer.failed(error)
    dispatcher.resolve(tickets, [error])

def make_or_fail(self, table, number, *more):
    if number == 1 and table.were_all_ready:
        def fail(*_):
            raise RuntimeError("CUDA error: out of luck")
        dispatcher.Dispatcher._capture = fail
    make(self, table, number, *more)

dispatcher.Dispatcher._answer = answer_or_break
other_workers.OtherWorkers.__init__ = make_or_fail
"""
"""The device fails on an image of 5 by 3 pixels, and on the first frames of the second process when it is started
again; a process that hangs is seen soon."""
CONTEXTS = """
import atexit, os, sys
from pathlib import Path

def write():
    torch = sys.modules.get("torch")
    gpus = range(torch.cuda.device_count() if torch else 0)
    held = [gpu for gpu in gpus if torch._C._cuda_hasPrimaryContext(gpu)]
    Path(__file__).with_name(f"contexts_{os.getpid()}").write_text(" ".join(map(str, held)))

atexit.register(write)
"""
"""Each process writes at its end on which of the GPUs that it sees it has made a CUDA context."""


class Service:
    """A service that was started; its log is a file, which all of its processes write."""

    def __init__(self, folder, *options, devices="cpu,cpu", patch="", **environment):
        command = [sys.executable, "-m", "maskjet", "serve", "--port", "0", *options]
        command += ["--device", "cpu"] if devices is None else ["--devices", devices] if devices else []
        self.folder = folder
        (folder / "sitecustomize.py").write_text(SMALL + patch)
        own = {
            **os.environ,
            "MASKJET_TOKEN": TOKEN,
            "OMP_NUM_THREADS": str(torch.get_num_threads()),  # which decides on rounding
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
            **environment,
        }
        self._log = folder / "log"
        with self._log.open("w") as file:
            self.process = subprocess.Popen(command, stderr=file, env=own)

    @property
    def log(self):
        return self._log.read_text()

    def wait_until_ready(self, within_s=120):
        until(lambda: "maskjet: serving" in self.log or self.process.poll() is not None, within_s)
        (line,) = [line for line in self.log.splitlines() if line.startswith("maskjet: serving")] or [self.log]
        self.url = line.split()[-1]
        self.address = urlsplit(self.url).netloc
        return self

    def connect(self):
        return contextlib.closing(Connection(self.address, timeout=60))

    def statuses(self):
        """The status of each process, of several."""
        with self.connect() as connection:
            return connection.json("/v1/status").get("processes", [])

    def pids(self):
        return [status["pid"] for status in self.statuses()]


class Connection(http.client.HTTPConnection):
    """A connection that stays open, and so with one process."""

    def ask(self, path, method="GET", body=None):
        self.request(method, path, body, BEARER)
        answer = self.getresponse()
        return answer.status, answer.read()

    def json(self, path, **options):
        status, body = self.ask(path, **options)
        assert status in (200, 201), body
        return json.loads(body)

    def number(self):
        """The process that answers."""
        return self.json("/v1/status")["process"]


@contextlib.contextmanager
def started(folder, *options, **choices):
    service = Service(folder, *options, **choices)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def service(tmp_path_factory, write_video):
    folder, video = tmp_path_factory.mktemp("service"), write_video("street.mp4", frames=240, rate=2)
    options = ("--source", f"door={video}", "--allow-sources", "--connections", "16", "--queue", "100")
    with started(folder, *options, MASKJET_DEVICE="cuda:7") as service:
        yield service.wait_until_ready()
        pids = service.pids()
        os.kill(service.process.pid, signal.SIGKILL)
        until(lambda: not any(map(is_running, pids)))


@contextlib.contextmanager
def both(service):
    """A connection to each process, in order."""
    with service.connect() as one, service.connect() as other:
        pair = sorted((one, other), key=Connection.number)
        assert [connection.number() for connection in pair] == [0, 1]
        yield pair


def check_shared(service, count=8):
    """New connections that stay are shared evenly, as each one that has gone was counted once."""
    settle(service, 0)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(service.connect()) for _ in range(count)]
        assert collections.Counter(connection.number() for connection in connections) == {0: count / 2, 1: count / 2}


@pytest.mark.slow
def test_each_process_answers_as_predict_does(service, model, street):
    expected = json.loads(model.predict(street).to_json())
    with both(service) as pair:
        for connection in pair:
            answer = connection.json("/v1/predict?threshold=0.3", method="POST", body=encoded(street))
            assert answer == expected
            assert connection.ask("/health/ready") == (200, b"ready")
            connection.request("GET", "/v1/sources")  # the token is asked for before a request is passed on
            answer = connection.getresponse()
            assert (answer.status, answer.read()[:1]) == (401, b"{")


@pytest.mark.slow
def test_connections_that_stay_are_shared_evenly(service):
    check_shared(service)
    settle(service, 0)
    with contextlib.ExitStack() as stack:  # also once some have gone
        connections = [stack.enter_context(service.connect()) for _ in range(8)]
        for connection in [each for each in connections if each.number() == 0]:
            connection.close()
        settle(service, 4)
        connections = [stack.enter_context(service.connect()) for _ in range(4)]
        assert collections.Counter(connection.number() for connection in connections) == {0: 4}


def settle(service, count):
    """Wait until this many connections of clients are open, and the service knows it."""
    until(lambda: open_connections(service) == count)
    time.sleep(0.3)


def open_connections(service):
    port = urlsplit(service.url).port
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[1].split(":")[1], 16) == port and line[3] == "01" for line in lines)


@pytest.mark.slow
def test_status_and_measurements_are_those_of_all_processes(service, street):
    with both(service) as pair:
        for number, connection in enumerate(pair):
            status = connection.json("/v1/status")
            assert (status["process"], status["device"]) == (number, "cpu")
            assert [each["process"] for each in status["processes"]] == [0, 1]
            assert all(each["ready"] and each["models"]["demo"]["device"] for each in status["processes"])
            pids = {each["pid"] for each in status["processes"]}
            assert len(pids | {service.process.pid}) == 3
            assert not any(TOKEN.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
        before = counts(pair[0].ask("/metrics")[1], "maskjet_requests_total", route="/v1/predict")
        for connection in (pair[0], pair[1], pair[1]):
            connection.json("/v1/predict", method="POST", body=encoded(street))
        for connection in pair:
            text = connection.ask("/metrics")[1]
            after = counts(text, "maskjet_requests_total", route="/v1/predict")
            assert (after["0"] - before["0"], after["1"] - before["1"]) == (1, 2)
            assert counts(text, "maskjet_ready") == {"0": 1, "1": 1}
            samples = [each for family in text_string_to_metric_families(text.decode()) for each in family.samples]
            assert {each.labels.get("process") for each in samples} == {"0", "1"}


def counts(text, name, **labels):
    """The sum of a sample's values by process."""
    found = collections.Counter({"0": 0, "1": 0})
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                found[sample.labels["process"]] += sample.value
    return dict(found)


@pytest.mark.slow
def test_sources_are_the_same_and_followed_through_either_process(service):
    with both(service) as pair:
        for connection in pair:
            until(lambda each=connection: each.json("/v1/sources")["sources"][0]["state"] == "running")
            (door,) = connection.json("/v1/sources")["sources"]
            assert door["name"] == "door"
            assert connection.ask("/v1/sources/window/events")[0] == 404
            wrong = connection.ask("/v1/sources", "POST", b'{"url": "file:///etc/passwd"}')
            assert wrong[0] == 400, wrong
            assert json.loads(wrong[1])["type"] == "urn:maskjet:problem:bad-request"
        for connection in pair:
            added = connection.json("/v1/sources", method="POST", body=b'{"url": "http://192.0.2.1:9/", "name": "far"}')
            for other in pair:
                assert [each["id"] for each in other.json("/v1/sources")["sources"]] == ["door", "far"]
            assert connection.ask(f"/v1/sources/{added['id']}", "DELETE") == (204, b"")
            assert connection.ask(f"/v1/sources/{added['id']}", "DELETE")[0] == 404
    for path, start in (("events", b"data: {"), ("preview.mjpeg", b"\xff\xd8")):
        with both(service) as pair:
            for connection in pair:
                connection.request("GET", f"/v1/sources/door/{path}", headers=BEARER)
                answer = connection.getresponse()
                assert answer.status == 200
                received = b""
                while start not in received:
                    received += answer.read1(4096)


def check_refused(connection, why):
    """A connection is answered with 503 before anything was asked."""
    connection.connect()
    answer = http.client.HTTPResponse(connection.sock)
    answer.begin()
    assert answer.status == 503
    assert why in answer.read()


@pytest.mark.slow
def test_connections_are_limited_for_all_processes_together(service):
    settle(service, 0)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(service.connect()) for _ in range(16 + 16)]
        for connection in held:
            connection.connect()
        assert held[-1].ask("/health/live") == (200, b"live")
        check_refused(stack.enter_context(service.connect()), b"has 16 connections already")
    settle(service, 0)


@pytest.mark.slow
def test_descriptors_are_given_back(service):
    settle(service, 0)
    pids = [*service.pids(), service.process.pid]
    before = [descriptors(pid) for pid in pids]
    for number in range(100):
        if number % 20 == 0:
            with websocket(f"ws://{service.address}/v1/stream", additional_headers=BEARER):
                pass
        with service.connect() as connection:
            connection.connect()
            if number % 4:
                assert connection.ask("/health/live") == (200, b"live")
            if number % 50 == 1:
                assert connection.ask("/metrics")[0] == 200
    until(lambda: all(now <= then for now, then in zip(map(descriptors, pids), before, strict=True)))
    check_shared(service)


@contextlib.contextmanager
def free_descriptors(pid, count):
    """Let a process open this many descriptors more."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    limit = next(limit for limit in range(2**16) if limit - len({each for each in taken if each < limit}) > count) - 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_lack_of_descriptors_passes(service):
    pids = service.pids()
    settle(service, 0)
    with contextlib.ExitStack() as connected:
        waiting = [connected.enter_context(service.connect()) for _ in range(4)]
        with contextlib.ExitStack() as limited:
            for pid in pids:
                limited.enter_context(free_descriptors(pid, 0))
            for connection in waiting:
                connection.request("GET", "/health/live")
            time.sleep(0.3)
        assert [connection.getresponse().status for connection in waiting] == [200] * 4
    check_shared(service)


@contextlib.contextmanager
def requests_to_both(service, data):
    """Send six requests; after the block they have been answered, though half of them wait for a stopped process."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(service.connect()) for _ in range(6)]
        for connection in connections:
            connection.request("POST", "/v1/predict", data, BEARER)
        yield
        assert [connection.getresponse().status for connection in connections] == [200] * 6


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced(service, street):
    with both(service) as (first, second):
        before = counts(first.ask("/metrics")[1], "maskjet_process_restarts_total")
        kept, killed = service.pids()
        os.kill(killed, signal.SIGSTOP)
        with requests_to_both(service, encoded(street)):
            time.sleep(0.2)
            os.kill(killed, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            second.ask("/health/live")
        assert first.ask("/health/ready") == (200, b"ready")
        until(lambda: "process 1 on cpu is started again: it was ended by SIGKILL\n" in service.log)
        until(lambda: all(status["ready"] for status in first.json("/v1/status")["processes"]), 60)
        after = counts(first.ask("/metrics")[1], "maskjet_process_restarts_total")
        assert (after["0"], after["1"]) == (before["0"], before["1"] + 1)
        assert service.pids()[0] == kept
    with both(service) as (_, second):
        assert second.ask("/v1/predict", "POST", encoded(street))[0] == 200


@pytest.mark.slow
def test_processes_that_hang_or_fail_are_replaced_unless_they_fail_again(tmp_path, write_video, street):
    video = write_video("street.mp4", frames=240, rate=2)
    with started(tmp_path, "--source", f"door={video}", patch=BREAKS) as service:
        service.wait_until_ready()
        hung, kept = service.pids()
        os.kill(hung, signal.SIGSTOP)
        with requests_to_both(service, encoded(street)):
            pass
        with service.connect() as connection:
            assert connection.number() == 1
            assert connection.ask("/health/ready") == (200, b"ready")
            status, body = connection.ask("/v1/sources")
            detail = "The process that watches the sources is not ready; try again later."
            assert (status, json.loads(body)["detail"]) == (503, detail)
            statuses = connection.json("/v1/status")["processes"]
            assert statuses[0] == {"process": 0, "ready": False, "failure": "The process does not answer."}
            assert counts(connection.ask("/metrics")[1], "maskjet_ready") == {"0": 0, "1": 1}
        until(lambda: "process 0 on cpu has not answered for 3 s and is ended\n" in service.log)
        until(lambda: "process 0 on cpu is started again: it was ended by SIGKILL\n" in service.log)
        until(lambda: all(status["ready"] for status in service.statuses()), 60)
        pids = service.pids()
        assert pids[1] == kept
        with both(service) as pair, concurrent.futures.ThreadPoolExecutor(2) as pool:
            until(lambda: pair[1].json("/v1/sources")["sources"][0]["frames"] > 0)
            status, body = pair[1].ask("/v1/predict", "POST", encoded(np.zeros((3, 5, 3), np.uint8)))
            assert (status, json.loads(body)["detail"]) == (503, "The device failed.")
            assert pair[0].ask("/health/live") == (200, b"live")
            clients = [pool.submit(ask_until_refused, service, encoded(street)) for _ in range(2)]
            assert service.process.wait(120) == 2
            outcomes = collections.Counter(status for client in clients for status in client.result())
        assert outcomes[200] > 0
        assert set(outcomes) <= {200, 503}, outcomes
        assert "process 1 on cpu is started again: it failed: The device failed.\n" in service.log
        *_, last = service.log.splitlines()
        assert last == (
            "maskjet: The service has ended: process 1 on cpu was not ready yet when it failed: CUDA error: out of luck"
        )
        assert not any(map(is_running, pids))


def ask_until_refused(service, data):
    """The statuses of requests over new connections, until nobody takes them."""
    statuses = []
    while True:
        with service.connect() as connection:
            try:
                connection.connect()
            except OSError:
                return statuses
            try:
                statuses.append(connection.ask("/v1/predict", "POST", data)[0])
                time.sleep(0.2)  # for processes that start
            except ConnectionError:  # it was in the line of a port that was closed
                return statuses


@pytest.mark.slow
def test_a_signal_under_load_answers_everything_and_exits_with_0(tmp_path, street):
    data = encoded(street)

    def ask():
        """When the request had been sent, and its status; None if there was nobody to take it."""
        sent = math.inf
        with service.connect() as connection:
            try:
                connection.request("POST", "/v1/predict", data, BEARER)
                sent = time.monotonic()
                return sent, connection.getresponse().status
            except OSError:
                return sent, None

    with started(tmp_path, "--queue", "100") as service, concurrent.futures.ThreadPoolExecutor(12) as pool:
        service.wait_until_ready()
        pids = service.pids()
        clients = [pool.submit(ask) for _ in range(30)]
        time.sleep(0.3)
        signalled = time.monotonic()
        for pid in (*pids, service.process.pid):  # as Ctrl-C in a terminal
            os.kill(pid, signal.SIGINT)
        outcomes = [client.result() for client in clients]
        assert service.process.wait(30) == 0, service.log
        assert not any(map(is_running, pids))
        assert "Traceback" not in service.log
    before = [status for sent, status in outcomes if sent < signalled]
    assert before.count(200) == len(before) > 0, outcomes
    assert {status for _, status in outcomes} <= {200, 503, None}, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("devices", [None, "cpu,cpu"])
def test_a_second_signal_ends_all_processes_now(devices, tmp_path, model, street):
    with started(tmp_path, "--drain-s", "60", "--body-s", "60", devices=devices) as service:
        service.wait_until_ready()
        pids = service.pids() or [service.process.pid]
        with service.connect() as connection:
            if devices is None:
                answer = connection.json("/v1/predict?threshold=0.3", method="POST", body=encoded(street))
                assert answer == json.loads(model.predict(street).to_json())
            connection.putrequest("POST", "/v1/predict")
            connection.putheader("Authorization", BEARER["Authorization"])
            connection.putheader("Content-Length", "9")
            connection.endheaders(b"x")
            time.sleep(0.3)
            service.process.send_signal(signal.SIGINT)
            until(lambda: sum(map(is_running, pids)) == 1)  # another one has nothing to answer
            time.sleep(0.3)
            assert service.process.poll() is None
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(5) == 128 + signal.SIGTERM
        until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_a_model_that_can_not_be_loaded_is_one_sentence(capfd):
    options = ("--devices", "cpu", "--model", "rf-detr-seg-nano", "--weights", "nowhere.pt")
    code, _, err = call(capfd, "maskjet", "serve", "--port", "0", *options)
    assert (code, err) == (3, "maskjet: --weights must be a file, got 'nowhere.pt', which does not exist.\n")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGTERM])
def test_no_process_stays_behind_while_it_starts(number, tmp_path):
    with started(tmp_path) as service:
        children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
        pids = until(lambda: len(found := children.read_text().split()) == 2 and found)
        with contextlib.closing(Connection(until(lambda: listening(service.process.pid)))) as connection:
            connection.connect()  # clients wait
            service.process.send_signal(number)
        assert service.process.wait(10) == (0 if number == signal.SIGTERM else -number)
        until(lambda: not any(map(is_running, pids)))
        assert service.log == ""


def listening(pid):
    """The address that a process listens on."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(path.readlink()))
    for line in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:]):
        if line[3] == "0A" and f"socket:[{line[9]}]" in inodes:
            return f"127.0.0.1:{int(line[1].split(':')[1], 16)}"
    return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "cpu", "--device", "cpu"), r"--devices must be given without --device cpu, got .*"),
        (("--devices", "cpu", "--precision", "fp16"), r"--precision='fp16' needs a GPU; .*"),
    ],
)
def test_mistakes_are_one_line(options, message, capsys, monkeypatch):
    monkeypatch.delenv("MASKJET_TOKEN", raising=False)
    code, out, err = call(capsys, "maskjet", "serve", "--port", "0", *options)
    assert (code, out) == (2, "")
    assert re.fullmatch(f"maskjet: {message}\n", err), err


def visible(pid):
    """What a process was started with as CUDA_VISIBLE_DEVICES."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    (value,) = [each.partition(b"=")[2].decode() for each in variables if each.startswith(b"CUDA_VISIBLE_DEVICES=")]
    return value


def contexts_at_end(service, pids):
    """End a service; returns for each of its processes the GPUs, as it counts them, that it has used."""
    service.process.terminate()
    assert service.process.wait(60) == 0, service.log
    files = [Path(service.folder, f"contexts_{pid}") for pid in pids]
    until(lambda: all(file.exists() for file in files))
    return [[int(index) for index in file.read_text().split()] for file in files]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_gpus_serve_and_their_processes_leave_each_others_alone(tmp_path, street):
    options, count = ("--processes", "1"), torch.cuda.device_count()
    with started(tmp_path, *options, devices="all", patch=CONTEXTS) as service, contextlib.ExitStack() as stack:
        service.wait_until_ready(600)
        names = [f"cuda:{index}" for index in range(count)]
        assert f"serving demo on {', '.join(names)} at " in service.log
        connections = [stack.enter_context(service.connect()) for _ in range(count)]
        for connection in connections:
            found = connection.json("/v1/predict", method="POST", body=encoded(street))
            assert len(found["detections"]) > 0
            status = connection.json("/v1/status")
            assert status["models"]["demo"]["device"].startswith("cuda:0")
            assert ("processes" in status) == (count > 1)
            assert (b"process=" in connection.ask("/metrics")[1]) == (count > 1)
        if count > 1:
            assert sorted(map(Connection.number, connections)) == list(range(count))
            statuses = service.statuses()
            assert [each["device"] for each in statuses] == names
            pids = [each["pid"] for each in statuses]
            assert len(set(map(visible, pids))) == count
            assert not any("," in visible(pid) for pid in pids)
        else:
            pids = []
        stack.close()
        # Each sees its own GPU alone, and the process that listens uses none.
        assert contexts_at_end(service, [*pids, service.process.pid]) == [[0]] * len(pids) + [[]]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_processes_share_a_gpu_and_find_the_same(tmp_path, street):
    options = ("--processes", "2", "--device", "cuda")
    with started(tmp_path, *options, devices="", patch=CONTEXTS) as service:
        service.wait_until_ready(600)
        assert "serving demo on cuda:0, cuda:0 at" in service.log
        with both(service) as pair:
            one, other = (each.json("/v1/predict", method="POST", body=encoded(street)) for each in pair)
        assert one == other
        assert len(one["detections"]) > 0
        assert contexts_at_end(service, [*service.pids(), service.process.pid]) == [[0], [0], []]

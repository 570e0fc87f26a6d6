"""The service on a real local Ray Serve, with two replicas on the CPU."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
import torch
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import maskjet
from maskjet.errors import DeviceError, UnsupportedError
from maskjet.serve.arguments import parse
from tests import ray_cluster
from tests.ray_cluster import MARK
from tests.serve.client import BEARER, TOKEN, encoded, problem_of, run
from tests.waiting import until

ray = pytest.importorskip("ray", reason='needs Ray: pip install "maskjet[ray]"', exc_type=ImportError)
serve = pytest.importorskip("ray.serve", reason='needs Ray Serve: pip install "maskjet[ray]"', exc_type=ImportError)
import yaml  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from maskjet.serve import ray as served  # noqa: E402

pytestmark = pytest.mark.slow


class Breakable(served.Replica):
    """A replica whose device can be broken, and that notes in the cluster's folder how its model was left."""

    def break_device(self):
        model = self.app.state.service.dispatcher().model

        def predict(images, **_):
            if images:  # not where options are checked
                raise DeviceError("The device failed on frame 0.", index=0)

        model.predict = predict
        return serve.get_replica_context().replica_tag, os.getpid()

    def __del__(self):
        model = self.app.state.service.dispatcher().model
        super().__del__()
        try:
            model.predict(np.zeros((8, 8, 3), np.uint8))
        except UnsupportedError as error:
            Path(os.environ[MARK], f"left-{os.getpid()}").write_text(str(error))


@pytest.fixture(scope="module")
def cluster():
    """The URL of Ray Serve on a free port; nothing runs there yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.delenv("MASKJET_TOKEN", raising=False)
        patch.setattr(served, "Replica", Breakable)
        stack.enter_context(ray_cluster.running(namespace="serve"))
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # replicas can't import tests
        serve.start(http_options={"host": "0.0.0.0", "port": port})
        stack.callback(serve.shutdown)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def deploy(cluster):
    """Deploys the application with arguments, in place of the one before, and gives its URL."""

    def run_application(**args):
        with contextlib.suppress(KeyError):
            serve.delete("maskjet")
        serve.run(served.app({"num_cpus": 0.5, **args}), name="maskjet", route_prefix="/")
        return cluster

    return run_application


@pytest.fixture(scope="module")
def url(deploy):
    """Two replicas without a token."""
    return deploy(model="demo", replicas=2, body_bytes=3_000_000)


def images_by_replica(url):
    """Images that each of two replicas has detected on; asks until both have been met, or for a while."""
    found = {}
    for _ in range(40):
        lines = httpx.get(f"{url}/metrics").text.splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        assert all('replica="' in line for line in samples)
        (line,) = (line for line in samples if line.startswith("maskjet_images_total"))
        found[line.partition('replica="')[2].partition('"')[0]] = float(line.split()[-1])
        if len(found) > 1:
            break
        time.sleep(0.05)  # for a replica that starts
    return found


def is_ready(url):
    with contextlib.suppress(httpx.TransportError):  # Ray's proxy may wait for a replica
        return httpx.get(f"{url}/health/ready").text == "ready"


def test_both_replicas_answer_as_predict_does(url, model, street):
    expected = json.loads(model.predict(street).to_json())
    before = images_by_replica(url)
    assert len(before) == 2
    with httpx.Client(base_url=url, timeout=30) as client:
        for _ in range(16):
            answer = client.post("/v1/predict", content=encoded(street), params={"threshold": 0.3})
            assert answer.json() == expected
    after = images_by_replica(url)
    assert sum(after.values()) - sum(before.values()) == 16
    assert all(after[name] > before[name] for name in before), (before, after)


def test_errors_are_problems(url):
    with httpx.Client(base_url=url) as client:
        for answer, status, words in (
            (client.get("/nowhere"), 404, "Not Found"),
            (client.post("/v1/predict", content=b"x" * 3_000_001), 413, "the limit is 3,000,000"),
            (client.post("/v1/predict", content=(b"x" * 100_000 for _ in range(50))), 413, "the limit of 3,000,000"),
            (client.get("/v1/models", headers={"Host": "evil.example"}), 403, "Host must be a name of this machine"),
            (client.post("/v1/sources", json={"url": "rtsp://192.0.2.1/a"}), 403, "started without allow_sources"),
        ):
            found = problem_of(answer)
            assert found[0] == status
            assert words in found[1]
        assert client.get("/v1/sources").json() == {"sources": []}
        assert "<html" in client.get("/").text  # the page and the Open Inference Protocol pass through
        assert client.get("/v2/models/demo").json()["name"] == "demo"
        assert client.get("/v2/models/dmo").json().keys() == {"error"}


def test_other_machines_are_refused_without_a_token(url):
    node = ray.util.get_node_ip_address()
    if node.startswith("127."):
        pytest.skip("needs a network interface beside the loopback one")
    answer = httpx.get(f"{url.replace('127.0.0.1', node)}/v1/models", headers={"Host": "127.0.0.1"})
    assert problem_of(answer)[0] == 403
    assert "Without a token only this machine is answered" in problem_of(answer)[1]
    assert httpx.get(f"{url}/v1/models").status_code == 200


@run
async def test_a_websocket_answers_frames(url, model, scenes):
    async with connect(f"{url.replace('http', 'ws')}/v1/stream?threshold=0.3", subprotocols=["maskjet"]) as stream:
        assert stream.subprotocol == "maskjet"
        for number, scene in enumerate(scenes):
            await stream.send(encoded(scene))
            answer = json.loads(await stream.recv())
            assert answer == {"frame": number, "dropped": 0, "result": json.loads(model.predict(scene).to_json())}
        await stream.send("a text")
        with pytest.raises(ConnectionClosed) as closed:
            await stream.recv()
    assert closed.value.rcvd.code == 1003


def test_a_replica_whose_device_fails_is_replaced(url, street):
    broken, process = serve.get_app_handle("maskjet").break_device.remote().result(timeout_s=30)
    assert broken in images_by_replica(url)
    image = encoded(street)

    def status():
        return httpx.post(f"{url}/v1/predict", content=image, timeout=30).status_code

    until(lambda: status() == 503)
    until(lambda: not Path(f"/proc/{process}").exists())
    until(lambda: len(met := images_by_replica(url)) == 2 and broken not in met)
    assert {status() for _ in range(20)} == {200}


@pytest.fixture(scope="module")
def watching(deploy, write_video):
    """One replica with a token and a source, a video of a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKJET_TOKEN", TOKEN)
        return deploy(source=f"door={write_video('street.mp4', frames=300, rate=5)}", sources="2", allow_sources="true")


@run
async def test_a_token_is_asked_for_and_written_to_no_log(watching):
    with httpx.Client(base_url=watching) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = client.get("/v1/models", headers=headers)
            assert problem_of(answer)[0] == 401
            assert TOKEN not in answer.text
        assert client.get("/health/ready").text == "ready"
        assert client.get("/v1/models", headers=BEARER).json()["models"][0]["name"] == "demo"
    address = f"{watching.replace('http', 'ws')}/v1/stream"
    with pytest.raises(InvalidStatus) as refused:
        await connect(address)
    assert refused.value.response.status_code == 401
    async with connect(address, additional_headers=BEARER) as stream:
        await stream.send(encoded(np.zeros((8, 8, 3), np.uint8)))
        assert json.loads(await stream.recv())["frame"] == 0
    logs = [path for path in Path(os.environ[MARK]).glob("session_2*/logs/**/*") if path.is_file()]
    assert any(path.name.startswith("replica_maskjet") for path in logs)
    assert not any(TOKEN.encode() in path.read_bytes() for path in logs)


def test_events_come_until_the_source_is_removed(watching):
    with httpx.Client(base_url=watching, headers=BEARER, timeout=30) as client:
        assert [source["name"] for source in client.get("/v1/sources").json()["sources"]] == ["door"]
        frames = []
        with client.stream("GET", "/v1/sources/door/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    assert maskjet.Detections.from_dict(event["result"]).image_size == (120, 160)
                    frames.append(event["frame"])
                    if len(frames) == 3:
                        assert httpx.delete(f"{watching}/v1/sources/door", headers=BEARER).status_code == 204
        assert len(frames) >= 3
        assert frames == sorted(set(frames))
        assert client.get("/v1/sources").json() == {"sources": []}


@pytest.mark.usefixtures("watching")
def test_the_end_of_an_application_closes_its_models():
    folder = Path(os.environ[MARK])
    before = set(folder.glob("left-*"))
    serve.delete("maskjet")
    (left,) = set(folder.glob("left-*")) - before
    assert "closed" in left.read_text()


@pytest.mark.parametrize(
    ("args", "cluster_has", "num_gpus"),
    [
        ({}, {"CPU": 8.0, "GPU": 2.0}, 1),
        ({}, {"CPU": 8.0}, 0),
        ({"device": "cpu"}, {"GPU": 2.0}, 0),
        ({"device": "cuda"}, {}, 1),
        ({"num_gpus": "0.5"}, {"GPU": 2.0}, 0.5),
    ],
)
def test_a_replica_gets_a_gpu_where_the_cluster_has_some(args, cluster_has, num_gpus, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: cluster_has)
    assert served.app(args)._bound_deployment.ray_actor_options["num_gpus"] == num_gpus
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # this machine's GPUs count
    for has_gpu in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert served.app({})._bound_deployment.ray_actor_options["num_gpus"] == has_gpu


@pytest.mark.parametrize(
    ("args", "gpus", "device"),
    [({}, ["3"], "cuda"), ({}, [], "cpu"), ({"device": "cpu"}, ["3"], "cpu"), ({"device": "cuda"}, ["3"], "cuda")],
)
def test_a_replica_runs_on_the_gpu_that_it_was_given(args, gpus, device, model, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append((name, options["device"]))
        return contextlib.nullcontext(model)

    monkeypatch.setattr("maskjet.model.load", load)
    monkeypatch.setattr(served.process, "suit_program", lambda: None)
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(world_size=2, replica_tag="a1"))
    runtime = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": gpus})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: runtime)
    made = served._make_app(parse(args)[0])
    made.state.resources.close()
    assert loaded == [("demo", device)]
    assert made.state.service.metrics.replica == "a1"


def test_the_documented_file_is_one_of_serves():
    document = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (text,) = re.findall(r"```yaml\n(http_options:.*?)```", document, re.DOTALL)
    schema = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (application,) = schema.applications
    assert application.import_path == "maskjet.serve.ray:app"
    deployment = served.app(application.args)._bound_deployment
    assert (deployment.name, deployment.num_replicas) == ("maskjet", 4)
    assert deployment.ray_actor_options["num_gpus"] == 1
    assert deployment.max_ongoing_requests == 256


def test_the_documented_command_serves_and_ends_with_ctrl_c(cluster, model, street, monkeypatch, tmp_path):
    with contextlib.suppress(KeyError):
        serve.delete("maskjet")
    (command,) = (line.split() for line in served.__doc__.splitlines() if line.startswith("    serve run "))
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    program = [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", *command[1:]]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT)
        try:
            until(lambda: process.poll() is not None or is_ready(cluster))
            assert process.poll() is None, Path(log.name).read_text()
            answer = httpx.post(f"{cluster}/v1/predict", content=encoded(street), params={"threshold": 0.3}, timeout=30)
            assert answer.json() == json.loads(model.predict(street).to_json())
            until(lambda: len(images_by_replica(cluster)) == 2)  # the other one may start a little later
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert "Traceback" not in Path(log.name).read_text()

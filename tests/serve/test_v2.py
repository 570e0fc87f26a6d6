"""The Open Inference Protocol as its real clients, of `tritonclient`, speak it with a real server."""

import contextlib
import dataclasses
import json
import queue
import random
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

import maskjet
from tests.serve.client import Held, asking, check_equal, encoded, mutants, run, served, serving
from tests.sources.test_hostile_images import png_of
from tests.waiting import until

http = pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed", exc_type=ImportError)

NAMES = ["count", "image_size", "boxes", "scores", "class_ids", "masks"]
BLACK = np.zeros((5, 180, 321, 3), np.uint8)
TINY, BOMB = png_of(8, 8), png_of(50_000, 50_000)
INFER, LENGTH = "/v2/models/demo/infer", "Inference-Header-Content-Length"


@pytest.fixture(scope="module")
def address(model):
    with serving({"demo": model}, pixels=320 * 180, parts=4) as address:
        yield address


@pytest.fixture
def client(address):
    with http.InferenceServerClient(address, network_timeout=30, connection_timeout=30) as client:
        yield client


def make_input(value, datatype, **options):
    return http.InferInput("image", list(value.shape), datatype).set_data_from_numpy(value, **options)


def make_files(*contents):
    return make_input(np.array(contents, dtype=np.object_), "BYTES")


def test_the_client_sees_whether_a_server_is_live_and_ready(client, address, street):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("demo")
    assert client.is_model_ready("demo", "1")
    for unknown in (("demo", "2"), ("other",)):
        assert not client.is_model_ready(*unknown)
    service = address.service
    service.is_draining = True
    try:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("demo")
        service.is_closed = True
        with pytest.raises(http.InferenceServerException) as caught:
            client.infer("demo", [make_input(street, "UINT8")])
        assert (caught.value.status(), caught.value.message()) == ("503", "The service is shutting down.")
        service.is_closed = False
        service.failure = "The device failed."
        assert not client.is_server_live()
    finally:
        service.is_draining = service.is_closed = False
        service.failure = None


def test_the_clients_get_metadata(client, model):
    assert client.get_server_metadata() == {
        "name": "maskjet",
        "version": maskjet.__version__,
        "extensions": ["binary_tensor_data"],
    }
    fields = client.get_model_metadata("demo", "1")
    assert fields == client.get_model_metadata("demo")
    assert (fields["name"], fields["versions"], fields["platform"]) == ("demo", ["1"], "maskjet")
    assert fields["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, -1, 3]}]
    assert [tensor["name"] for tensor in fields["outputs"]] == NAMES
    assert fields["outputs"][2] == {"name": "boxes", "datatype": "FP32", "shape": [-1, 4]}
    names = {str(number): name for number, name in model.spec.class_names.items()}
    assert fields["parameters"]["class_names"] == names


@pytest.mark.parametrize("version", ["", "1"])
def test_pixels_are_answered_as_predict_does(client, model, street, version):
    result = client.infer("demo", [make_input(street, "UINT8")], model_version=version, request_id="a7")
    found = model.predict(street)
    assert len(found) > 0
    check_equal(result, [found])
    told = result.get_response()
    assert told["id"] == "a7"
    assert (told["model_name"], told["model_version"]) == ("demo", "1")
    assert result.get_output("masks")["parameters"]["binary_data_size"] > 0


def test_without_binary_data_all_is_json(client, model):
    image = maskjet.traffic.sample(seed=3, size_hw=(60, 100)).image
    outputs = [http.InferRequestedOutput(name, binary_data=False) for name in NAMES]
    result = client.infer("demo", [make_input(image, "UINT8", binary_data=False)], outputs=outputs)
    check_equal(result, [model.predict(image)], is_text=True)
    assert all("data" in tensor for tensor in result.get_response()["outputs"])


def test_an_encoded_image_is_answered_as_predict_does(client, model, street, tmp_path):
    path = tmp_path / "street.jpg"
    path.write_bytes(encoded(street, ".jpg"))
    check_equal(client.infer("demo", [make_files(path.read_bytes())]), [model.predict(path)])


def test_several_images_are_answered_one_after_the_other(client, model, street):
    batch = np.stack([street, street[::-1], np.zeros_like(street)])
    check_equal(client.infer("demo", [make_input(batch, "UINT8")]), model.predict(list(batch)))
    images = [street, np.ascontiguousarray(street[:90, :200])]
    check_equal(client.infer("demo", [make_files(*map(encoded, images))]), model.predict(images))


def test_only_requested_outputs_are_returned(client, model, street):
    outputs = [http.InferRequestedOutput("masks"), http.InferRequestedOutput("scores", binary_data=False)]
    result = client.infer("demo", [make_input(street, "UINT8")], outputs=outputs)
    masks, scores = result.get_response()["outputs"]
    assert (masks["name"], "data" in masks) == ("masks", False)
    assert (scores["name"], "data" in scores) == ("scores", True)
    found = model.predict(street)
    assert result.as_numpy("scores").tolist() == found.confidence.tolist()
    assert result.as_numpy("masks").tolist() == [rle["counts"] for rle in found.rle]
    assert result.as_numpy("boxes") is None


def test_parameters_choose_as_in_predict(client, model, street):
    chosen = {"threshold": 0.6, "classes": "car, bus", "max_detections": 2}
    result = client.infer("demo", [make_input(street, "UINT8")], parameters=chosen, timeout=10**7)
    check_equal(result, [model.predict(street, threshold=0.6, classes=["car", "bus"], max_detections=2)])


def test_several_requests_at_a_time_get_their_own_answers(address, model, scenes):
    with http.InferenceServerClient(address, concurrency=4) as client:
        waiting = [client.async_infer("demo", [make_input(image, "UINT8")]) for image in scenes]
        for image, each in zip(scenes, waiting, strict=True):
            check_equal(each.get_result(), [model.predict(image)])


@pytest.mark.parametrize(
    ("status", "message", "change"),
    [
        ("404", "model must be one that is served, got 'demmo'; did you mean 'demo'?", {"model_name": "demmo"}),
        ("404", "model must be one that is served, got 'xxx", {"model_name": "x" * 10_000}),
        ("404", "version must be '1', got '2'.", {"model_version": "2"}),
        ("400", "classes must name classes of demo, got 'cra'; did you mean", {"parameters": {"classes": "cra"}}),
        ("400", "max_detections must be 1..100, got 101.", {"parameters": {"max_detections": 101}}),
        ("400", "parameters.threshold must be a valid number, got 'x'", {"parameters": {"threshold": "x"}}),
        ("413", "image must have at most 57,600 pixels, got 321×180.", {"image": (BLACK[0], "UINT8")}),
        ("413", "image: shape must be of at most 4 images, got 5.", {"image": (BLACK[:, :2], "UINT8")}),
        ("422", "image must be decodable, image: element 0", {"image": [b"no image"]}),
        ("422", "image must be whole, image: element 0", {"image": [b""]}),
        ("413", "image: element 1 has 50000×50000 pixels, the limit is 57,600.", {"image": [TINY, BOMB]}),
    ],
)
def test_the_clients_raise_our_words(client, street, status, message, change):
    options = dict(change)
    image = options.pop("image", (street, "UINT8"))
    made = make_files(*image) if isinstance(image, list) else make_input(*image)
    with pytest.raises(http.InferenceServerException) as caught:
        client.infer(**{"model_name": "demo", "inputs": [made], **options})
    assert caught.value.status() == status
    assert caught.value.message().startswith(message)
    assert len(caught.value.message()) < 300


def test_shared_memory_is_refused(client, street):
    """Its extension is not served: clients are told so, and to send the image."""
    tensor = make_input(street, "UINT8")
    tensor.set_shared_memory("camera", street.nbytes)
    with pytest.raises(http.InferenceServerException) as caught:
        client.infer("demo", [tensor])
    message = "inputs.0.parameters.shared_memory_region must be left out, got 'camera'."
    assert (caught.value.status(), caught.value.message()) == ("400", message)
    for call, arguments in (
        (client.register_system_shared_memory, ("camera", "frames", 100)),
        (client.register_cuda_shared_memory, ("camera", b"A" * 86 + b"==", 0, 100)),
        (client.get_system_shared_memory_status, ()),
        (client.unregister_cuda_shared_memory, ()),
    ):
        with pytest.raises(http.InferenceServerException) as caught:
            call(*arguments)
        assert caught.value.status() == "404"


def test_a_raw_frame_crosses_threads_once(client, address, model, street, monkeypatch):
    """A thread calls the model; the event loop does the rest, but for the answer to several frames."""
    frames, pool, handed = np.stack([street, street[::-1]]), address.service._pool, []
    submit = pool.submit
    monkeypatch.setattr(pool, "submit", lambda *given: handed.append(given) or submit(*given))
    check_equal(client.infer("demo", [make_input(street, "UINT8")]), [model.predict(street)])
    assert handed == []
    check_equal(client.infer("demo", [make_input(frames, "UINT8")]), model.predict(list(frames)))
    assert len(handed) == 1


@pytest.mark.parametrize(
    ("status", "message", "change"),
    [
        ("415", "Content-Encoding must be identity, got 'gzip'.", {"request_compression_algorithm": "gzip"}),
        ("400", "The query must be empty; parameters are in", {"query_params": {"threshold": "0.5"}}),
    ],
)
def test_compressed_bodies_and_queries_are_refused(client, street, status, message, change):
    with pytest.raises(http.InferenceServerException) as caught:
        client.infer("demo", [make_input(street, "UINT8")], **change)
    assert caught.value.status() == status
    assert caught.value.message().startswith(message)


def test_errors_before_a_route_have_the_form_of_the_protocol(address):
    for method, path, status in (
        ("GET", "/v2/models/demo/infer", 405),
        ("POST", "/v2", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/systemsharedmemory/status", 404),
        ("POST", "/v2/cudasharedmemory/region/a/register", 404),
        ("GET", "/v2/models/demo/versions/9", 404),
        ("POST", "/v2/models/demo/infer", 400),
    ):
        answer = httpx.request(method, f"http://{address}{path}")
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), path
        assert answer.headers["content-type"] == "application/json"
    message = "path must be one of the Open Inference Protocol, got '/v2/"
    assert httpx.get(f"http://{address}/v2/repository/index").json()["error"].startswith(message)
    other = httpx.get(f"http://{address}/v2nothing")
    assert other.headers["content-type"] == "application/problem+json"


def infer_body(street):
    fields = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [*street.shape]}]}
    fields["inputs"][0]["parameters"] = {"binary_data_size": street.nbytes}
    text = json.dumps(fields).encode()
    return text + street.tobytes(), str(len(text))


@asking()
async def test_without_asking_for_binary_the_answer_is_json(client, street):
    body, length = infer_body(street)
    answer = await client.post(INFER, content=body, headers={LENGTH: length})
    document = (await client.get("/openapi.json")).json()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert LENGTH not in answer.headers
    assert [tensor["name"] for tensor in answer.json()["outputs"]] == NAMES
    assert "/v2/models/{model}/versions/{version}/infer" in document["paths"]
    described = document["paths"]["/v2/models/{model}/infer"]["post"]
    assert set(described["responses"]) == {"200", "default"}


@run
async def test_memory_is_given_back(model, street):
    body, length = infer_body(street)
    headers = {LENGTH: length}
    async with served({"demo": model}, memory_bytes=len(body) + street.nbytes) as client:
        assert (await client.post(INFER, content=body, headers=headers)).status_code == 200
        broken = await client.post(INFER, content=body[:-1], headers=headers)
        assert broken.status_code == 400
        assert client.service.memory.taken == 0
    async with served({"demo": model}, memory_bytes=len(body) + street.nbytes - 1) as client:
        answer = await client.post(INFER, content=body, headers=headers)
        assert answer.status_code == 413
        assert "bytes of memory, the limit is" in answer.json()["error"]
        assert client.service.memory.taken == 0


@run
async def test_the_guard_answers_in_the_form_of_the_protocol(model, street):
    body, length = infer_body(street)
    headers = {LENGTH: length}
    async with served({"demo": model}, token="secret", body_bytes=len(body) - 1) as client:
        stranger = await client.post(INFER, content=body, headers=headers)
        headers["Authorization"] = "Bearer secret"
        too_large = await client.post(INFER, content=body, headers=headers)
        alive = await client.get("/v2/health/live")
    assert stranger.status_code == 401
    assert stranger.json() == {"error": "The token is missing: send Authorization: Bearer TOKEN."}
    assert too_large.status_code == 413
    assert too_large.json()["error"].startswith(f"The body has {len(body)} bytes, the limit is ")
    assert (alive.status_code, alive.json()) == (200, {"live": True})


class WithoutMasks:
    """A model whose mask head is hidden."""

    def __init__(self, model):
        self._model, self.spec = model, dataclasses.replace(model.spec, has_masks=False)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **options):
        return [dataclasses.replace(found, rle=None) for found in self._model.predict(images, **options)]


@run
async def test_a_model_without_masks_has_no_such_output(model, street):
    body, length = infer_body(street)
    asks = json.loads(body[: int(length)])
    asks["outputs"] = [{"name": "masks"}]
    text = json.dumps(asks).encode()
    infer = "/v2/models/boxes%20only/infer"
    async with served({"boxes only": WithoutMasks(model)}) as client:
        metadata = await client.get("/v2/models/boxes%20only")
        answer = await client.post(infer, content=body, headers={LENGTH: length})
        refused = await client.post(infer, content=text + body[int(length) :], headers={LENGTH: str(len(text))})
    assert [tensor["name"] for tensor in metadata.json()["outputs"]] == NAMES[:-1]
    assert [tensor["name"] for tensor in answer.json()["outputs"]] == NAMES[:-1]
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("outputs must be of the model's, got 'masks'; ")


def test_requests_are_counted(client, address, street):
    def count(status):
        labels = {"route": "/v2/models/{model}/infer", "outcome": status}
        return address.service.metrics.registry.get_sample_value("maskjet_requests_total", labels) or 0

    before = count("200"), count("404")
    client.infer("demo", [make_input(street, "UINT8")])
    with pytest.raises(http.InferenceServerException):
        client.infer("other", [make_input(street, "UINT8")])
    until(lambda: (count("200"), count("404")) == (before[0] + 1, before[1] + 1))


def test_who_has_gone_is_not_worked_for_and_the_rest_is_answered_at_the_end(model, street):
    held = Held(model)

    def ask(patience_s):
        with http.InferenceServerClient(address, network_timeout=patience_s) as client:
            return client.infer("demo", [make_input(street, "UINT8")])

    with serving({"demo": held}, batch=1, deadline_s=120) as address, ThreadPoolExecutor(2) as pool:
        waiting = []
        for _ in range(2):
            waiting.append(pool.submit(ask, 60))
            assert held.begun.acquire(timeout=30)
        with pytest.raises(TimeoutError, match="timed out"):
            ask(1)
        until(lambda: address.service.dispatchers["demo"].depth == 0, 20)
        address.end()
        threading.Timer(0.3, held.go.set).start()
        for each in waiting:
            check_equal(each.result(), [model.predict(street)])
    assert len(held.images) == 2


@pytest.mark.slow
def test_clients_that_come_and_go_leave_nothing_behind(model, scenes):
    """Some of them do not wait for their answer."""
    images = [np.ascontiguousarray(scene[:64, :64]) for scene in scenes]
    found = [model.predict(image) for image in images]
    failures, outcomes, end = queue.Queue(), Counter(), time.monotonic() + 8

    def come_and_go(number):
        chance = random.Random(number)
        try:
            while time.monotonic() < end:
                at, patience_s = chance.randrange(len(images)), chance.choice((0.01, 30))
                with http.InferenceServerClient(address, network_timeout=patience_s) as client:
                    try:
                        check_equal(client.infer("demo", [make_input(images[at], "UINT8")]), [found[at]])
                        outcomes["answered"] += 1
                    except TimeoutError:
                        assert patience_s < 1
                        outcomes["gone"] += 1
        except BaseException as error:
            failures.put(error)

    with serving({"demo": model}) as address:
        before = count_sockets()
        threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures.empty(), failures.get()
        assert outcomes["answered"]
        assert outcomes["gone"]
        service = address.service
        until(lambda: not (service.memory.taken or service.dispatchers["demo"].depth))
        until(lambda: count_sockets() <= before)


def count_sockets():
    """Open sockets of this process."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile by another thread
            count += each.is_socket()
    return count


@asking()
async def test_damaged_bodies_are_never_the_services_fault(client, street):
    """Whatever comes, the answer is a result or an error in the protocol's form, and the next request is served."""
    small = np.ascontiguousarray(street[:32, :48])
    pixels, pixels_length = infer_body(small)
    image = encoded(small, ".jpg")
    fields = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}], "parameters": {"threshold": 0.4}}
    fields["inputs"][0]["parameters"] = {"binary_data_size": len(image) + 4}
    text = json.dumps(fields).encode()
    statuses = Counter()
    for body, length in ((pixels, pixels_length), (text + struct.pack("<I", len(image)) + image, str(len(text)))):
        headers = {LENGTH: length}
        for mutant in mutants(body, int(length), 60):
            answer = await client.post(INFER, content=mutant, headers=headers)
            statuses[answer.status_code] += 1
            assert list(answer.json()) == (
                ["model_name", "model_version", "outputs"] if answer.status_code == 200 else ["error"]
            )
        answer = await client.post(INFER, content=body, headers=headers)
        assert answer.status_code == 200, answer.text
    assert client.service.memory.taken == 0
    assert set(statuses) <= {200, 400, 413, 422}
    assert statuses[400] > 50

"""The Open Inference Protocol as its real client, `tritonclient.http`, speaks it with a real server."""

import asyncio
import dataclasses
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
import uvicorn

import maskjet
from maskjet.serve.app import create_app
from maskjet.serve.settings import Settings
from tests.serve.client import encoded, run, served

NAMES = ["count", "image_size", "boxes", "scores", "class_ids", "masks"]


@contextmanager
def listening(app):
    """The address of an application that uvicorn serves in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not (server.started and app.state.service.is_ready):
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield "{}:{}".format(*listener.getsockname())
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def app(model):
    return create_app({"demo": model}, Settings(pixels=320 * 180, parts=4))


@pytest.fixture(scope="module")
def address(app):
    with listening(app) as address:
        yield address


@pytest.fixture(scope="module")
def triton():
    return pytest.importorskip("tritonclient.http", reason="tritonclient[http] is not installed", exc_type=ImportError)


@pytest.fixture
def client(triton, address):
    with triton.InferenceServerClient(address, network_timeout=30, connection_timeout=30) as client:
        yield client


def make_input(triton, value, datatype, *, is_binary=True):
    tensor = triton.InferInput("image", list(value.shape), datatype)
    return tensor.set_data_from_numpy(value, binary_data=is_binary)


def check_equal(result, found, *, is_text=False):
    """The outputs of a response are these detections."""
    assert result.as_numpy("count").tolist() == [len(one) for one in found]
    assert result.as_numpy("image_size").tolist() == [list(one.image_size) for one in found]
    for name, field in (("boxes", "xyxy"), ("scores", "confidence"), ("class_ids", "class_id")):
        expected = np.concatenate([getattr(one, field) for one in found])
        got = result.as_numpy(name)
        assert got.dtype == expected.dtype
        assert np.array_equal(got, expected)
    masks = [rle["counts"] for one in found for rle in one.rle]
    assert result.as_numpy("masks").tolist() == [mask.decode() if is_text else mask for mask in masks]


def test_the_client_sees_a_live_and_ready_server(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("demo")
    assert client.is_model_ready("demo", "1")
    assert not client.is_model_ready("demo", "2")
    assert not client.is_model_ready("other")


def test_the_client_sees_that_a_server_is_not_ready(client, triton, app, street):
    service = app.state.service
    service.is_draining = True
    try:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("demo")
        service.is_closed = True
        with pytest.raises(triton.InferenceServerException) as caught:
            client.infer("demo", [make_input(triton, street, "UINT8")])
        assert (caught.value.status(), caught.value.message()) == ("503", "The service is shutting down.")
        service.is_closed = False
        service.failure = "The device failed."
        assert not client.is_server_live()
    finally:
        service.is_draining = service.is_closed = False
        service.failure = None


@pytest.mark.parametrize("version", ["", "1"])
def test_the_client_gets_metadata(client, model, version):
    server = client.get_server_metadata()
    assert server == {"name": "maskjet", "version": maskjet.__version__, "extensions": ["binary_tensor_data"]}
    fields = client.get_model_metadata("demo", version)
    assert (fields["name"], fields["versions"], fields["platform"]) == ("demo", ["1"], "maskjet")
    assert fields["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, -1, 3]}]
    assert [tensor["name"] for tensor in fields["outputs"]] == NAMES
    assert fields["outputs"][2] == {"name": "boxes", "datatype": "FP32", "shape": [-1, 4]}
    names = {str(number): name for number, name in model.spec.class_names.items()}
    assert fields["parameters"]["class_names"] == names


@pytest.mark.parametrize("version", ["", "1"])
def test_pixels_are_answered_as_predict_does(client, triton, model, street, version):
    result = client.infer("demo", [make_input(triton, street, "UINT8")], model_version=version, request_id="a7")
    found = model.predict(street)
    assert len(found) > 0
    check_equal(result, [found])
    assert result.get_response()["id"] == "a7"
    assert (result.get_response()["model_name"], result.get_response()["model_version"]) == ("demo", "1")
    assert result.get_output("masks")["parameters"]["binary_data_size"] > 0


def test_without_binary_data_all_is_json(client, triton, model):
    image = maskjet.traffic.sample(seed=3, size_hw=(60, 100)).image
    outputs = [triton.InferRequestedOutput(name, binary_data=False) for name in NAMES]
    result = client.infer("demo", [make_input(triton, image, "UINT8", is_binary=False)], outputs=outputs)
    check_equal(result, [model.predict(image)], is_text=True)
    assert all("data" in tensor for tensor in result.get_response()["outputs"])


def test_an_encoded_image_is_answered_as_predict_does(client, triton, model, street, tmp_path):
    path = tmp_path / "street.jpg"
    path.write_bytes(encoded(street, ".jpg"))
    sent = np.array([path.read_bytes()], dtype=np.object_)
    check_equal(client.infer("demo", [make_input(triton, sent, "BYTES")]), [model.predict(path)])


def test_several_images_are_answered_one_after_the_other(client, triton, model, street):
    batch = np.stack([street, street[::-1], np.zeros_like(street)])
    check_equal(client.infer("demo", [make_input(triton, batch, "UINT8")]), model.predict(list(batch)))
    images = [street, np.ascontiguousarray(street[:90, :200])]
    sent = np.array([encoded(image) for image in images], dtype=np.object_)
    check_equal(client.infer("demo", [make_input(triton, sent, "BYTES")]), model.predict(images))


def test_nothing_found_is_empty_tensors(client, triton, street):
    tensor = make_input(triton, street, "UINT8")
    for is_binary in (True, False):
        outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in NAMES]
        result = client.infer("demo", [tensor], outputs=outputs, parameters={"threshold": 1})
        assert result.as_numpy("count").tolist() == [0]
        assert result.as_numpy("boxes").shape == (0, 4)
        assert [result.as_numpy(name).shape for name in ("scores", "class_ids", "masks")] == [(0,)] * 3


def test_only_requested_outputs_are_returned(client, triton, model, street):
    outputs = [triton.InferRequestedOutput("masks"), triton.InferRequestedOutput("scores", binary_data=False)]
    result = client.infer("demo", [make_input(triton, street, "UINT8")], outputs=outputs)
    masks, scores = result.get_response()["outputs"]
    assert (masks["name"], "data" in masks) == ("masks", False)
    assert (scores["name"], "data" in scores) == ("scores", True)
    found = model.predict(street)
    assert result.as_numpy("scores").tolist() == found.confidence.tolist()
    assert result.as_numpy("masks").tolist() == [rle["counts"] for rle in found.rle]
    assert result.as_numpy("boxes") is None


def test_parameters_choose_as_in_predict(client, triton, model, street):
    chosen = {"threshold": 0.6, "classes": "car, bus", "max_detections": 2}
    result = client.infer("demo", [make_input(triton, street, "UINT8")], parameters=chosen, timeout=10**7)
    check_equal(result, [model.predict(street, threshold=0.6, classes=["car", "bus"], max_detections=2)])


def test_several_requests_at_a_time_get_their_own_answers(triton, address, model):
    images = [maskjet.traffic.sample(seed=seed, size_hw=(90, 160)).image for seed in range(6)]
    with triton.InferenceServerClient(address, concurrency=4) as client:
        waiting = [client.async_infer("demo", [make_input(triton, image, "UINT8")]) for image in images]
        for image, each in zip(images, waiting, strict=True):
            check_equal(each.get_result(), [model.predict(image)])


@pytest.mark.parametrize(
    ("status", "message", "change"),
    [
        ("404", "model must be one that is served, got 'demmo'; did you mean 'demo'?", {"model_name": "demmo"}),
        ("404", "version must be '1', got '2'.", {"model_version": "2"}),
        ("400", "threshold must be 0..1, got 2.", {"parameters": {"threshold": 2}}),
        (
            "400",
            "classes must name classes of demo, got 'cra'; did you mean 'car'?",
            {"parameters": {"classes": "cra"}},
        ),
        ("400", "max_detections must be 1..100, got 101.", {"parameters": {"max_detections": 101}}),
        ("400", "parameters must be known, got 'priority'", {"priority": 1}),
        ("400", "parameters must be known, got 'sequence_id'", {"sequence_id": 5}),
        ("400", "outputs must be of the model's, got 'box'; did you mean 'boxes'?", {"outputs": ["box"]}),
        ("415", "Content-Encoding must be identity, got 'gzip'.", {"request_compression_algorithm": "gzip"}),
        ("400", "The query must be empty; parameters are in", {"query_params": {"threshold": "0.5"}}),
        ("504", "The deadline passed before the image could wait for the model; try again later.", {"timeout": 1}),
    ],
)
def test_the_client_raises_our_words(client, triton, street, status, message, change):
    if "outputs" in change:
        change = {"outputs": [triton.InferRequestedOutput(name) for name in change["outputs"]]}
    with pytest.raises(triton.InferenceServerException) as caught:
        client.infer(**{"model_name": "demo", "inputs": [make_input(triton, street, "UINT8")], **change})
    assert caught.value.status() == status
    assert caught.value.message().startswith(message)


@pytest.mark.parametrize(
    ("status", "message", "value", "datatype"),
    [
        ("400", "image: datatype must be UINT8 or BYTES, got 'FP32'.", np.zeros((2, 2, 3), np.float32), "FP32"),
        ("400", "image: shape must be [H, W, 3] or [N, H, W, 3] of UINT8", np.zeros((3, 2, 2), np.uint8), "UINT8"),
        ("413", "image must have at most 57,600 pixels, got 321×180.", np.zeros((180, 321, 3), np.uint8), "UINT8"),
        ("413", "image: shape must be of at most 4 images, got 5.", np.zeros((5, 2, 2, 3), np.uint8), "UINT8"),
        ("422", "image must be decodable, image: element 0", np.array([b"no image"], dtype=np.object_), "BYTES"),
        ("422", "image must be whole, image: element 0", np.array([b""], dtype=np.object_), "BYTES"),
    ],
)
def test_the_client_raises_what_is_wrong_with_an_image(client, triton, status, message, value, datatype):
    with pytest.raises(triton.InferenceServerException) as caught:
        client.infer("demo", [make_input(triton, value, datatype)])
    assert caught.value.status() == status
    assert caught.value.message().startswith(message)


def test_a_png_that_states_any_size_is_not_decoded(client, triton, street):
    png = bytearray(encoded(street))
    png[16:24] = struct.pack(">II", 50_000, 50_000)
    sent = np.array([encoded(street), bytes(png)], dtype=np.object_)
    with pytest.raises(triton.InferenceServerException) as caught:
        client.infer("demo", [make_input(triton, sent, "BYTES")])
    assert caught.value.status() == "413"
    assert caught.value.message() == "image: element 1 has 50000×50000 pixels, the limit is 57,600."


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get_model_config("demo"),
        lambda client: client.get_inference_statistics("demo"),
        lambda client: client.get_model_repository_index(),
        lambda client: client.load_model("demo"),
        lambda client: client.get_system_shared_memory_status(),
    ],
)
def test_extensions_that_are_not_supported_are_not_found(client, triton, ask):
    with pytest.raises(triton.InferenceServerException) as caught:
        ask(client)
    assert caught.value.status() == "404"
    assert caught.value.message().startswith("path must be one of the Open Inference Protocol, got '/v2/")


def test_errors_before_a_route_have_the_form_of_the_protocol(address):
    for method, path, status in (
        ("GET", "/v2/models/demo/infer", 405),
        ("POST", "/v2", 405),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/demo/versions/9", 404),
        ("POST", "/v2/models/demo/infer", 400),
    ):
        answer = httpx.request(method, f"http://{address}{path}")
        assert (answer.status_code, list(answer.json())) == (status, ["error"]), path
        assert answer.headers["content-type"] == "application/json"
    other = httpx.get(f"http://{address}/v2nothing")
    assert other.headers["content-type"] == "application/problem+json"


def infer_body(street):
    fields = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [*street.shape]}]}
    fields["inputs"][0]["parameters"] = {"binary_data_size": street.nbytes}
    text = json.dumps(fields).encode()
    return text + street.tobytes(), str(len(text))


@run
async def test_without_asking_for_binary_the_answer_is_json(model, street):
    body, length = infer_body(street)
    async with served({"demo": model}) as client:
        answer = await client.post(
            "/v2/models/demo/infer", content=body, headers={"Inference-Header-Content-Length": length}
        )
        twice = [("Inference-Header-Content-Length", length)] * 2
        refused = await client.post("/v2/models/demo/infer", content=body, headers=twice)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in answer.headers
    assert [tensor["name"] for tensor in answer.json()["outputs"]] == NAMES
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "Inference-Header-Content-Length must be given once."},
    )


@run
async def test_memory_is_given_back(model, street):
    body, length = infer_body(street)
    headers = {"Inference-Header-Content-Length": length}
    async with served({"demo": model}, memory_bytes=len(body) + street.nbytes) as client:
        assert (await client.post("/v2/models/demo/infer", content=body, headers=headers)).status_code == 200
        broken = await client.post("/v2/models/demo/infer", content=body[:-1], headers=headers)
        assert broken.status_code == 400
        assert client.service.memory.taken == 0
    async with served({"demo": model}, memory_bytes=len(body) + street.nbytes - 1) as client:
        answer = await client.post("/v2/models/demo/infer", content=body, headers=headers)
        assert answer.status_code == 413
        assert "bytes of memory, the limit is" in answer.json()["error"]
        assert client.service.memory.taken == 0
    async with served({"demo": model}, memory_bytes=len(body) + street.nbytes) as client:
        with client.service.memory.share() as share:
            share.take(1)
            answer = await client.post("/v2/models/demo/infer", content=body, headers=headers)
        assert answer.status_code == 429
        assert answer.json() == {"error": "The memory for images is taken by other requests; try again later."}
        assert answer.headers["retry-after"] == "1"


@run
async def test_the_guard_answers_in_the_form_of_the_protocol(model, street):
    body, length = infer_body(street)
    headers = {"Inference-Header-Content-Length": length}
    async with served({"demo": model}, token="secret", body_bytes=len(body) - 1) as client:
        stranger = await client.post("/v2/models/demo/infer", content=body, headers=headers)
        headers["Authorization"] = "Bearer secret"
        too_large = await client.post("/v2/models/demo/infer", content=body, headers=headers)
        alive = await client.get("/v2/health/live")
    assert stranger.status_code == 401
    assert stranger.json() == {"error": "The token is missing: send Authorization: Bearer TOKEN."}
    assert too_large.status_code == 413
    assert too_large.json()["error"].startswith(f"The body has {len(body)} bytes, the limit is ")
    assert (alive.status_code, alive.json()) == (200, {"live": True})


@run
async def test_the_document_describes_the_protocol(model):
    async with served({"demo": model}) as client:
        document = (await client.get("/openapi.json")).json()
    assert "/v2/models/{model}/versions/{version}/infer" in document["paths"]
    described = document["paths"]["/v2/models/{model}/infer"]["post"]
    assert set(described["responses"]) >= {"200", "400", "404", "413", "422", "429", "504"}


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
    async with served({"boxes only": WithoutMasks(model)}) as client:
        metadata = await client.get("/v2/models/boxes%20only")
        answer = await client.post(
            "/v2/models/boxes%20only/infer", content=body, headers={"Inference-Header-Content-Length": length}
        )
        refused = await client.post(
            "/v2/models/boxes%20only/infer",
            content=text + body[int(length) :],
            headers={"Inference-Header-Content-Length": str(len(text))},
        )
    assert [tensor["name"] for tensor in metadata.json()["outputs"]] == NAMES[:-1]
    assert [tensor["name"] for tensor in answer.json()["outputs"]] == NAMES[:-1]
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("outputs must be of the model's, got 'masks'; ")


@run
async def test_damaged_bodies_are_never_the_services_fault(model, street):
    """Whatever comes, the answer is a result or an error in the protocol's form, and the next request is served."""
    small = np.ascontiguousarray(street[:32, :48])
    pixels, pixels_length = infer_body(small)
    image = encoded(small, ".jpg")
    fields = {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}], "parameters": {"threshold": 0.4}}
    fields["inputs"][0]["parameters"] = {"binary_data_size": len(image) + 4}
    text = json.dumps(fields).encode()
    chance, statuses = random.Random(0), Counter()
    async with served({"demo": model}) as client:
        for body, length in ((pixels, pixels_length), (text + struct.pack("<I", len(image)) + image, str(len(text)))):
            headers = {"Inference-Header-Content-Length": length}
            for _ in range(60):
                damaged = bytearray(body)
                for _ in range(chance.randint(1, 3)):
                    at = chance.randrange(int(length)) if chance.random() < 0.6 else chance.randrange(len(body))
                    damaged[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
                answer = await client.post("/v2/models/demo/infer", content=bytes(damaged), headers=headers)
                statuses[answer.status_code] += 1
                assert list(answer.json()) == (
                    ["model_name", "model_version", "outputs"] if answer.status_code == 200 else ["error"]
                )
            answer = await client.post("/v2/models/demo/infer", content=body, headers=headers)
            assert answer.status_code == 200, answer.text
        assert client.service.memory.taken == 0
    assert set(statuses) <= {200, 400, 413, 422}
    assert statuses[400] > 50

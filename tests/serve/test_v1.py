"""POST /v1/predict answers as `Model.predict` does, and refuses in its words."""

import json
import re

import cv2
import httpx
import numpy as np
import pytest

from maskjet import Detections, traffic
from maskjet.errors import DeviceError, InputError
from maskjet.masks import coco_rle
from maskjet.serve import queries, v1
from maskjet.serve.settings import Settings
from tests.serve.client import Held, asking, encoded, problem_of, run, served

FORM = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
"""The beginning of a form."""


@asking()
async def test_an_image_is_answered_as_predict_does(client, model, street):
    lossless = [cv2.IMWRITE_WEBP_QUALITY, 101]
    for suffix, options in ((".png", ()), (".bmp", ()), (".webp", lossless)):
        answer = await client.post("/v1/predict", content=encoded(street, suffix, options))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert answer.json() == model.predict(street).as_dict()
        assert len(answer.json()["detections"]) > 0
    stages = [part.partition(";dur=") for part in answer.headers["server-timing"].split(", ")]
    assert [name for name, _, _ in stages] == ["decode", "queue", "predict", "encode"]
    assert all(float(milliseconds) >= 0 for _, _, milliseconds in stages)


@asking()
async def test_options_are_those_of_predict(client, model, street):
    for query, options in (
        ({"threshold": "0.7"}, {"threshold": 0.7}),
        ({"threshold": ["car=0.9", "bus=0.1"]}, {"threshold": {"car": 0.9, "bus": 0.1}}),
        ({"classes": "car, bus", "max_detections": "2"}, {"classes": ["car", "bus"], "max_detections": 2}),
        ({"threshold": "0.02", "nms": "0.3"}, {"threshold": 0.02, "nms": 0.3}),
        ({"tile": "200x180", "overlap": "0.1", "full": "false"}, {"tile": (180, 200), "overlap": 0.1, "full": False}),
    ):
        answer = await client.post("/v1/predict", content=encoded(street), params=query)
        assert answer.json() == model.predict(street, **options).as_dict()


@run
async def test_tiles_of_the_service_hold_where_a_request_says_nothing(model, street):
    async with served({"demo": model}, tile="200x180", overlap=0.1, full=False) as client:
        for query, options in (
            ("", {"tile": (180, 200), "overlap": 0.1, "full": False}),
            ("?full=true", {"tile": (180, 200), "overlap": 0.1}),
            ("?tile=none", {}),
        ):
            answer = await client.post(f"/v1/predict{query}", content=encoded(street))
            assert answer.json() == model.predict(street, **options).as_dict()


@asking()
async def test_masks_are_given_as_asked_for(client, model, street):
    found = model.predict(street)
    answers = {
        masks: (await client.post(f"/v1/predict?masks={masks}&tolerance=1.5", content=encoded(street))).json()
        for masks in ("rle", "polygons", "none")
    }
    assert [answers[masks]["has_masks"] for masks in ("rle", "polygons", "none")] == [True, True, False]
    assert Detections.from_dict(answers["rle"]).rle == found.rle
    outlines = [[outline.tolist() for outline in one] for one in found.polygons(tolerance=1.5, along="edges")]
    assert [entry["polygons"] for entry in answers["polygons"]["detections"]] == outlines
    for masks in ("polygons", "none"):
        again = Detections.from_dict(answers[masks])  # the boxes can be read back
        assert again.rle is None
        assert np.array_equal(again.xyxy, found.xyxy)
        assert all("rle" not in entry for entry in answers[masks]["detections"])
    assert all("polygons" not in entry for entry in answers["none"]["detections"])
    answer = await client.post("/v1/predict?masks=none&rotated_boxes=true", content=encoded(street))
    assert [entry["rotated_box"] for entry in answer.json()["detections"]] == found.rotated_boxes().tolist()


@pytest.mark.parametrize("pixels", [[(3, 4)], [(3, 4), (3, 5)], [(3, 4), (3, 5), (3, 6)], [(1, 1), (2, 2)]])
def test_no_outline_has_fewer_than_three_points(pixels):
    mask = np.zeros((8, 9), np.uint8)
    mask[tuple(zip(*pixels, strict=True))] = 1
    box = np.array([[3, 1, 7, 3]], np.float32)
    found = Detections(mask.shape, box, np.ones(1, np.float32), np.zeros(1, np.int32), coco_rle.encode(mask))
    (entry,) = v1.to_dict(found, "polygons")["detections"]
    assert [cv2.contourArea(np.float32(outline)) for outline in entry["polygons"]] == [len(pixels)]
    assert min(map(len, found.polygons()[0])) == 3


@asking()
async def test_a_form_is_answered_in_order(client, model, street):
    other = traffic.sample(seed=4, size_hw=(120, 200)).image
    files = [("a", ("one.png", encoded(street))), ("b", ("two.png", encoded(other))), ("c", encoded(street))]
    answer = await client.post("/v1/predict", files=files)
    one = await client.post("/v1/predict", files=files[1:2])
    results = answer.json()["results"]
    assert [result.pop("name") for result in results[:2]] == ["one.png", "two.png"]
    assert results[0] == model.predict(street).as_dict()
    assert results[1] == model.predict(other).as_dict()
    assert [result["name"] for result in one.json()["results"]] == ["two.png"]


@asking()
async def test_a_picture_is_what_draw_draws(client, model, street):
    png = await client.post("/v1/predict", content=encoded(street), headers={"Accept": "image/png"})
    jpeg = await client.post("/v1/predict", content=encoded(street), headers={"Accept": "a/b, image/*;q=0.5, */*"})
    assert (png.headers["content-type"], jpeg.headers["content-type"]) == ("image/png", "image/jpeg")
    drawn = cv2.imdecode(np.frombuffer(png.content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.array_equal(drawn, model.predict(street).draw(street))
    assert jpeg.content.startswith(b"\xff\xd8")
    with pytest.raises(InputError, match=r"label must have the fields .*, got '\{title\}'"):
        Settings(label="{title}")
    async with served({"demo": model}, label="{class_id}") as other:
        png = await other.post("/v1/predict", content=encoded(street), headers={"Accept": "image/png"})
    drawn = cv2.imdecode(np.frombuffer(png.content, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert np.array_equal(drawn, model.predict(street).draw(street, label="{class_id}"))


@run
async def test_several_models_are_told_apart(model, street):
    async with served({"first": model, "second": model}) as client, served({"demo": model}) as other:
        assert (await client.post("/v1/predict", content=encoded(street), params={"model": "second"})).is_success
        answer = await client.post("/v1/predict", content=encoded(street), params={"model": "secnd"})
        assert problem_of(answer) == (404, "model must be one that is served, got 'secnd'; did you mean 'second'?")
        models = (await client.get("/v1/models")).json()["models"]
        assert [each["name"] for each in models] == ["first", "second"]
        assert models[0]["classes"] == {str(number): name for number, name in model.spec.class_names.items()}
        status = (await client.get("/v1/status")).json()
        assert status["models"]["first"]["device"] == model.report().device
        assert "/v1/models" not in (await other.get("/metrics")).text  # two services share nothing


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("threshold=2", "threshold must be 0..1, got 2.0."),
        ("threshold=high", "threshold must be a number 0..1, or name=value for each class, got 'high'."),
        ("threshold=0.5&threshold=car=0.5", "threshold must be a number 0..1, or name=value .*"),
        ("threshold=cow=0.5", "threshold must name classes of demo, got 'cow'; known: .*"),
        ("classes=", "classes must name classes of demo, got ''; known: .*"),
        ("classes=car,tuck", "classes must name classes of demo, got 'tuck'; did you mean 'truck'.*"),
        ("max_detections=0", "max_detections must be 1..100, got 0."),
        ("max_detections=1.5", "max_detections must be a whole number, got '1.5'."),
        ("masks=dense", "masks must be one of rle, polygons, none, got 'dense'."),
        ("tolerance=-1", "tolerance must be pixels, 0..9999, got '-1'."),
        ("tile=640p", "tile must be a side in pixels, WIDTHxHEIGHT or auto, got '640p'."),
        ("tile=32", "tile must be 39 or larger, or 'auto', for frames of 320 × 180 pixels .*: at most 64 tiles, .*"),
        ("tile=64&overlap=most", "overlap must be a number 0..0.9, got 'most'."),
        ("tile=64&overlap=1", "overlap must be 0..0.9, a share of a tile's side, got 1.0."),
        ("full=yes", "full must be true or false, got 'yes'."),
        ("nms=2", "nms must be 0..1, got 2.0."),
        ("nms=-1", "nms must be a number 0..1, got '-1'."),
        ("treshold=0.5", "The query must have parameters .* got 'treshold'; did you mean 'threshold'.*"),
    ],
)
@asking()
async def test_an_invalid_parameter_is_named(client, query, detail, street):
    status, said = problem_of(await client.post(f"/v1/predict?{query}", content=encoded(street)))
    assert status == 400
    assert re.fullmatch(detail, said), said


@asking()
async def test_a_short_query_is_kept_parsed_and_a_long_one_is_not(client, street):
    short = "classes=car&max_detections=17"
    for query, parsed in ((short, 1), (short, 0), ("classes=" + ",".join(["car"] * 400), 0)):
        before = queries._parse.cache_info().misses
        answer = await client.post(f"/v1/predict?{query}", content=encoded(street))
        assert {each["class_name"] for each in answer.json()["detections"]} == {"car"}
        assert queries._parse.cache_info().misses == before + parsed


@pytest.mark.parametrize(
    ("headers", "content", "status", "detail"),
    [
        ({}, b"", 400, "The body must have an image, it is empty."),
        ({}, b"no image", 422, "image must be decodable, the body is corrupt or no PNG, .*"),
        ({}, b"\xff\xd8\xff", 422, "image must be whole, the body is empty, cut off or damaged."),
        ({"Content-Encoding": "GZIP"}, b"\x1f\x8b", 415, "Content-Encoding must be identity, got 'gzip'."),
        ({"Content-Type": "text/html"}, b"x", 415, "Content-Type must be an image's, .* got 'text/html'."),
        ({"Content-Type": "multipart/form-data"}, b"x", 400, "Content-Type must name the boundary .*"),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"x", 400, "The body must be multipart/form-data, .*"),
        ({"Content-Type": "multipart/form-data; boundary=b"}, FORM + b"x", 400, ".* it is cut off."),
        ({"Content-Type": "multipart/form-data; boundary=b"}, FORM[:-2], 400, ".* it is cut off."),
        ({"Content-Type": f"multipart/form-data; boundary={'b' * 9000}"}, FORM, 400, "The body must be multipart/.*"),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b--\r\n", 400, ".*"),
        ({"Accept": "," * 1001}, b"x", 406, "Accept must have at most 1,000 characters, got 1,001."),
        ({"Accept": "text/html"}, b"x", 406, "Accept must allow one of application/json, .* got 'text/html'."),
    ],
)
@asking()
async def test_a_body_that_is_no_image_is_refused(client, headers, content, status, detail):
    found, said = problem_of(await client.post("/v1/predict", content=content, headers=headers))
    assert found == status
    assert re.fullmatch(detail, said), said


@asking()
async def test_an_unknown_failure_is_a_reference_in_the_log(client, street, caplog, monkeypatch):
    def fail(*_, **__):
        raise KeyError("a secret")

    monkeypatch.setattr("maskjet.serve.v1._to_json", fail)
    answer = await client.post("/v1/predict", content=encoded(street))
    assert problem_of(answer)[0] == 500
    assert "secret" not in answer.text
    (record,) = [record for record in caplog.records if record.name == "maskjet.serve"]
    assert answer.json()["reference"] in record.getMessage()
    assert "a secret" in str(record.exc_info[1])


@pytest.mark.parametrize(("prefix", "path", "status"), [("/api", "/api/v1/predict", 200), ("/v1", "/v1/predict", 404)])
@asking()
async def test_below_a_prefix_paths_have_it(client, street, prefix, path, status):
    transport = httpx.ASGITransport(client._transport.app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as below:
        assert (await below.post(path, content=encoded(street))).status_code == status


@run
async def test_a_device_error_ends_the_service(model, street):
    breaking = Held(model, error=DeviceError("The device failed on images[0].", index=0))
    breaking.go.set()
    async with served({"demo": breaking}) as client:
        await client.service.warmed_up.wait()
        assert (await client.get("/health/live")).status_code == 200
        answer = await client.post("/v1/predict", content=encoded(street))
        assert problem_of(answer) == (503, "The device failed on images[0].")
        breaking.error = None
        assert problem_of(await client.post("/v1/predict", content=encoded(street)))[0] == 503
        live = await client.get("/health/live")
        assert (live.status_code, live.text) == (503, "The device failed on images[0].")
        assert (await client.get("/health/ready")).status_code == 503


@asking()
async def test_metrics_count_what_was_done(client, street):
    await client.post("/v1/predict", content=encoded(street))
    await client.post("/v1/predict", content=b"x")
    await client.get("/who/is/there")
    text = (await client.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['maskjet_requests_total{outcome="200",route="/v1/predict"}'] == "1.0"
    assert lines['maskjet_requests_total{outcome="422",route="/v1/predict"}'] == "1.0"
    assert lines['maskjet_requests_total{outcome="404",route="other"}'] == "1.0"
    assert lines['maskjet_batch_images_count{model="demo"}'] == "1.0"
    assert float(lines['maskjet_images_total{model="demo"}']) >= 1
    assert lines['maskjet_queue_depth{model="demo"}'] == "0.0"
    assert lines["maskjet_ready"] == "1.0"
    for stage in ("decode", "queue", "predict", "encode"):
        assert lines[f'maskjet_stage_seconds_count{{stage="{stage}"}}'] == "1.0"


@run
async def test_it_is_ready_when_it_has_answered_a_frame(model):
    held = Held(model)
    held.holds_first_frames = True
    async with served({"demo": held}) as client:
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.text) == (503, "warming up")
        assert (await client.get("/health/live")).text == "live"
        held.go.set()
        await client.service.warmed_up.wait()
        assert (await client.get("/health/ready")).text == "ready"
        client.service.dispatcher().batch = 2  # which is not compiled yet
        assert (await client.get("/health/ready")).text == "ready, with batches of 1 at most"
        client.service.dispatcher().batch = 1
        client.service.is_draining = True
        assert (await client.get("/health/ready")).text == "shutting down"
        assert (await client.get("/v1/models")).status_code == 200
        client.service.is_closed = True
        assert problem_of(await client.get("/v1/models")) == (503, "The service is shutting down.")


@asking()
async def test_the_document_names_every_answer(client):
    document = (await client.get("/openapi.json")).json()
    page = (await client.get("/docs")).text
    responses = document["paths"]["/v1/predict"]["post"]["responses"]
    assert "application/problem+json" in responses["default"]["content"]
    assert "HTTPValidationError" not in json.dumps(document)
    assert "/v1/stream" in document["info"]["description"]
    for name, kind in (("events", "text/event-stream"), ("preview.mjpeg", "multipart/x-mixed-replace")):
        answer = document["paths"][f"/v1/sources/{{id}}/{name}"]["get"]["responses"]["200"]
        assert list(answer["content"]) == [kind]
    assert "POST /v1/predict" in page
    assert "max_detections" in page
    assert re.findall(r"https?://|<script[^>]*>", page) == ["<script type=module src=page/docs.js>"]  # all from here

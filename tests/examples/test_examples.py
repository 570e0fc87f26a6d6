"""The programs of examples/, as a reader runs them, on drawn streets."""

import importlib.util
import json
import re
import runpy
import socket
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
import rasterio
from rasterio.features import rasterize
from rasterio.transform import from_origin
from rasterio.warp import transform_geom
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import maskjet
from maskjet import limits, traffic
from tests.outputs.test_events import broker
from tests.sources.clips import encode, write_image

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DEMO = ROOT / "src" / "maskjet" / "networks" / "demo"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # where each model would compile for a while


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """A function that runs an example in an empty folder, and returns the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def read(path):
    image = cv2.imread(str(path))
    assert image is not None, path
    return image


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_a_screen_and_says_how_it_is_run(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in text or f"{path.stem}:app" in text
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"examples/{path.name}" in page.read_text() for page in pages)


def test_cars_over_a_line_are_counted_and_drawn(run):
    traffic.write_video("video.mp4", size_hw=(180, 320), frames=15, seed=9)
    crossing, *sums = run("count_cars", "video.mp4", "counted.mp4", "0,90,320,90")
    assert re.fullmatch(r"0\.\d\d s: car #1 goes out", crossing)
    assert sums == ["in: 0 {}", "out: 1 {'car': 1}"]
    assert Path("counted.mp4").stat().st_size > 1000


def test_a_folder_is_redacted_and_what_is_in_doubt_listed(run):
    traffic.write_coco("streets", images=2, size_hw=(180, 320))
    Path("streets/images/000002.jpg").write_bytes(b"no image")
    lines = run("redact_folder", "streets/images", "hidden")
    assert all(": " in line for line in lines)
    assert "000002.jpg" in lines[-1]
    for name in ("000000.jpg", "000001.jpg"):
        original, hidden = read(f"streets/images/{name}"), read(f"hidden/{name}")
        assert (hidden.max(axis=2) < 16).sum() > 2 * (original.max(axis=2) < 16).sum() + 500
    assert not Path("hidden/000002.jpg").exists()


def test_labels_are_written_and_drawn_on_a_sheet(run):
    traffic.write_coco("streets", images=5, size_hw=(180, 320))
    assert run("label_folder", "streets/images", "street.yolo", "sheet.png") == [
        "5 images in street.yolo, labels drawn in sheet.png"
    ]
    sheet = read("sheet.png")
    assert sheet.shape == (2 * 270, 4 * 480, 3)
    assert not sheet[270:, 480:].any()
    for number in range(5):
        row, column = divmod(number, 4)
        tile = sheet[row * 270 :][:270, column * 480 :][:, :480]
        plain = cv2.resize(read(f"street.yolo/images/{number:06}.jpg"), (480, 270), interpolation=cv2.INTER_AREA)
        changed = (np.abs(tile.astype(int) - plain) > 8).any(axis=2)
        lines = Path(f"street.yolo/labels/{number:06}.txt").read_text().splitlines()
        assert 30 * len(lines) <= changed.sum() < changed.size / 10
        assert lines


def test_a_broker_hears_every_second_what_a_camera_sees(run):
    pytest.importorskip("paho.mqtt.client")
    streets = [traffic.sample(seed=seed, size_hw=(96, 160)).image for seed in range(4)]
    encode("video.mp4", streets, rate=2)
    heard = []
    with broker(heard, 1) as address:
        run("camera_to_mqtt", "video.mp4", f"mqtt://me:secret@{address}/street/gate")
    assert {topic for topic, _ in heard} == {"street/gate"}
    *seen, last = (message for _, message in heard)
    assert [message["time_s"] for message in seen] == [0.0, 1.0]
    assert all(message.keys() == {"online", "time_s", *traffic.CLASSES} for message in seen)
    assert max(sum(message[name] for name in traffic.CLASSES) for message in seen) > 0
    assert last == {"online": False}


def test_a_broker_that_refuses_is_named(run):
    pytest.importorskip("paho.mqtt.client")
    encode("video.mp4", [traffic.sample(seed=3, size_hw=(96, 160)).image])
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x20\x02\x00\x05")

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(SystemExit, match=r"^The broker 127.0.0.1 refuses, or does not answer\."):
            run("camera_to_mqtt", "video.mp4", f"mqtt://me:wrong@127.0.0.1:{server.getsockname()[1]}/street/gate")
        thread.join()


def test_an_application_answers_with_detections(monkeypatch, tmp_path):
    client = pytest.importorskip("fastapi.testclient")
    monkeypatch.setattr(limits, "image_pixels", limits.image_pixels)  # which the example lowers
    spec = importlib.util.spec_from_file_location("fastapi_app", ROOT / "examples" / "fastapi_app.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    image = write_image(tmp_path / "street.png", traffic.sample(seed=3, size_hw=(180, 320)).image).read_bytes()
    with client.TestClient(module.app) as app:
        found, fewer = (app.post("/find", files={"image": image}, params={"threshold": t}).json() for t in (0.3, 0.8))
        assert found["size"] == [180, 320]
        assert len(found["detections"]) > len(fewer["detections"]) > 0
        answer = app.post("/find", files={"image": b"no image"})
        assert (answer.status_code, "image" in answer.json()["detail"]) == (422, True)
        assert app.post("/find", files={"image": image}, params={"threshold": 2}).status_code == 422
        monkeypatch.setattr(module, "MOST_BYTES", len(image) - 1)
        answer = app.post("/find", files={"image": image})
        assert (answer.status_code, "at most" in answer.json()["detail"]) == (413, True)


def test_two_checkpoints_are_compared_by_class(run):
    pytest.importorskip("hotcoco")
    with safe_open(DEMO / "weights.safetensors", "pt") as file:
        about = file.metadata()
    traffic.write_coco("streets", images=2, size_hw=(180, 320))
    save_file(load_file(DEMO / "weights.safetensors"), "same.safetensors", about)
    first, *lines = run("compare_checkpoints", DEMO / "weights.safetensors", "same.safetensors", "streets", "scores")
    assert first.split() == ["segm", "AP", "best", "F1", "at", "threshold"]
    rows = {name: numbers for name, *numbers in map(str.split, lines)}
    assert next(iter(rows)) == "all"
    assert all(numbers[::3] == numbers[2::3] for numbers in rows.values())
    assert float(rows["car"][0]) > 0.3
    assert json.loads(Path("scores/after/report.json").read_text())["images"] == 2


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")  # in rasterio itself
def test_outlines_of_a_raster_are_where_its_masks_are(run):
    size_hw, place, utm = (360, 900), from_origin(500_000, 5_300_000, 0.2, 0.2), "EPSG:32632"
    image = traffic.sample(seed=3, size_hw=size_hw).image
    shape = {"height": size_hw[0], "width": size_hw[1], "count": 3, "dtype": "uint8"}
    with rasterio.open("scene.tif", "w", driver="GTiff", crs=utm, transform=place, **shape) as scene:
        scene.write(np.moveaxis(image, 2, 0))
    run("geotiff", "scene.tif", "found.geojson")
    features = json.loads(Path("found.geojson").read_text())["features"]
    with maskjet.load("demo") as model:
        expected = model.predict(image, tile=640, full=False)
    names = [feature["properties"]["class_name"] for feature in features]
    assert names == [*expected.class_name]
    assert len({*names}) > 1
    for feature, mask in zip(features, expected.masks(), strict=True):
        outline = transform_geom("EPSG:4326", utm, feature["geometry"])
        assert (rasterize([outline], size_hw, transform=place) == mask).all()

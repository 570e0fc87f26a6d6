"""maskjet val on the command line."""

import json
from pathlib import Path

import pytest

from maskjet import traffic

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _streets(tmp_path, monkeypatch):
    """The working directory, with a data set whose cars have another name."""
    monkeypatch.chdir(tmp_path)
    traffic.write_coco(Path("set"), images=2, size_hw=(96, 160))
    path = Path("set", "annotations.json")
    path.write_text(path.read_text().replace('"name": "car"', '"name": "Automobile"'))


def test_a_model_is_measured(maskjet):
    line = "val set --device cpu --threshold 0.4,bus=0.6"
    code, out, err = maskjet(f"{line} --map Automobile=car -o scores")
    assert (code, "note:" in err) == (0, False)
    assert sorted(path.name for path in Path("scores").iterdir()) == ["page.html", "report.json"]
    assert [f"wrote scores/{name}" in err for name in ("page.html", "report.json")] == [True, True]
    assert out.splitlines()[0].split()[:4] == ["class", "kind", "things", "AP"]
    report = json.loads(Path("scores", "report.json").read_text())
    given = {m["class_name"]: m["given"]["threshold"] for m in report["measurements"]}
    assert (given["car"], given["bus"], given[None]) == (0.4, 0.6, None)
    code, out, err = maskjet(f"{line} --json")
    assert (code, json.loads(out)["classes"]) == (0, ["truck", "bus", "motorcycle", "person"])
    assert "note: left out, as the model has no such class: Automobile (" in err
    assert Path("scores").stat().st_nlink == 2
    code, out, err = maskjet(f"{line} --json -o set/annotations.json")  # what was measured is not lost
    assert (code, json.loads(out)["images"]) == (4, 2)
    assert "--out must be writable, 'set/annotations.json/report.json' is not" in err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--map Automobile", 2, "--map must be NAME=CLASS, got 'Automobile'"),
        ("--map Automobile=cart", 2, "--map must map to classes of the model, got 'cart'; did you mean 'car'?"),
        ("--map car=car", 2, "--map must map classes of the data set, got 'car'"),
        ("--split test", 2, "--split must be one of 'set', got 'test'"),
        ("--threshold cow=0.5", 2, "--threshold must name classes of demo, got 'cow'"),
    ],
)
def test_wrong_usage_is_told(options, code, message, maskjet):
    found = maskjet(f"val set --device cpu {options}")
    assert (found[0], found[1], message in found[2]) == (code, "", True), found


@pytest.mark.parametrize(
    ("start", "images", "out", "data"),
    [
        (".", "set/images", "set/annotations.json", "set"),
        ("set", "images", "annotations.json", "."),
        ("set/images", ".", "../auto.json --coco-masks polygons", "../auto.json"),
        (".", "set/images", "set/images/_annotations.coco.json", "set"),
        (".", "set/images", "a.yolo --yolo-images copy", "a.yolo"),
        ("set", "images", "../b.yolo --yolo-images link --yolo-parts all --yolo-confidence", "../b.yolo/data.yaml"),
    ],
)
def test_what_run_writes_is_measured_where_it_lies(start, images, out, data, maskjet, monkeypatch):
    Path("set", "annotations.json").unlink()
    monkeypatch.chdir(start)
    code, _, err = maskjet(f"run {images} --device cpu -o {out}")
    assert code == 0, err
    code, found, err = maskjet(f"val {data} --device cpu --json")
    assert (code, "left out: " in err) == (0, "confidence" in out), err
    report = json.loads(found)
    assert report["images"] == 2
    of_all = [m["metrics"]["ap75"] for m in report["measurements"] if m["class_name"] is None]
    assert of_all[".yolo" in out :] == [1.0, 1.0][".yolo" in out :]  # YOLO's boxes are those of masks


def test_what_is_no_data_set_is_told(maskjet):
    assert maskjet("val nowhere --device cpu")[0] == 3

"""maskjet parity on the command line."""

import json
from pathlib import Path

import cv2
import pytest

from maskjet import traffic
from tests.parity.dumps import FAULTS, IMAGES, STREETS, detections, dump, truthful

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _dumps(tmp_path, monkeypatch):
    """The working directory, with the same dump under two names, and one where a detection is dropped."""
    monkeypatch.chdir(tmp_path)
    for name, first in {"one": None, "same": None, "less": [FAULTS["dropped"]]}.items():
        dump(name, first).save(f"{name}.npz")


@pytest.fixture
def parity(maskjet):
    """Exit code, stdout, stderr of maskjet parity."""
    return lambda line: maskjet(f"parity {line}")


@pytest.fixture
def refused(parity):
    """Runs what is wrong usage, of which the message is told."""

    def call_it(line, message):
        code, out, err = parity(line)
        assert (code, out, message in err) == (2, "", True), err

    return call_it


def test_dump_and_check(parity):
    streets = "--count 2 --size 160x96 --device cpu"
    code, out, err = parity(f"dump a.npz {streets}")
    assert (code, out) == (0, "")
    assert "detections on 2 images to" in err
    assert parity(f"dump b.npz {streets} --implementation preprocess=reference --name b")[0] == 0
    code, out, err = parity("check a.npz b.npz --out r.json --confidence 0.4")
    assert code == 0
    assert "2 images: " in out
    report = json.loads(Path("r.json").read_text())
    assert [m["confidence"] for m in report["measurements"]] == [0.05, 0.4]
    assert (report["expected"]["name"], report["actual"]["name"]) == ("a", "b")


def test_a_difference_is_no_error_in_check(parity, refused):
    code, out, _ = parity("check one.npz less.npz --pictures p")
    assert code == 0
    assert "dropped: car 0.50" in out
    assert [path.name for path in Path("p").iterdir()] == ["worst_01.png"]
    code, out, _ = parity("check one.npz same.npz less.npz")
    assert (code, out.count("4 images")) == (0, 2)
    refused("check one.npz same.npz less.npz --out r.json", "take one dump to compare with")


def test_no_input_is_written_over(refused):
    Path("a.jpg").write_bytes(b"precious")
    refused("dump a.jpg --images a.jpg", "out must be a path that ends in .npz, got 'a.jpg'")
    for line in ("check one.npz less.npz --out", "coco one.npz less.npz --out", "gate one.npz less.npz --report"):
        before = Path("less.npz").read_bytes()
        refused(f"{line} ./less.npz", f"{line.split()[-1]} must not be a file that is compared, got 'less.npz'")
        assert Path("less.npz").read_bytes() == before


def test_gate(parity, refused):
    for name in ("true", "again"):
        truthful(name).save(f"{name}.npz")
    limits = "--max-unmatched 0.05 --max-dconf 0.001"
    code, out, err = parity(f"gate true.npz again.npz {limits} --max-dap 0.01 --report page.html")
    assert (code, out.count("kept: "), "BROKEN" in out) == (0, 4, False)
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in err
    code, out, _ = parity(f"gate one.npz less.npz {limits}")
    assert code == 1
    assert "BROKEN: share of detections without a counterpart 0.08333, limit 0.05" in out
    refused("gate one.npz less.npz", "at least one of max_unmatched")
    refused("gate one.npz one.npz --max-dap 0.1", "must have different names, both are 'one'")


def test_coco_takes_dumps_and_other_programs_results(parity, refused):
    Path("theirs.json").write_text(json.dumps(dump().to_annotations(STREETS.truth())))
    code, out, _ = parity("coco one.npz less.npz theirs.json --out r.json")
    assert code == 0
    rows = json.loads(Path("r.json").read_text())["measurements"]
    assert [row["variant"] for row in rows[:3]] == ["one", "less", "theirs"]
    assert rows[0]["metrics"] == rows[2]["metrics"]
    assert "theirs" in out
    refused("coco theirs.json", "--coco-dir must name a data set")
    refused("coco one.npz one.npz", "results must have different names, got 'one' twice")


def test_coco_dir(parity, refused):
    traffic.write_coco(Path("set"), images=2, size_hw=(96, 160))
    assert parity("dump a.npz --coco-dir set --device cpu")[0] == 0
    code, out, _ = parity("coco a.npz --coco-dir set")
    assert (code, "segm" in out) == (0, True)
    refused("dump b.npz --coco-dir set --images .", "--images and --coco-dir must not both be given")


def test_nothing_compared_is_never_kept(parity, refused):
    for name in ("none", "nothing"):
        dump(name, [detections(())] * 4).save(f"{name}.npz")
    message = "must have detections to compare, 'none' and 'nothing' have none on 4 images; a lower --threshold"
    refused("gate none.npz nothing.npz --max-unmatched 0.1", message)
    code, out, err = parity("check none.npz nothing.npz")
    assert (code, "must have detections to compare" in out, "note: the dumps must have" in err) == (0, True, True)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "2"])
def test_limits_that_are_none(value, refused):
    for command in ("gate --max-dconf", "gate --max-unmatched", "gate --max-dap", "check --confidence"):
        refused(f"{command}={value} one.npz same.npz", f"maskjet: {command.split()[1]} must be 0..1, got ")


def test_gate_compares_like_with_like(parity, refused):
    dump("higher", variant={**dump("b").variant, "threshold": 0.3}).save("b.npz")
    refused("gate one.npz b.npz --max-dconf 1", "must be of one threshold, 'one' has 0.05 and 'b' 0.3")
    dump("b", [detections(class_names={0: "bus", 1: "truck"})] * 4).save("b.npz")
    message = "must be of the same classes, class 0 is 'car' in 'one' and 'bus' in 'b'"
    refused("gate one.npz b.npz --max-dconf 1", message)
    code, _, err = parity("check one.npz b.npz")
    assert (code, "note: the dumps must be of the same classes" in err) == (0, True)


def test_no_path_in_a_dump_is_opened(parity, refused):
    Path("images").mkdir()
    for number, (_, image) in enumerate(IMAGES):
        cv2.imwrite(f"images/{number}.png", image[..., ::-1])
    files = {"kind": "files", "source": "/nowhere"}
    dump(images=files).save("a.npz")
    dump("b", [FAULTS["dropped"]], images=files).save("b.npz")
    for command in ("check a.npz b.npz --pictures p", "gate a.npz b.npz --max-dconf 1 --report page.html"):
        refused(command, "--images must be given again")
        assert parity(f"{command} --images images")[0] == 0
    assert Path("page.html").exists()
    assert Path("p/worst_01.png").exists()
    refused("coco a.npz b.npz", "--coco-dir must name a data set")
    dump(images={"kind": "coco", "folder": "/etc"}).save("a.npz")
    for command in ("coco a.npz", "gate a.npz b.npz --max-dap 0.1"):
        refused(command, "--coco-dir must be given again")


def test_skipped_images_are_told(parity):
    Path("images").mkdir()
    cv2.imwrite("images/1.png", IMAGES[0][1])
    Path("images/2.png").write_bytes(b"no image")
    code, _, err = parity("dump a.npz --images images --device cpu --threshold 0")
    assert (code, "2.png' is corrupt" in err, "on 1 images to" in err, ", 1 skipped" in err) == (0, *[True] * 3)


def test_numbers_that_differ_from_the_truth_are_told(parity):
    content = {"annotations": dump().to_annotations(STREETS.truth()), "categories": [{"id": 1, "name": "truck"}]}
    Path("theirs.json").write_text(json.dumps(content))
    code, out, err = parity("coco one.npz theirs.json --out r.json")
    notes = "".join(json.loads(Path("r.json").read_text())["notes"])
    for text in (out, err, notes):
        assert "results['theirs'] has other categories than the truth: 1 is 'truck', in the truth 'car'." in text
    assert code == 0

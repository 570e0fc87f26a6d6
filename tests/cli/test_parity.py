"""maskjet parity on the command line."""

import json
from functools import partial

import cv2
import pytest

from maskjet import traffic
from tests.cli.command_line import call
from tests.parity.dumps import FAULTS, IMAGES, STREETS, detections, dump, truthful


@pytest.fixture
def maskjet(capsys):
    """Exit code, stdout, stderr of the command line within this process."""

    return partial(call, capsys, "maskjet", "parity")


@pytest.fixture
def dumps(tmp_path):
    """The same twice, and with a detection dropped."""
    found = {"one": None, "same": None, "less": [FAULTS["dropped"]]}
    for name, first in found.items():
        dump(name, first).save(tmp_path / f"{name}.npz")
    return {name: tmp_path / f"{name}.npz" for name in found}


def test_dump_and_check(maskjet, tmp_path):
    streets = ("--count", 2, "--size", "160x96", "--device", "cpu")
    code, out, err = maskjet("dump", tmp_path / "a.npz", *streets)
    assert (code, out) == (0, "")
    assert "detections on 2 images to" in err
    code, _, _ = maskjet(
        "dump", tmp_path / "b.npz", *streets, "--implementation", "preprocess=reference", "--name", "b"
    )
    assert code == 0
    code, out, err = maskjet(
        "check", tmp_path / "a.npz", tmp_path / "b.npz", "--out", tmp_path / "r.json", "--confidence", 0.4
    )
    assert code == 0
    assert "2 images: " in out
    report = json.loads((tmp_path / "r.json").read_text())
    assert [m["confidence"] for m in report["measurements"]] == [0.05, 0.4]
    assert (report["expected"]["name"], report["actual"]["name"]) == ("a", "b")


def test_a_difference_is_no_error_in_check(maskjet, dumps, tmp_path):
    code, out, _ = maskjet("check", dumps["one"], dumps["less"], "--pictures", tmp_path / "p")
    assert code == 0
    assert "dropped: car 0.50" in out
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["worst_01.png"]
    code, out, _ = maskjet("check", dumps["one"], dumps["same"], dumps["less"])
    assert (code, out.count("4 images")) == (0, 2)
    code, _, err = maskjet("check", dumps["one"], dumps["same"], dumps["less"], "--out", tmp_path / "r.json")
    assert (code, "take one dump to compare with" in err) == (2, True)


def test_gate(maskjet, dumps, tmp_path):
    for name in ("true", "again"):
        truthful(name).save(tmp_path / f"{name}.npz")
    limits = ("--max-unmatched", 0.05, "--max-dconf", 0.001, "--resamples", 0)
    same = (tmp_path / "true.npz", tmp_path / "again.npz")
    code, out, err = maskjet("gate", *same, *limits, "--max-dap", 0.01, "--report", tmp_path / "page.html")
    assert (code, out.count("kept: "), "BROKEN" in out) == (0, 4, False)
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert "page.html" in err
    code, out, _ = maskjet("gate", dumps["one"], dumps["less"], *limits)
    assert code == 1
    assert "BROKEN: share of detections without a counterpart 0.08333, limit 0.05" in out
    code, _, err = maskjet("gate", dumps["one"], dumps["less"])
    assert (code, "at least one of max_unmatched" in err) == (2, True)
    code, _, err = maskjet("gate", dumps["one"], dumps["one"], "--max-dap", 0.1)
    assert (code, "must have different names, both are 'one'" in err) == (2, True)


def test_coco_takes_dumps_and_other_programs_results(maskjet, dumps, tmp_path):
    (tmp_path / "theirs.json").write_text(json.dumps(dump().to_coco(STREETS.truth())))
    code, out, _ = maskjet(
        "coco", dumps["one"], dumps["less"], tmp_path / "theirs.json", "--resamples", 2, "--out", tmp_path / "r.json"
    )
    assert code == 0
    rows = json.loads((tmp_path / "r.json").read_text())["measurements"]
    assert [row["variant"] for row in rows[:3]] == ["one", "less", "theirs"]
    assert rows[0]["ap"] == rows[2]["ap"]
    assert "theirs" in out
    code, _, err = maskjet("coco", tmp_path / "theirs.json")
    assert (code, "--coco-dir must name a data set" in err) == (2, True)
    code, _, err = maskjet("coco", dumps["one"], dumps["one"])
    assert (code, "results must have different names, got 'one' twice" in err) == (2, True)


def test_coco_dir(maskjet, tmp_path):
    traffic.write_coco(tmp_path / "set", images=2, size_hw=(96, 160))
    where = ("--coco-dir", tmp_path / "set")
    code, _, _ = maskjet("dump", tmp_path / "a.npz", *where, "--device", "cpu")
    assert code == 0
    code, out, _ = maskjet("coco", tmp_path / "a.npz", *where)
    assert (code, "segm" in out) == (0, True)
    code, _, err = maskjet("dump", tmp_path / "b.npz", *where, "--images", tmp_path)
    assert (code, "--images and --coco-dir must not both be given" in err) == (2, True)


FILES = {"kind": "files", "source": "/nowhere"}


def test_nothing_compared_is_never_kept(maskjet, tmp_path):
    for name in ("one", "two"):
        dump(name, [detections(())] * 4).save(tmp_path / f"{name}.npz")
    pair = (tmp_path / "one.npz", tmp_path / "two.npz")
    code, out, err = maskjet("gate", *pair, "--max-unmatched", 0.1)
    assert (code, out) == (2, "")
    assert "must have detections to compare, 'one' and 'two' have none on 4 images; a lower --threshold" in err
    code, out, err = maskjet("check", *pair)
    assert (code, "must have detections to compare" in out, "note: the dumps must have" in err) == (0, True, True)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "2"])
def test_limits_that_are_none(maskjet, dumps, value):
    for flag in ("--max-dconf", "--max-unmatched", "--max-dap"):
        code, out, err = maskjet("gate", dumps["one"], dumps["same"], f"{flag}={value}")
        assert (code, out, f"maskjet: {flag} must be 0..1, got " in err) == (2, "", True)
    code, _, err = maskjet("check", dumps["one"], dumps["same"], f"--confidence={value}")
    assert (code, "maskjet: --confidence must be 0..1, got " in err) == (2, True)


def test_gate_compares_like_with_like(maskjet, dumps, tmp_path):
    other = dump("other")
    dump("higher", variant={**other.variant, "threshold": 0.3}).save(tmp_path / "b.npz")
    code, _, err = maskjet("gate", dumps["one"], tmp_path / "b.npz", "--max-dconf", 1)
    assert (code, "must be of one threshold, 'one' has 0.05 and 'one' 0.3" in err.replace("other", "one")) == (2, True)
    dump("b", [detections(class_names={0: "bus", 1: "truck"})] * 4).save(tmp_path / "b.npz")
    code, _, err = maskjet("gate", dumps["one"], tmp_path / "b.npz", "--max-dconf", 1)
    assert (code, "must be of the same classes, class 0 is 'car' in 'one' and 'bus' in 'b'" in err) == (2, True)
    code, _, err = maskjet("check", dumps["one"], tmp_path / "b.npz")
    assert (code, "note: the dumps must be of the same classes" in err) == (0, True)


def test_no_path_in_a_dump_is_opened(maskjet, tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number, (_, image) in enumerate(IMAGES):
        cv2.imwrite(str(folder / f"{number}.png"), image[..., ::-1])
    dump(images=FILES).save(tmp_path / "a.npz")
    dump("b", [FAULTS["dropped"]], images=FILES).save(tmp_path / "b.npz")
    pair = (tmp_path / "a.npz", tmp_path / "b.npz")
    page = ("--max-dconf", 1, "--report", tmp_path / "page.html")
    for command in (("check", *pair, "--pictures", tmp_path / "p"), ("gate", *pair, *page)):
        code, out, err = maskjet(*command)
        assert (code, out, "--images must be given again" in err) == (2, "", True)
        assert maskjet(*command, "--images", folder)[0] == 0
    assert (tmp_path / "page.html").exists()
    assert (tmp_path / "p" / "worst_01.png").exists()
    code, _, err = maskjet("coco", *pair)
    assert (code, "--coco-dir must name a data set" in err) == (2, True)
    dump(images={"kind": "coco", "folder": "/etc"}).save(tmp_path / "a.npz")
    for command in (("coco", tmp_path / "a.npz"), ("gate", *pair, "--max-dap", 0.1)):
        code, _, err = maskjet(*command)
        assert (code, "--coco-dir must be given again" in err) == (2, True)


def test_skipped_images_are_told(maskjet, tmp_path):
    (tmp_path / "images").mkdir()
    cv2.imwrite(str(tmp_path / "images" / "1.png"), IMAGES[0][1])
    (tmp_path / "images" / "2.png").write_bytes(b"no image")
    for name in ("a", "b"):
        code, _, err = maskjet(
            "dump", tmp_path / f"{name}.npz", "--images", tmp_path / "images", "--device", "cpu", "--threshold", 0
        )
        assert (code, "2.png' is corrupt" in err, "on 1 images to" in err, ", 1 skipped" in err) == (0, *[True] * 3)
    code, out, err = maskjet("check", tmp_path / "a.npz", tmp_path / "b.npz")
    for text in (out, err):
        assert (code, "'a' is without 1 images that could not be read: image must be decodable" in text) == (0, True)


def test_numbers_that_differ_from_the_truth_are_told(maskjet, tmp_path):
    traffic.write_coco(tmp_path / "set", images=4, size_hw=(96, 160), seed=5)
    entries = [e | {"category_id": e["category_id"] - 1} for e in truthful("x").to_coco(STREETS.truth())]
    categories = [{"id": number, "name": name} for number, name in enumerate(traffic.CLASSES)]
    content = {"annotations": [entry for entry in entries if entry["category_id"]], "categories": categories}
    (tmp_path / "theirs.json").write_text(json.dumps(content))
    (tmp_path / "r.json").write_text("")
    code, out, err = maskjet(
        "coco", tmp_path / "theirs.json", "--coco-dir", tmp_path / "set", "--out", tmp_path / "r.json"
    )
    notes = "".join(json.loads((tmp_path / "r.json").read_text())["notes"])
    for text in (out, err, notes):
        assert "results['theirs'] has other categories than the truth: 1 is 'truck', in the truth 'car'; " in text
        assert "category ids 1 below the truth's" in text
    assert code == 0

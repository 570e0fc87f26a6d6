"""maskjet parity on the command line, and the records that maskjet run writes for it."""

import json
from pathlib import Path

import cv2
import pytest

from maskjet import traffic
from maskjet.parity.record import read_record
from tests.parity.records import FAULTS, IMAGES, detections, record

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _records(tmp_path, monkeypatch):
    """The working directory, with the same record under two names, and one where a detection is dropped."""
    monkeypatch.chdir(tmp_path)
    for name, first in {"one": None, "same": None, "less": [FAULTS["dropped"]]}.items():
        record(f"{name}.jsonl", first)
    Path("images").mkdir()
    for number, (_, image) in enumerate(IMAGES):
        cv2.imwrite(f"images/{number}.png", image[..., ::-1])


@pytest.fixture
def gate(maskjet):
    """Exit code, stdout, stderr of maskjet parity gate."""
    return lambda line: maskjet(f"parity gate {line}")


@pytest.fixture
def refused(gate):
    """Runs what is wrong usage, of which the message is told."""

    def call_it(line, message):
        code, out, err = gate(line)
        assert (code, out, message in err) == (2, "", True), err

    return call_it


def test_two_runs_are_recorded_and_compared(maskjet, gate):
    Path("images/4.png").write_bytes(b"no image")
    Path("images/2.png").write_bytes(b"")
    run = "run images --record --device cpu --threshold 0.2,car=0.1 --every 1"
    code, _, err = maskjet(f"{run} -o a.jsonl")
    assert (code, "wrote a.jsonl" in err) == (0, True)
    assert maskjet(f"{run} --resample cv2 -o b.jsonl -o plain.csv")[0] == 0
    assert maskjet(f"{run.replace(' --record', '')} -o plain.jsonl")[0] == 0
    made = read_record(Path("a.jsonl"))
    assert [each.index for each in made.images] == [0, 1, 3]
    assert [reason.count(f"{n}.png") for reason, n in zip(made.skipped, (2, 4), strict=True)] == [1, 1]
    assert made.thresholds["car"] == 0.1 < made.thresholds["bus"] == 0.2
    about = made.about
    assert (about["model"], len(about["weights"]), about["config"]["device"], about["config"]["precision"]) == (
        *("demo", 16, "cpu", "fp32"),
    )
    assert about["machine"]["versions"]["torch"]
    assert about["config"]["decoder"] == "cpu"  # so that other machines get these digests
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()[1:-1]]
    assert all(len(line.pop("digest")) == 16 for line in lines)
    assert lines == [json.loads(line) for line in Path("plain.jsonl").read_text().splitlines()]
    code, out, err = gate("a.jsonl b.jsonl --check --confidence 0.4 --images images --report page.html -o r.json")
    assert (code, "3 images: " in out, "'a' is without 2 images" in err) == (0, True, True)
    assert Path("page.html").read_text().startswith("<!doctype html>")
    comparison = json.loads(Path("r.json").read_text())["comparison"]
    assert [m["confidence"] for m in comparison["measurements"]] == [0.1, 0.4]
    assert (comparison["expected"]["name"], comparison["actual"]["config"]["resample"]) == ("a", "cv2")


def test_each_source_has_a_record_of_its_own(maskjet):
    for name in "ab":
        traffic.write_video(f"{name}.mp4", size_hw=(96, 160), frames=2)
    assert maskjet("run a.mp4 b.mp4 --record --device cpu -o out/{}.jsonl")[0] == 0
    names = [[image.name for image in read_record(Path(f"out/{name}.jsonl")).images] for name in "ab"]
    assert names == [["a.mp4#0", "a.mp4#1"], ["b.mp4#0", "b.mp4#1"]]
    for outs in ("-o all.jsonl", "-o -", "-o {}.csv"):
        code, _, err = maskjet(f"run a.mp4 b.mp4 --record --device cpu {outs}")
        assert (code, "--record must go with a .jsonl file for each source" in err or "{}" in err) == (2, True), err
    assert maskjet("run a.mp4 --record --device cpu -o -")[0] == 2


def test_a_run_that_is_broken_off_leaves_no_whole_record(maskjet, gate, monkeypatch):
    monkeypatch.setattr("maskjet.outputs.lines.RecordLines._finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        maskjet("run images --record --device cpu -o a.jsonl")
    code, _, err = gate("a.partial.jsonl one.jsonl --check")
    assert (code, "it is cut off: its last line is missing" in err) == (3, True)


def test_limits(gate, refused):
    limits = "--max-unmatched 0.05 --max-dconf 0.001"
    code, out, _ = gate(f"one.jsonl same.jsonl {limits}")
    assert (code, out.count("kept: "), "BROKEN" in out, "nothing differs" in out) == (0, 2, False, True)
    code, out, _ = gate(f"one.jsonl less.jsonl {limits}")
    assert (code, "dropped: car 0.50" in out) == (1, True)
    assert "BROKEN: share of detections without a counterpart 0.08333, limit 0.05" in out
    code, out, _ = gate("one.jsonl less.jsonl --check")
    assert (code, "dropped: car 0.50" in out) == (0, True)
    refused("one.jsonl less.jsonl", "at least one of max_unmatched")
    refused("one.jsonl same.jsonl --max-dap 0.1", "--max-dap must go with annotations")
    for flag, value in ("--max-dconf", "nan"), ("--max-unmatched", "-0.1"), ("--max-dap", "2"), ("--confidence", "2"):
        refused(f"one.jsonl same.jsonl --check {flag}={value}", f"maskjet: {flag} must be 0..1, got ")


def test_no_input_is_written_over(refused):
    for flag in ("--out", "--report"):
        before = Path("less.jsonl").read_bytes()
        refused(f"one.jsonl less.jsonl --check --images images {flag} ./less.jsonl", f"{flag} must not be a file that")
        assert Path("less.jsonl").read_bytes() == before
    refused("one.jsonl ./one.jsonl --check", "actual must be another file than expected")


def test_scores_on_annotations(maskjet, gate):
    traffic.write_coco(Path("set"), images=2, size_hw=(96, 160))
    for name in ("a/found", "b/found"):
        assert maskjet(f"run set/images --record --device cpu --threshold 0.05 -o {name}.jsonl")[0] == 0
    code, out, _ = gate("a/found.jsonl b/found.jsonl --annotations set --max-dap 0.01 -o r.json")
    assert (code, out.count("mAP")) == (0, 2) or "of which both have none" in out
    precision = json.loads(Path("r.json").read_text())["precision"]
    names = [m["variant"] for m in precision["measurements"]]
    assert names == ["a/found.jsonl", "b/found.jsonl"] * 2  # as their stems are the same
    path = Path("set/annotations.json")
    path.write_text(path.read_text().replace('"name": "car"', '"name": "Automobile"'))
    _, _, err = gate("a/found.jsonl b/found.jsonl --annotations set --check")
    assert "has detections of classes that the annotations lack, left out: car" in err or "car" not in out


def test_nothing_compared_is_never_kept(gate, refused):
    for name in ("none", "nothing"):
        record(f"{name}.jsonl", [detections(())] * 4)
    message = "must have detections to compare, 'none' and 'nothing' have none on 4 images; a lower --threshold"
    refused("none.jsonl nothing.jsonl --max-unmatched 0.1", message)
    code, out, err = gate("none.jsonl nothing.jsonl --check")
    assert (code, message in out, f"note: records {message}" in err) == (0, True, True)


def test_like_is_compared_with_like(gate, refused):
    record("b.jsonl", threshold=0.3)
    refused("one.jsonl b.jsonl --max-dconf 1", "must be of the same thresholds, car is 0.05 in 'one' and 0.3 in 'b'")
    record("b.jsonl", classes={0: "bus", 1: "truck"})
    refused("one.jsonl b.jsonl --max-dconf 1", "must be of the same thresholds, car is 0.05 in 'one' and None in 'b'")
    record("b.jsonl", images=IMAGES[::-1])
    refused("one.jsonl b.jsonl --check", "must be of the same images, number 0 is not")
    record("b.jsonl", classes={0: "truck", 1: "car"})
    code, _, err = gate("one.jsonl b.jsonl --check")
    assert (code, "note: records must be of the same classes, 0 is 'car' in 'one' and 'truck'" in err) == (0, True)


def test_no_path_in_a_record_is_opened(gate, refused):
    line = "one.jsonl less.jsonl --check --report page.html"
    refused(line, "--report must go with --images")
    refused(f"{line} --images images/1.png", "--images must be those of the records, 'street 5' has other pixels")
    code, _, err = gate(f"{line} --images images")
    assert (code, "wrote page.html" in err) == (0, True)


def test_what_is_no_record_is_told(gate):
    Path("a.jsonl").write_text('{"index": 0}\n')
    code, out, err = gate("a.jsonl one.jsonl --check")
    assert (code, out) == (3, "")
    assert "maskjet: 'a.jsonl' must be a record that maskjet run --record wrote, it is not: its first line" in err
    for words, message in (
        ("nowhere.jsonl one.jsonl", "'nowhere.jsonl' must be a record, there is no such file"),
        ("one.jsonl less.jsonl --annotations images", "--annotations must be a folder with"),
        ("one.jsonl less.jsonl --images nowhere --report page.html", "--images must exist, 'nowhere' does not"),
    ):
        code, _, err = gate(f"{words} --check")
        assert (code, message in err) == (3, True), err

"""The study: every variant that can run here, on few streets; resumed, and compared elsewhere."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from benchmarks import study
from benchmarks.peers.pipeline import PeerVariant
from maskjet.config import EngineConfig
from maskjet.errors import SourceError
from maskjet.model import read_network
from maskjet.parity.dump import write_dump
from tests.parity.dumps import STREETS, detections

VARIANTS = ("fp32", "preprocess: reference", "postprocess: reference", "preprocess: cv2 itself", "fp16")
SIZE = (96, 160)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    notes = study.dump(path, only=["demo"], variants=VARIANTS, images=3, size_hw=SIZE)
    study.compare(path, images=3, size_hw=SIZE, notes=notes)
    return path


@pytest.mark.slow
def test_each_question_is_answered_where_its_variants_can_run(folder):
    report = json.loads((folder / "study.json").read_text())
    (part,) = report["parts"]
    assert (part["name"], part["images"]) == ("demo", 3)
    found = {(r["expected"]["name"], r["actual"]["name"]): r for answer in part["answers"] for r in answer["reports"]}
    pairs = {pair for question in study.DEMO.questions for pair in question.pairs}
    has_fp16 = torch.cuda.is_available()
    there = {name for name in VARIANTS if name != "fp16" or has_fp16}
    assert found.keys() == {pair for pair in pairs if set(pair) <= there}
    assert has_fp16 or any("demo, fp16 left out: precision='fp16' needs a GPU" in note for note in report["notes"])
    assert {m["variant"] for m in part["precision"]["measurements"]} == there
    assert report["runs"]["demo"]["fp32"]["versions"]["torch"] == torch.__version__
    same, resampled = found["postprocess: reference", "fp32"], found["preprocess: cv2 itself", "fp32"]
    assert same["images"] == same["same_images"] == 3 > resampled["same_images"]
    assert same["measurements"][0]["matched"] == same["measurements"][0]["equal_strings"] > 10
    precision = {(m["variant"], m["kind"]): m for m in part["precision"]["measurements"]}
    assert precision["fp32", "segm"]["metrics"]["ap"] > 0.2
    assert precision["postprocess: reference", "segm"]["deltas"]["ap"] == 0
    assert abs(precision["preprocess: cv2 itself", "segm"]["deltas"]["ap"]) < 0.02


def test_what_is_there_is_not_made_again(folder, monkeypatch):
    ticks = []
    monkeypatch.setattr(study, "write_dump", None)  # calling it would fail
    chosen = {"only": ["demo"], "variants": VARIANTS[:3], "images": 3}
    assert study.dump(folder, **chosen, size_hw=SIZE, on_progress=lambda: ticks.append(1)) == []
    assert len(ticks) == study.steps(**chosen) == 9


def test_what_is_not_there_is_not_compared(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "demo")
    (tmp_path / "demo" / "fp32.npz").unlink()
    report = study.compare(tmp_path, images=3, size_hw=SIZE)
    assert str(report).count("preprocess: cv2 itself") >= 2
    pairs = [(r.expected["name"], r.actual["name"]) for part in report.parts for a in part.answers for r in a.reports]
    assert pairs == [("preprocess: reference", "preprocess: cv2 itself")]
    shutil.copy(folder / "demo" / "fp32.npz", tmp_path / "demo" / "preprocess_reference.npz")
    with pytest.raises(SourceError, match=r"must be a dump of .'preprocess: reference'.*, got one of .'fp32'"):
        study.compare(tmp_path, images=3, size_hw=SIZE)
    with pytest.raises(SourceError, match=r"must be a dump of .*'count': 4.*, got one of .*'count': 3"):
        study.compare(folder, images=4, size_hw=SIZE)
    (tmp_path / "demo" / "preprocess_reference.npz").write_bytes(b"")
    with pytest.raises(SourceError, match="must be a dump"):
        study.compare(tmp_path, images=3, size_hw=SIZE)


def test_another_programs_pipeline_is_dumped(tmp_path):
    made, network = [], read_network("demo")

    def build(weights, spec, device, threshold):
        made.append((set(weights) == set(network.state_dict()), spec.name, device.type, threshold))
        return SimpleNamespace(detect=lambda image: detections(size_hw=image.shape[:2]))

    peer = PeerVariant("one", EngineConfig(device="cpu"), program="theirs", build=build)
    found = write_dump(tmp_path / "one.npz", peer, network, STREETS)
    assert made == [(True, network.spec.name, "cpu", 0.05)]
    assert (found.variant["program"], len(found.found[0])) == ("theirs", 3)

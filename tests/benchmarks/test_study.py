"""The study: every variant that can run here, on few streets; resumed, and compared elsewhere."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from benchmarks import study
from benchmarks.peers.pipeline import PeerVariant
from benchmarks.variants import write_variant
from maskjet.config import EngineConfig
from maskjet.errors import SourceError
from maskjet.model import read_network
from maskjet.parity.record import read_record
from tests.parity.records import IMAGES, detections

VARIANTS = ("fp32", "preprocess: reference", "postprocess: reference", "preprocess: cv2 itself", "fp16")
SIZE = (96, 160)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    notes = study.record(path, only=["demo"], variants=VARIANTS, images=3, size_hw=SIZE)
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
    assert all(r["actual"]["machine"]["versions"]["torch"] == torch.__version__ for r in found.values())
    same, resampled = found["postprocess: reference", "fp32"], found["preprocess: cv2 itself", "fp32"]
    assert same["images"] == same["same_images"] == 3 > resampled["same_images"]
    assert same["measurements"][0]["matched"] == same["measurements"][0]["equal_strings"] > 10
    precision = {(m["variant"], m["kind"]): m for m in part["precision"]["measurements"]}
    assert precision["fp32", "segm"]["metrics"]["ap"] > 0.2
    assert precision["postprocess: reference", "segm"]["deltas"]["ap"] == 0
    assert abs(precision["preprocess: cv2 itself", "segm"]["deltas"]["ap"]) < 0.02


def test_what_is_there_is_not_made_again(folder, monkeypatch):
    ticks = []
    monkeypatch.setattr(study, "write_variant", None)  # calling it would fail
    chosen = {"only": ["demo"], "variants": VARIANTS[:3], "images": 3}
    assert study.record(folder, **chosen, size_hw=SIZE, on_progress=lambda: ticks.append(1)) == []
    assert len(ticks) == study.steps(**chosen) == 9


def test_what_is_not_there_is_not_compared(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "demo")
    (tmp_path / "demo" / "fp32.jsonl").unlink()
    report = study.compare(tmp_path, images=3, size_hw=SIZE)
    assert str(report).count("preprocess: cv2 itself") >= 2
    pairs = [(r.expected["name"], r.actual["name"]) for part in report.parts for a in part.answers for r in a.reports]
    assert pairs == [("preprocess: reference", "preprocess: cv2 itself")]
    shutil.copy(folder / "demo" / "fp32.jsonl", tmp_path / "demo" / "preprocess_reference.jsonl")
    with pytest.raises(SourceError, match=r"must be a record of 'preprocess: reference' on 3 streets"):
        study.compare(tmp_path, images=3, size_hw=SIZE)
    with pytest.raises(SourceError, match=r"must be a record of .* on 4 streets from 'street 20000000' on"):
        study.compare(folder, images=4, size_hw=SIZE)
    (tmp_path / "demo" / "preprocess_reference.jsonl").write_bytes(b"")
    with pytest.raises(SourceError, match="must be a record"):
        study.compare(tmp_path, images=3, size_hw=SIZE)


def test_another_programs_pipeline_is_recorded(tmp_path):
    made, network = [], read_network("demo")

    def build(weights, spec, device, threshold):
        made.append((set(weights) == set(network.state_dict()), spec.name, device.type, threshold))
        return SimpleNamespace(detect=lambda image: detections(size_hw=image.shape[:2]))

    peer = PeerVariant("one", EngineConfig(device="cpu"), program="theirs", build=build)
    write_variant(tmp_path / "1.jsonl", peer, network, IMAGES)
    found = read_record(tmp_path / "1.jsonl")
    assert made == [(True, network.spec.name, "cpu", 0.05)]
    assert (found.name, found.about["program"], len(found.images[0].found)) == ("one", "theirs", 3)

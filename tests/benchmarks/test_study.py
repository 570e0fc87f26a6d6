"""The study: every variant that can run here, on few streets; resumed, and compared elsewhere."""

import json
import shutil

import pytest
import torch

from benchmarks import study
from maskjet.errors import InputError, OutputError, SourceError
from maskjet.parity.dump import Dump

VARIANTS = ("fp32", "preprocess: reference", "postprocess: reference", "preprocess: cv2 itself", "fp16")
SIZE = (96, 160)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    notes = study.dump(path, only=["demo"], variants=VARIANTS, images=3, size_hw=SIZE)
    study.compare(path, images=3, size_hw=SIZE, resamples=5, notes=notes)
    return path


def test_each_question_is_answered_where_its_variants_can_run(folder):
    report = json.loads((folder / "study.json").read_text())
    (part,) = report["parts"]
    assert (part["name"], part["images"]) == ("demo", 3)
    compared = {
        (found["expected"]["name"], found["actual"]["name"])
        for answer in part["answers"]
        for found in answer["reports"]
    }
    pairs = {pair for question in study.DEMO.questions for pair in question.pairs}
    has_fp16 = torch.cuda.is_available()
    there = {name for name in VARIANTS if name != "fp16" or has_fp16}
    assert compared == {pair for pair in pairs if set(pair) <= there}
    assert has_fp16 or any("demo, fp16 left out: precision='fp16' needs a GPU" in note for note in report["notes"])
    assert {m["variant"] for m in part["precision"]["measurements"]} == there
    assert report["runs"]["demo"]["fp32"]["versions"]["torch"] == torch.__version__


def test_implementations_agree_and_resamplers_do_not(folder):
    ticks = []
    report = study.compare(folder, images=3, size_hw=SIZE, resamples=0, on_progress=lambda: ticks.append(1))
    (part,) = report.parts
    found = {(r.expected["name"], r.actual["name"]): r for answer in part.answers for r in answer.reports}
    assert len(ticks) >= 3 * len(found)
    same = found["postprocess: reference", "fp32"]
    assert same.images == same.same_images == 3
    m = same.measurements[0]
    assert m.matched == m.equal_strings > 10
    assert found["preprocess: cv2 itself", "fp32"].same_images < 3


def test_what_is_there_is_not_made_again(folder, monkeypatch):
    ticks = []
    monkeypatch.setattr(study, "write_dump", None)  # calling it would fail
    chosen = {"only": ["demo"], "variants": VARIANTS[:3], "images": 3}
    assert study.dump(folder, **chosen, size_hw=SIZE, on_progress=lambda: ticks.append(1)) == []
    assert len(ticks) == study.steps(**chosen) == 9


def test_what_is_not_there_is_not_compared(folder, tmp_path):
    shutil.copytree(folder / "demo", tmp_path / "demo")
    (tmp_path / "demo" / "fp32.npz").unlink()
    report = study.compare(tmp_path, images=3, size_hw=SIZE, resamples=0)
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


@pytest.mark.slow
def test_fifty_images(tmp_path):
    study.dump(tmp_path, only=["demo"], variants=VARIANTS[:4], images=50, size_hw=SIZE)
    (part,) = study.compare(tmp_path, images=50, size_hw=SIZE, resamples=20).parts
    found = {(r.expected["name"], r.actual["name"]): r for answer in part.answers for r in answer.reports}
    same = found["postprocess: reference", "fp32"]
    assert same.images == same.same_images == 50
    resampled = found["preprocess: cv2 itself", "fp32"].measurements[-1]
    assert resampled.matched > 300
    assert resampled.share > 0.98
    precision = {(m.variant, m.kind): m for m in part.precision.measurements}
    assert precision["fp32", "segm"].ap > 0.2
    assert precision["postprocess: reference", "segm"].delta == 0
    assert abs(precision["preprocess: cv2 itself", "segm"].delta) < 0.02


def test_every_question_is_about_variants_that_there_are():
    for part in study.PARTS.values():
        names = [variant.name for variant in part.variants]
        assert len(set(names)) == len(names)
        assert {name for question in part.questions for pair in question.pairs for name in pair} <= set(names)


def test_unknown_names_are_named(tmp_path):
    with pytest.raises(InputError, match="only and variants must name parts and variants of the study, got moon, sun"):
        study.dump(tmp_path, only=["moon"], variants=["sun"])
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must be writable"):
        study.compare(tmp_path / "file")


@pytest.mark.slow  # Nano at its full size, planted on eight images, and rfdetr's
def test_nano_runs_too(tmp_path):
    variants = ["fp32, one by one", "rfdetr predict(), no TF32"]
    study.dump(tmp_path, only=["nano"], variants=variants, images=8, size_hw=SIZE)
    (part,) = study.compare(tmp_path, images=8, size_hw=SIZE).parts
    assert part.precision is None
    (found,) = [report for answer in part.answers for report in answer.reports]
    assert found.measurements[0].matched > 100
    assert found.measurements[0].share > 0.99
    assert found.measurements[0].confidence_difference.max < 1e-3
    dump = Dump.load(tmp_path / "nano" / "rfdetr_predict_no_TF32.npz")
    assert dump.variant["program"] == "rfdetr_ieee"


def test_images_are_kept_as_they_were_read():
    streets = study.Traffic(3, SIZE)
    kept = study.KeptImages(streets)
    expected = list(streets.read(1))
    for _ in range(2):
        assert [name for name, _ in kept.read(1)] == [name for name, _ in expected]
        assert all((image == other).all() for (_, image), (_, other) in zip(kept.read(1), expected, strict=True))
    assert (kept.length, kept.describe()) == (3, streets.describe())
    assert kept.truth() == streets.truth()

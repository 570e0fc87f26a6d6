"""maskjet bench on the command line, and what it measures."""

import json

import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.evaluation import speed
from maskjet.model import Model, load, read_network
from maskjet.sources.frames import open_source

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    for name, value in {"_BUDGET_S": 0.05, "_RUNS": 1, "_WARM_UP": 2, "_IN_MEMORY": 4, "_PROFILED": 2}.items():
        monkeypatch.setattr(speed, name, value)


def test_json_has_everything(maskjet, clip):
    code, out, err = maskjet("bench", clip, "--device", "cpu", "--frames", 3, "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert [m["depth"] for m in report["measurements"]] == [1, 2, 4]
    assert all(m[name] > 0 for m in report["measurements"] for name in ("fps", "memory_fps"))
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    assert (report["frames"], report["size_hw"], report["model"]["model"]) == (3, [96, 160], "demo")
    assert (report["copy_ms"], report["gpu_ms"], report["host_ms"]) == (None, None, report["p50_ms"])
    assert report["decode_ms"] > 0
    assert report["launches"] is report["waits"] is None
    assert report["machine"]["versions"]["torch"] == torch.__version__


def test_text_says_what_has_no_meaning_on_a_cpu(maskjet, clip):
    code, out, err = maskjet("bench", clip, "--device", "cpu", "--precision", "fp32")
    assert (code, err) == (0, "")
    assert "street.mp4, 160 × 96, " in out
    assert "demo on cpu" in out
    assert ", fp32, step by step" in out
    assert "copy -, GPU -, host " in out
    assert "On a CPU there are no copies, launches or waits" in out
    assert "Without graphs frames do not overlap" in out


def test_what_is_found_is_counted(clip):
    with load("demo", device="cpu", input_size=(120, 120)) as model:
        seen = []
        report = speed.measure_source(str(clip), model, frames=1, on_progress=lambda: seen.append(1))
        with open_source(clip) as frames:
            found = len(model.predict(next(iter(frames)).image))
    assert len(seen) == len(speed.DEPTHS)
    assert report.detections == found > 0


def test_frames_in_memory_are_bounded(clip, monkeypatch):
    monkeypatch.setattr(speed, "_MOST_BYTES", 2 * 96 * 160 * 3)
    with load("demo", device="cpu", input_size=(120, 120)) as model:
        assert speed.measure_source(str(clip), model, frames=99).frames == 2


def test_what_is_wrong_is_named(maskjet, clip, tmp_path, monkeypatch):
    assert maskjet("bench nothing.mp4")[::2] == (3, "maskjet: source must exist, 'nothing.mp4' does not.\n")
    code, _, err = maskjet("bench", clip, "--frames", 0)
    assert (code, err.startswith("maskjet: --frames must be ")) == (2, True)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "bad.jpg").write_bytes(b"\xff\xd8")
    code, _, err = maskjet("bench", tmp_path / "images")
    assert (code, err.startswith("maskjet: source must have a frame that can be decoded")) == (3, True)
    (opened := open_source(clip)).is_live = True
    monkeypatch.setattr(speed, "open_source", lambda _: opened)
    with pytest.raises(InputError, match="source must be one that can be read again"):
        speed.measure_source(str(clip), None)


@pytest.mark.gpu
def test_on_a_gpu_launches_and_waits_are_counted(clip):
    with Model(read_network("demo"), EngineConfig(device="cuda", compile=False)) as model:
        report = speed.measure_source(str(clip), model, frames=3)
    assert (report.launches, report.waits) == (1, 0)
    assert report.copy_ms > 0
    assert report.gpu_ms > 0
    assert report.notes == []

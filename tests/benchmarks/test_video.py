"""The benchmark of videos: every contender sees the frames, is compared, and the report is written as it prints."""

import json

import pytest

from benchmarks import contenders, video
from benchmarks.chart import draw_videos
from benchmarks.peers.pipeline import Pipeline
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.model import Model
from maskjet.traffic import sample

CPU = EngineConfig(device="cpu")


@pytest.fixture(autouse=True)
def _short(monkeypatch, network):
    monkeypatch.setattr(video, "read_network", lambda *_: network)
    monkeypatch.setattr(video, "_IN_MEMORY", 3)
    monkeypatch.setattr(video, "_WARM_UP", 1)


@pytest.mark.slow
def test_every_contender_runs_every_size(tmp_path):
    only = ["eager", "kernels", "graph", "compile", "rfdetr"]
    path, sizes = tmp_path / "video.json", [(96, 160), (64, 64)]
    found = video.run(path, sizes_hw=sizes, config=CPU, frames=4, runs=1, only=only, videos=tmp_path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(found.as_dict()))
    assert [(m.size_hw, m.name) for m in found.measurements] == [
        (size, name) for size in sizes for name in ("eager", "kernels")
    ]
    for m in found.measurements:
        assert m.matched == 1
        assert m.max_confidence_difference < 1e-5
        assert m.fps > 0
        assert m.memory_fps > 0
        assert 0 < m.p50_ms <= m.p99_ms
        assert m.launches is m.gpu_busy is None
    assert {o.output for o in found.outputs} == set(video.OUTPUTS)
    assert sorted(each.name for each in tmp_path.glob("*.mp4")) == ["street_160x96_4_7.mp4", "street_64x64_4_7.mp4"]
    assert [note.split(" left out")[0] for note in found.notes] == ["graph", "compile", "rfdetr"]
    assert "it needs an NVIDIA GPU" in found.notes[0]
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.measurements) + 1 + len(found.notes) + len(found.outputs)
    pytest.importorskip("matplotlib")
    draw_videos(found.as_dict(), tmp_path / "video.png")
    assert (tmp_path / "video.png").stat().st_size > 10_000


def test_a_peer_has_a_row_with_its_own_masks_and_one_with_rle(monkeypatch, network):
    built, timed = [], []

    def build(*_):
        built.append("once")
        return Pipeline(lambda _: timed.append("masks"), lambda _: timed.append("RLE"))

    monkeypatch.setattr(contenders, "PIPELINES", {"rfdetr": build})
    rows, notes, _ = contenders.build(network, CPU, ["rfdetr", "rfdetr, masks"])
    assert ([row.name for row in rows], built, notes) == (["rfdetr", "rfdetr, masks"], ["once"], [])
    timed.clear()
    for row in rows:
        row.call(None)
    rows[1].detect(None)  # what is compared
    assert timed == ["RLE", "masks", "RLE"]


def test_a_rung_that_finds_something_else_is_an_error(monkeypatch):
    build = contenders.build

    def cheat(*args):
        built, notes, models = build(*args)
        find = built[1].detect
        monkeypatch.setattr(built[1], "detect", lambda image: find(image)[1:])
        return built, notes, models

    rungs = dict.fromkeys(("kernels",), contenders.RUNGS["kernels"])
    rungs["again"] = contenders.EngineRung("again", "", {"engine": "eager", "compile": False})
    monkeypatch.setattr(contenders, "RUNGS", rungs)
    monkeypatch.setattr(video, "build", cheat)
    with pytest.raises(MaskjetError, match="again must find exactly the same as kernels"):
        video.run(sizes_hw=[(96, 160)], config=CPU, frames=3, runs=1, only=["kernels", "again"])


def test_planted_networks_find_about_what_they_should(network):
    with Model(network, CPU) as model:
        found = sorted(len(model.predict(sample(seed=seed, size_hw=(96, 160)).image)) for seed in range(5))
    assert abs(found[2] - 6) <= 2

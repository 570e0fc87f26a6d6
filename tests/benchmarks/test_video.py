"""The benchmark of videos: every contender sees the frames, is compared, and the report is written as it prints."""

import pytest

from benchmarks import contenders, video
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

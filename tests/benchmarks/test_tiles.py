"""The benchmark of tiles, on small streets, with the peers that are installed."""

import json

import numpy as np
import pytest

from benchmarks import tiles, tiles_streets
from maskjet import load, traffic
from maskjet.errors import InputError, MaskjetError
from maskjet.tiling.merging import merge
from maskjet.traffic.dataset import annotate

OURS, NMS = "maskjet, 640", "supervision, NMS by IoU"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    ways = {**tiles.WAYS, OURS: tiles._ours(160, full=True)}
    monkeypatch.setattr(tiles, "WAYS", ways)
    monkeypatch.setattr(tiles, "_TILE", 160)


@pytest.mark.slow
def test_batches_and_threads_of_a_peer_find_the_same():
    pytest.importorskip("supervision")
    image = traffic.sample(3, size_hw=(240, 320)).image
    with load("demo", device="cpu") as model:
        one, *others = (
            tiles._supervision("non_max_merge", "IOS", **how)(image, model)()
            for how in ({}, {"batch": 2}, {"threads": 2}, {"masks": "dense"})
        )
    assert len(one) > 3
    for other in others:
        np.testing.assert_array_equal(other.confidence, one.confidence)
        assert other.rle == one.rle


@pytest.mark.slow
def test_nothing_is_timed_if_predict_and_merging_differ(monkeypatch):
    monkeypatch.setattr(tiles, "merge", lambda *given: merge(*given)[1:])
    with pytest.raises(MaskjetError, match="must equal merging tiles that are cut by hand; nothing was timed"):
        tiles.run(size="320x240", scored=1, frames=1, device="cpu", only=(OURS,))
    with pytest.raises(InputError, match="scored, less frames,"):
        tiles.run(scored=1, frames=2)


@pytest.mark.slow
def test_streets_are_scored_by_size_with_intervals(tmp_path, monkeypatch):
    monkeypatch.setattr(tiles_streets, "_RESAMPLES", 20)
    path = tmp_path / "streets.json"
    report = tiles_streets.run(path, "320x240", 160, 2)
    with load("demo", device="cpu") as model:
        scenes = [traffic.sample(7_000_000 + number, size_hw=(240, 320)) for number in range(2)]
        found = {
            way: [model.predict(scene.image, threshold=0.1, tile=tile) for scene in scenes]
            for way, tile in (("untiled", None), ("tiled", 160))
        }
    truth = [entry for number, scene in enumerate(scenes) for entry in annotate(scene, number, 1 + 100 * number)]
    for way, (segm, _) in tiles._score(found, truth, (240, 320)).items():
        for each in report.measurements:
            assert getattr(each, way) == pytest.approx(segm[each.metric])
    assert report.measurements[0].low < report.measurements[0].high
    assert json.loads(path.read_text())["streets"] == 2

"""The benchmark of images: files are as large as they should be, every part is measured or noted, none costs others."""

import os
from functools import partial
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from benchmarks import image_ways, images, trend
from benchmarks.image_files import ImageSet, coco_sizes, mean_bytes, write_set
from benchmarks.peers.pipeline import Pipeline
from maskjet.config import EngineConfig
from maskjet.errors import InputError, MaskjetError
from maskjet.sources.images import read_image

SMALL = {"few": ImageSet("few", [(96, 160)], 5, 8_000), "sizes": ImageSet("sizes", [(96, 160), (64, 80)], 4, 4_000)}


def test_files_differ_and_have_sizes_and_bytes(tmp_path):
    written = write_set(ImageSet("some", [(96, 160), (120, 90)], 40, 9_000), tmp_path / "some")
    assert len({path.read_bytes() for path in written.paths}) == 40
    assert [read_image(path).shape for path in written.paths[:3]] == [(96, 160, 3), (120, 90, 3), (96, 160, 3)]
    assert mean_bytes(written.paths) == pytest.approx(9_000, rel=0.2)
    assert list(written.paths) == sorted((tmp_path / "some").iterdir())


def test_sizes_are_as_cocos():
    sizes = coco_sizes(200)
    assert len(set(sizes)) == 200
    assert {max(size) for size in sizes} == {640}
    assert sum(width > height for height, width in sizes) > 100


@pytest.fixture
def run(monkeypatch, network):
    """Measures few images with a tiny network."""
    monkeypatch.setattr(images, "_plant", lambda *_: network)
    monkeypatch.setattr(images, "SMALL", SMALL)
    monkeypatch.setattr(trend, "_SAMPLE_S", 0.002)
    return partial(images.run, model="tiny", config=EngineConfig(device="cpu"), runs=2, seconds=0.02, long_images=64)


@pytest.mark.slow
def test_what_fails_or_has_no_time_left_is_a_note(run, monkeypatch):
    found = run(limit_s=-1.0, only=["floors", "long"], names=["few"])
    assert (found.measurements, found.long) == ([], ())
    late = [note.partition(" left out: no time is left")[0] for note in found.notes if "no time is left" in note]
    assert {"few: decoder cpu", "64 images, decoder cpu"} < set(late)
    assert "few: reading" in {each.partition(",")[0] for each in late}
    monkeypatch.setattr(image_ways, "pair", lambda *_: image_ways.Pairing(missing_confidences=[0.9]))
    found = run(only=["ways"], names=["few"])
    assert found.measurements == []
    assert found.notes == [
        "few: decoder cpu left out: MaskjetError: A stream must find what each image has alone, 0.0% match."
    ]
    with pytest.raises(InputError, match="images must be of 'few', 'sizes', got 'many'"):
        run(names=["many"])


def test_a_stream_in_another_order_is_an_error(tmp_path, network):
    written = write_set(SMALL["few"], tmp_path / "few")
    with images.Model(network, EngineConfig(device="cpu", batch=16)) as model:
        alone = [model.predict(path) for path in written.paths]
        assert image_ways.check_stream(model, written, alone)
        written.paths[0].rename(written.folder / "99999.jpg")
        with pytest.raises(MaskjetError, match="must give the files in their order"):
            image_ways.check_stream(model, written, alone)


def test_files_for_the_cpu_are_no_part_of_the_gpus_floor(tmp_path, monkeypatch, network):
    written, notes, seen = write_set(ImageSet("some", [(64, 80)], 40, 3_000), tmp_path / "some"), [], []
    first = written.paths[0].read_bytes()
    monkeypatch.setattr(image_ways, "check_jpeg", lambda data: "progressive" if data == first else data)
    monkeypatch.setattr(image_ways, "load_decoder", lambda _: SimpleNamespace(decode=seen.append))
    with images.Model(network, EngineConfig(device="cpu", batch=16)) as model:
        ways = image_ways.floors(model, written, notes)
    found = ways["the GPU's decoder, groups of 32, 2 threads"](0.0)
    assert seen == [[path.read_bytes() for path in written.paths[1:33]]]
    assert found.images == 32
    assert notes == ["some: 1 of 40 files are for the CPU's decoder"]
    assert ways[f"check_jpeg, {len(os.sched_getaffinity(0))} threads"](0.0).images == 40


def test_peers_see_rgb(tmp_path, monkeypatch, network):
    pytest.importorskip("supervision")
    written = write_set(SMALL["few"], tmp_path / "few")
    seen = []
    with images.Model(network, EngineConfig(device="cpu", batch=16)) as model:
        peers = image_ways.Peers(network, model)
        monkeypatch.setattr(image_ways.Peers, "_pipeline", lambda _: Pipeline(seen.append, seen.append))
        for way in ("rfdetr: PIL, predict, masks", "supervision: cv2.imread, rfdetr, RLE"):
            peers.ways(written)[way](0.0)
    expected = cv2.cvtColor(cv2.imread(str(written.paths[0])), cv2.COLOR_BGR2RGB)
    assert [np.array_equal(np.asarray(image), expected) for image in seen] == [True, True]


def test_the_busiest_seconds_of_a_job():
    assert images._busiest([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 4.0, 12.0, 12.0]) == 6.0
    assert images._busiest([0.0, 1.0], [0.0, 9.0]) == 0.0

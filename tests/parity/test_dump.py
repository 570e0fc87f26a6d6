"""Dumps: nothing is lost on the way to the disk and back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from maskjet.config import EngineConfig
from maskjet.errors import InputError, OutputError, SourceError
from maskjet.model import Model, read_network
from maskjet.parity import dump as dump_module
from maskjet.parity.dump import Dump, write_dump
from maskjet.parity.images import Files
from maskjet.parity.variants import DetectorVariant
from tests.parity.dumps import STREETS, detections, dump

CPU = EngineConfig(device="cpu")


def assert_equal(actual, expected):
    assert len(actual.found) == len(expected.found)
    for one, other in zip(actual.found, expected.found, strict=True):
        assert one.image_size == other.image_size
        for name in ("xyxy", "confidence", "class_id"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
            assert getattr(one, name).dtype == getattr(other, name).dtype
        assert one.rle == other.rle
        assert one.class_name.tolist() == other.class_name.tolist()
    for name in ("variant", "run", "images", "names", "digests"):
        assert json.loads(json.dumps(getattr(actual, name))) == json.loads(json.dumps(getattr(expected, name)))


@pytest.mark.parametrize(
    "found",
    [None, [detections(())], [detections(())] * 4, [replace(detections(), rle=None)] * 4],
    ids=["all", "gap", "none", "boxes"],
)
def test_it_comes_back_as_it_was(found, tmp_path):
    written = dump(found=found)
    written.save(tmp_path / "a" / "one.npz")
    assert_equal(Dump.load(tmp_path / "a" / "one.npz"), written)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["one.npz"]


def test_it_holds_what_the_model_finds(network, tmp_path):
    ticks = []
    written = write_dump(
        tmp_path / "one.npz", DetectorVariant("one", CPU), network, STREETS, on_progress=lambda: ticks.append(1)
    )
    assert len(ticks) == 4
    with Model(read_network("demo"), CPU, threshold=0.05) as model:
        expected = [model.predict(image) for _, image in STREETS.read()]
    assert sum(map(len, expected)) > 10
    for one, other in zip(written.found, expected, strict=True):
        assert np.array_equal(one.confidence, other.confidence)
        assert one.rle == other.rle
    assert_equal(Dump.load(tmp_path / "one.npz"), written)
    assert written.variant["config"]["device"] == "cpu"
    assert written.variant["config"]["precision"] == "fp32"
    assert len(written.variant["weights"]) == 16
    assert [path.name for path in tmp_path.iterdir()] == ["one.npz"]


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "one.npz"
    with pytest.raises(SourceError, match=r"one\.npz' must be a dump, there is no such file"):
        Dump.load(path)
    dump().save(path)
    monkeypatch.setattr(dump_module, "_VERSION", 7)
    dump().save(path)
    monkeypatch.undo()
    with pytest.raises(SourceError, match="must be a dump of version 1, it is 7; make it again"):
        Dump.load(path)


def test_dumps_of_other_images_are_named():
    one = dump()
    one.check_same_images(dump("two"))
    fewer = dump("two", names=one.names[:3], digests=one.digests[:3])
    with pytest.raises(InputError, match="must be of the same images, 'one' has 4 and 'two' 3"):
        one.check_same_images(fewer)
    other = dump("two", digests=[*one.digests[:2], "x", "y"])
    with pytest.raises(InputError, match="number 2 is not: 'street 7' has other pixels"):
        one.check_same_images(other)
    renamed = dump("two", names=["a", *one.names[1:]])
    with pytest.raises(InputError, match="number 0 is not: 'street 5' against 'a'"):
        one.check_same_images(renamed)


def test_results_for_a_data_set():
    truth = STREETS.truth()
    results = dump().to_annotations(truth)
    assert len(results) == 12
    names = {category["id"]: category["name"] for category in truth["categories"]}
    assert [names[result["category_id"]] for result in results[:3]] == ["car", "truck", "car"]
    assert [result["image_id"] for result in results[::3]] == [0, 1, 2, 3]
    only_cars = {**truth, "categories": [c for c in truth["categories"] if c["name"] == "car"]}
    assert len(dump().to_annotations(only_cars)) == 8
    with pytest.raises(InputError, match="truth must have classes of the model, got"):
        dump().to_annotations({**truth, "categories": [{"id": 1, "name": "zebra"}]})
    with pytest.raises(InputError, match="truth must have all images of the dump, got none called 'street 5'"):
        dump().to_annotations({**truth, "images": truth["images"][1:]})


def test_what_is_wrong_with_a_variant_is_named(network, tmp_path):
    with pytest.raises(InputError, match="threshold must be 0 or more and below 1, got 1"):
        DetectorVariant("one", threshold=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must be writable"):
        dump().save(tmp_path / "file" / "one.npz")
    with pytest.raises(SourceError):
        write_dump(tmp_path / "one.npz", DetectorVariant("one", CPU), network, Files(str(tmp_path / "nothing")))

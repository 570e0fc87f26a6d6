"""An interrupted dump goes on with its own parts only, and images that can't be read are told."""

import shutil
from functools import cache

import cv2
import numpy as np
import pytest

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError, SourceError
from maskjet.parity import dump as dump_module
from maskjet.parity import images as images_module
from maskjet.parity.check import check
from maskjet.parity.datasets import DataSet
from maskjet.parity.dump import Dump, write_dump
from maskjet.parity.images import Files, Traffic
from maskjet.parity.variants import DetectorVariant
from tests.parity.dumps import BOXES, dump
from tests.parity.hostile import flip

VARIANT = DetectorVariant("one", EngineConfig(device="cpu"))
STREETS = Traffic(8, (32, 48), seed=3)


@cache
def draw(streets, number, really=images_module._draw):
    """Each street once for all tests."""
    return really(streets, number)


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    """Parts of two images, and a detector that finds a box of each image's mean colour; counts what it looked at."""
    seen = []

    def run(_variant, _network, source):
        with source:
            for frame in source:
                seen.append(frame.name)
                one = np.ones(1, np.int32)
                sure = np.array([0.5 + frame.image.mean() / 1000], np.float32)
                yield frame, Detections(frame.image.shape[:2], np.array(BOXES[:1], np.float32) / 4, sure, one)

    monkeypatch.setattr(images_module, "_draw", draw)
    monkeypatch.setattr(dump_module, "_PART", 2)
    monkeypatch.setattr(DetectorVariant, "run", run)
    monkeypatch.setattr(dump_module, "describe_run", lambda: dict(dump().run))
    return seen


@pytest.fixture
def begun(tmp_path, network, fake):
    """Three of four parts, and what the whole is to be."""
    whole = write_dump(tmp_path / "whole.npz", VARIANT, network, STREETS)
    interrupt(tmp_path / "one.npz", network, STREETS, after=7)
    fake.clear()
    return tmp_path / "one.npz", whole


def interrupt(path, network, images, after):
    calls = iter(range(after))

    def stop():
        if next(calls, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dump(path, VARIANT, network, images, on_progress=stop)


def parts(path):
    return sorted(path.with_name(path.name + ".parts").glob("*.npz"))


def confidences(found):
    return [float(one.confidence[0]) for one in found.found]


def resume(begun, network):
    path, whole = begun
    found = write_dump(path, VARIANT, network, STREETS)
    assert (found.names, found.digests, confidences(found)) == (whole.names, whole.digests, confidences(whole))
    assert confidences(Dump.load(path)) == confidences(whole)
    assert parts(path) == []


def test_only_the_rest_is_looked_at(begun, network, fake):
    assert len(parts(begun[0])) == 3
    resume(begun, network)
    assert len(fake) == 2


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_part_is_made_anew_and_those_after_it(begun, network, fake, seed):
    part = parts(begun[0])[1]
    data = part.read_bytes()
    part.write_bytes(flip(np.random.default_rng(seed), data, 3) if seed else data[: len(data) // 2])
    resume(begun, network)
    assert len(fake) in (2, 6)  # all flipped bits may mean nothing


def swap(_first, second, third):
    kept = second.read_bytes()
    shutil.move(third, second)
    third.write_bytes(kept)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda first, second, _: shutil.copy(first, second), "names must be different"),
        (swap, "other images: number 5 was"),
        (lambda first, _, third: shutil.copy(first, third.with_name("000003.npz")), "other images: number 7 was"),
    ],
)
def test_a_part_out_of_order_is_not_mixed_in(begun, network, act, told):
    act(*parts(begun[0]))
    with pytest.raises(InputError, match=told):
        resume(begun, network)


def test_parts_behind_a_missing_one_are_made_anew(begun, network, fake):
    parts(begun[0])[1].unlink()
    resume(begun, network)
    assert len(fake) == 6


def test_parts_of_something_else_are_refused(begun, network, monkeypatch):
    path, _ = begun
    for variant, images in (
        (DetectorVariant("two", VARIANT.config), STREETS),
        (DetectorVariant("one", VARIANT.config, threshold=0.3), STREETS),
        (VARIANT, Traffic(8, (32, 48), seed=4)),
    ):
        with pytest.raises(InputError, match=r"one\.npz' was begun with another variant or other images; remove '"):
            write_dump(path, variant, network, images)
    run = {**dump().run, "versions": {"torch": "3"}}
    monkeypatch.setattr(dump_module, "describe_run", lambda: run)
    with pytest.raises(InputError, match="was begun with another machine or other versions; remove '"):
        write_dump(path, VARIANT, network, STREETS)
    assert len(parts(path)) == 3  # nothing is lost


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(6):
        write_image(tmp_path / "images" / f"{number}.png", number)
    return tmp_path / "images"


def write_image(path, value):
    cv2.imwrite(str(path), np.full((40, 40, 3), 10 * value, np.uint8))


CHANGES = {
    "added": lambda folder: write_image(folder / "0a.png", 9),
    "edited": lambda folder: write_image(folder / "1.png", 9),
    "removed": lambda folder: (folder / "0.png").unlink(),
    "nearly all removed": lambda folder: [(folder / f"{number}.png").unlink() for number in range(1, 6)],
}


@pytest.mark.parametrize("change", CHANGES)
def test_images_that_changed_meanwhile_are_refused(folder, network, tmp_path, change):
    path, images = tmp_path / "one.npz", Files(str(folder))
    interrupt(path, network, images, after=5)
    CHANGES[change](folder)
    message = "there were 4, now there are 1" if change == "nearly all removed" else r"number \d was '.*png'"
    with pytest.raises(InputError, match=f"was begun with other images: {message}; remove '"):
        write_dump(path, VARIANT, network, images)


def test_images_that_can_not_be_read_are_told(folder, network, tmp_path):
    (folder / "1.png").write_bytes(b"no image")
    (folder / "4.png").write_bytes(b"")
    path, images = tmp_path / "one.npz", Files(str(folder))
    interrupt(path, network, images, after=3)
    found = write_dump(path, VARIANT, network, images)
    assert len(found.names) == 4
    for each in (found, Dump.load(path)):
        assert [reason.count(f"{number}.png") for reason, number in zip(each.skipped, (1, 4), strict=True)] == [1, 1]
    assert "'one' is without 2 images that could not be read: image must be decodable" in str(check(found, found))


def test_nothing_that_can_be_read_is_no_dump(folder, network, tmp_path):
    for path in folder.iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match=r"images must have one that can be read, got .*empty, cut off or damaged"):
        write_dump(tmp_path / "one.npz", VARIANT, network, Files(str(folder)))
    assert not (tmp_path / "one.npz").exists()


def test_an_image_of_a_data_set_that_is_damaged_is_left_out_and_told(network, tmp_path):
    traffic.write_coco(folder := tmp_path / "set", images=3, size_hw=(32, 48))
    (folder / "images" / "000001.jpg").write_bytes(b"no image")
    images = DataSet(folder)
    assert [name for name, _ in images.read()] == ["000000.jpg", "000002.jpg"]
    found = write_dump(tmp_path / "one.npz", VARIANT, network, images)
    assert found.names == ["000000.jpg", "000002.jpg"]
    (reason,) = found.skipped
    assert "000001.jpg' is corrupt" in reason
    (image,) = (image for _, image in images.read(1))
    np.testing.assert_array_equal(images.find(1, "000002.jpg"), image)
    with pytest.raises(InputError, match=r"the images must be those of the dump, number 1, 'other.jpg', is not"):
        images.find(1, "other.jpg")


def test_names_that_are_no_text_are_written_as_escapes(network, tmp_path):
    (tmp_path / "images").mkdir()
    name = b"stra\xdfe.png".decode("utf-8", "surrogateescape")
    write_image(tmp_path / "plain.png", 1)
    shutil.move(tmp_path / "plain.png", tmp_path / "images" / name)
    found = write_dump(tmp_path / "one.npz", VARIANT, network, Files(str(tmp_path / "images")))
    assert found.names[0].endswith("stra\\udcdfe.png")
    assert Dump.load(tmp_path / "one.npz").names == found.names


def test_a_data_set_is_read_within_its_folder(tmp_path):
    write_image(tmp_path / "secret.png", 1)
    (tmp_path / "set" / "images").mkdir(parents=True)
    for name in ("../../secret.png", str(tmp_path / "secret.png")):
        (tmp_path / "set" / "annotations.json").write_text(
            f'{{"images": [{{"file_name": "{name}"}}], "annotations": [], "categories": []}}'
        )
        with pytest.raises(SourceError, match="must have images within its folder, got"):
            list(DataSet(tmp_path / "set").read())

"""A dump of images of which some can't be read, or whose names are no text; and one that is interrupted."""

import shutil

import cv2
import numpy as np
import pytest

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.detections import Detections
from maskjet.errors import InputError, SourceError
from maskjet.evaluation.datasets import DataSet
from maskjet.parity.check import check
from maskjet.parity.dump import Dump, write_dump
from maskjet.parity.images import Files
from maskjet.parity.variants import DetectorVariant
from tests.parity.dumps import BOXES

VARIANT = DetectorVariant("one", EngineConfig(device="cpu"))


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    """A detector that finds a box of each image's mean colour."""

    def run(_variant, _network, source):
        with source:
            for frame in source:
                one = np.ones(1, np.int32)
                sure = np.array([0.5 + frame.image.mean() / 1000], np.float32)
                yield frame, Detections(frame.image.shape[:2], np.array(BOXES[:1], np.float32) / 4, sure, one)

    monkeypatch.setattr(DetectorVariant, "run", run)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(6):
        write_image(tmp_path / "images" / f"{number}.png", number)
    return tmp_path / "images"


def write_image(path, value):
    cv2.imwrite(str(path), np.full((40, 40, 3), 10 * value, np.uint8))


def test_an_interrupted_dump_leaves_no_file(folder, network, tmp_path):
    def stop():
        raise KeyboardInterrupt

    (tmp_path / "out").mkdir()
    with pytest.raises(KeyboardInterrupt):
        write_dump(tmp_path / "out" / "one.npz", VARIANT, network, Files(str(folder)), on_progress=stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_images_that_can_not_be_read_are_told(folder, network, tmp_path):
    (folder / "1.png").write_bytes(b"no image")
    (folder / "4.png").write_bytes(b"")
    path, images = tmp_path / "one.npz", Files(str(folder))
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
    np.testing.assert_array_equal(images.find(1, "000002.jpg"), list(images.read())[1][1])
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

"""Images to compare on: the same every time, from anywhere, and described well enough to be found again."""

import json
import os

import cv2
import numpy as np
import pytest

from maskjet import traffic
from maskjet.errors import InputError, SourceError
from maskjet.evaluation.datasets import DataSet
from maskjet.parity import images as images_module
from maskjet.parity.images import Files, Traffic, streets_from


@pytest.fixture
def folder(tmp_path):
    traffic.write_coco(tmp_path / "set", images=3, size_hw=(96, 160))
    return tmp_path / "set"


def assert_same(actual, expected):
    assert [name for name, _ in actual] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(actual, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["traffic", "files", "coco"])
def test_they_can_be_had_again(kind, folder):
    images = {
        "traffic": Traffic(3, (96, 160), seed=4),
        "files": Files(str(folder / "images")),
        "coco": DataSet(folder),
    }[kind]
    everything = list(images.read())
    assert len(everything) == images.length == 3
    description = json.loads(json.dumps(images.describe()))
    if kind == "traffic":
        assert_same(list(streets_from(description, 3).read()), everything)
    else:
        flag = "--images" if kind == "files" else "--coco-dir"
        with pytest.raises(InputError, match=f"{flag} must be given again: .* what a dump names is not opened"):
            streets_from(description, 3)
    assert np.array_equal(images.find(1, everything[1][0]), everything[1][1])
    with images.open() as source:
        frames = list(source)
    assert [frame.name for frame in frames] == [name for name, _ in everything]
    assert source.length == 3


def test_a_set_knows_what_is_on_it(folder):
    streets = Traffic(2, (96, 160), seed=4)
    truth = streets.truth()
    assert [image["file_name"] for image in truth["images"]] == [name for name, _ in streets.read()]
    assert [one["id"] for one in truth["annotations"]] == list(range(1, len(truth["annotations"]) + 1))
    scenes = [traffic.sample(seed, size_hw=(96, 160)) for seed in (4, 5)]
    assert len(truth["annotations"]) == sum(len(scene.class_id) for scene in scenes) > 0
    assert DataSet(folder).truth()["images"][1]["file_name"] == "000001.jpg"
    assert Files(str(folder)).truth() is None


@pytest.mark.slow
def test_processes_draw_the_same_streets_in_order(monkeypatch):
    streets = Traffic(5, (32, 48), seed=8)
    expected = list(streets.read())
    monkeypatch.setattr(images_module, "_PER_PROCESS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert_same(list(streets.read()), expected)
    beginning = streets.read()
    assert_same([next(beginning)], expected[:1])
    beginning.close()  # and the processes with it


def test_what_is_wrong_is_named(tmp_path, folder):
    with pytest.raises(InputError, match="count must be a whole number of at least 1, got 0"):
        Traffic(0)
    with pytest.raises(
        SourceError, match=r"data must be a folder with annotations.json, .* or data.yaml, .* has none of them"
    ):
        DataSet(tmp_path).truth()
    (folder / "annotations.json").write_text("[]")
    with pytest.raises(SourceError, match="must be a COCO data set, it lacks images"):
        DataSet(folder).truth()
    (folder / "annotations.json").write_text('{"images": [{}], "annotations": [], "categories": []}')
    with pytest.raises(SourceError, match="must have a 'file_name' in each of its images"):
        DataSet(folder).length  # noqa: B018
    (folder / "annotations.json").write_text("{")
    with pytest.raises(SourceError, match=r"annotations\.json' must be JSON: "):
        DataSet(folder).truth()
    with pytest.raises(InputError, match="number must be one of the images, there is no number 3"):
        Files(str(folder / "images")).find(3, "3.jpg")


def test_a_frame_of_a_video_has_its_name(tmp_path):
    traffic.write_video(tmp_path / "street.mp4", size_hw=(96, 160), frames=3)
    video = Files(str(tmp_path / "street.mp4"))
    assert video.length == 3
    last = list(video.read())[2]
    assert np.array_equal(video.find(2, last[0]), last[1])
    cv2.imwrite(str(tmp_path / "one.png"), np.zeros((4, 5, 3), np.uint8))
    assert Files(str(tmp_path / "one.png")).find(0, "one.png").shape == (4, 5, 3)

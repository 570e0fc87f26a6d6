"""Videos and data sets of streets."""

import numpy as np
import pytest
from pycocotools.coco import COCO

from maskjet import traffic
from maskjet.errors import InputError, OutputError
from maskjet.sources.frames import open_source
from maskjet.traffic import Street, sample, write_coco, write_video

SIZE = (96, 160)


def test_a_video_shows_the_street(tmp_path):
    calls = []
    write_video(tmp_path / "new" / "v.mp4", size_hw=SIZE, frames=12, seed=4, on_progress=lambda: calls.append(1))
    with open_source(tmp_path / "new" / "v.mp4") as source:
        frames = list(source)
    assert (len(frames), source.fps, len(calls)) == (12, traffic.FPS, 12)
    difference = np.abs(frames[7].image.astype(int) - Street(4, SIZE).frame(7).image.astype(int))
    assert difference.mean() < 8
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["v.mp4"]


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_video(tmp_path / f"{name}.mp4", size_hw=SIZE, frames=5, seed=1)
        write_coco(tmp_path / name, images=3, size_hw=SIZE, seed=1)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    for path in sorted((tmp_path / "a").rglob("*.*")):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_a_video_does_not_depend_on_stray_memory(tmp_path):
    """x264's AVX-512 code did; 312 is no multiple of its blocks."""
    random, noise, written = np.random.default_rng(0), [], set()
    for _ in range(4):
        write_video(
            tmp_path / "v.mp4",
            size_hw=(176, 312),
            frames=6,
            seed=1,
            on_progress=lambda: noise.append(np.full(random.integers(1, 200_000), random.integers(256), np.uint8)),
        )
        written.add((tmp_path / "v.mp4").read_bytes())
    assert len(written) == 1


def test_a_data_set_holds_the_truth(tmp_path):
    write_coco(tmp_path, images=2, size_hw=SIZE, seed=20)
    data_set = COCO(tmp_path / "annotations.json")
    assert sorted(data_set.imgs) == [0, 1]
    categories = data_set.dataset["categories"]
    assert [(each["id"], each["name"]) for each in categories] == list(enumerate(traffic.CLASSES, start=1))
    assert data_set.dataset["info"]["description"] == "maskjet traffic, seeds 20..21"
    for image_id in data_set.imgs:
        truth = sample(20 + image_id, size_hw=SIZE)
        entries = data_set.imgToAnns[image_id]
        assert [entry["category_id"] - 1 for entry in entries] == truth.class_id.tolist()
        for entry, mask in zip(entries, truth.masks(), strict=True):
            assert entry["area"] == mask.sum()
            np.testing.assert_array_equal(data_set.annToMask(entry), mask)
        (frame,) = open_source(tmp_path / "images" / f"{image_id:06}.jpg")
        assert np.abs(frame.image.astype(int) - truth.image.astype(int)).mean() < 6
    assert len({entry["id"] for entry in data_set.dataset["annotations"]}) == len(data_set.dataset["annotations"])


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (write_video, {"frames": 0}, "frames must be a whole number of at least 1, got 0"),
        (write_video, {"size_hw": (97, 160)}, r"size_hw must be even for a video, got \(97, 160\)"),
        (write_coco, {"images": 0}, "images must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(write, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        write(tmp_path / "v.mp4", **options)


def test_a_data_set_that_is_there_is_not_replaced(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "000000.jpg").write_text("mine")
    with pytest.raises(InputError, match=r"^directory must have no data set yet, '.*/images' exists"):
        write_coco(tmp_path, images=1, size_hw=SIZE)
    assert (tmp_path / "images" / "000000.jpg").read_text() == "mine"


def test_unwritable_paths_are_named(tmp_path):
    (tmp_path / "file").touch()
    for write, options in ((write_video, {"frames": 1}), (write_coco, {"images": 1})):
        with pytest.raises(OutputError, match=r"must be writable, '.*file.*' is not: "):
            write(tmp_path / "file" / "v.mp4", size_hw=SIZE, **options)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]

"""Videos and data sets of streets."""

import numpy as np
import pytest
from pycocotools import mask as pycoco_mask
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


def test_the_truth_of_a_video_tells_which_thing_is_where(tmp_path):
    names = [f"v{suffix}" for suffix in (".mot.txt", ".mots.txt", ".json")]
    for name in names:
        write_video(tmp_path / "v.mp4", size_hw=SIZE, frames=3, seed=4, truth=tmp_path / name)
    boxes, masks, coco = (tmp_path / name for name in names)
    street, coco = Street(4, SIZE), COCO(str(coco))
    boxes = [[*map(int, line.split(","))] for line in boxes.read_text().splitlines()]
    masks = [line.split() for line in masks.read_text().splitlines()]
    numbers, row = {}, 0
    for index in range(3):
        frame = street.frame(index)
        annotations = coco.imgToAnns[index + 1]
        assert coco.imgs[index + 1]["frame_id"] == index
        assert len(annotations) == len(frame.class_id) > 2
        for k, (track, mask, xyxy) in enumerate(zip(frame.track_id, frame.masks(), frame.xyxy(), strict=True)):
            number = numbers.setdefault(track, len(numbers) + 1)
            x1, y1, x2, y2 = xyxy.astype(int).tolist()
            class_id = frame.class_id[k] + 1
            assert boxes[row] == [index + 1, number, x1, y1, x2 - x1, y2 - y1, 1, class_id, 1]
            assert [*map(int, masks[row][:5])] == [index + 1, number, class_id, *SIZE]
            rle = {"size": [*SIZE], "counts": masks[row][5].encode()}
            np.testing.assert_array_equal(pycoco_mask.decode(rle), mask)
            assert (annotations[k]["track_id"], annotations[k]["category_id"]) == (number, class_id)
            np.testing.assert_array_equal(coco.annToMask(annotations[k]), mask)
            row += 1
    assert row == len(boxes) == len(masks)
    with pytest.raises(InputError, match=r"truth must end in \.mot\.txt, \.mots\.txt, \.json, got 'v\.txt'"):
        write_video(tmp_path / "w.mp4", size_hw=SIZE, frames=1, truth="v.txt")
    assert not (tmp_path / "w.mp4").exists()


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


@pytest.mark.parametrize("annotations", ["rle", "polygon"])
def test_a_data_set_holds_the_truth(annotations, tmp_path):
    write_coco(tmp_path, images=2, size_hw=SIZE, seed=20, annotations=annotations)
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
            if annotations == "rle":
                np.testing.assert_array_equal(data_set.annToMask(entry), mask)
            elif mask.sum() > 200:
                drawn = data_set.annToMask(entry).astype(bool)
                assert (drawn & mask).sum() == mask.sum() > 0.95 * drawn.sum()  # holes are filled
        (frame,) = open_source(tmp_path / "images" / f"{image_id:06}.jpg")
        assert np.abs(frame.image.astype(int) - truth.image.astype(int)).mean() < 6
    assert len({entry["id"] for entry in data_set.dataset["annotations"]}) == len(data_set.dataset["annotations"])


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (write_video, {"frames": 0}, "frames must be a whole number of at least 1, got 0"),
        (write_video, {"size_hw": (97, 160)}, r"size_hw must be even for a video, got \(97, 160\)"),
        (write_coco, {"images": 0}, "images must be a whole number of at least 1, got 0"),
        (write_coco, {"images": 1, "annotations": "box"}, "annotations must be one of .*, got 'box'"),
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

"""Data sets in the layouts people have: the same truth from each, and faults are told before a model runs."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from maskjet import limits, traffic
from maskjet.errors import InputError, MaskjetError, SourceError
from maskjet.evaluation import datasets, scoring
from maskjet.evaluation.datasets import DataSet
from maskjet.masks import coco_rle
from maskjet.parity import coco
from tests.parity.hostile import STRANGE, replaced
from tests.sources.clips import write_video

SIZE = (96, 160)


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))

MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n + 1}: &a{n + 1} {{<<: [{', '.join(10 * [f'*a{n}'])}]}}\n" for n in range(12)
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn") / "set"
    traffic.write_coco(folder, images=3, size_hw=SIZE)
    truth = read(folder)
    for entry in truth["annotations"]:
        lines = coco_rle.polygons(entry["segmentation"], along="edges")
        entry["segmentation"] = [line.ravel().tolist() for line in lines]
    write(folder, truth)
    return folder


@pytest.fixture
def folder(tmp_path, drawn):
    shutil.copytree(drawn, tmp_path / "set")
    return tmp_path / "set"


def read(folder):
    return json.loads((folder / "annotations.json").read_text())


def write(folder, truth):
    (folder / "annotations.json").write_text(json.dumps(truth))


def edit(folder, name, **fields):
    truth = read(folder)
    truth[name][0] |= fields
    write(folder, truth)


def as_coco(folder, split="val2017"):
    (folder / "annotations").mkdir()
    (folder / "annotations.json").rename(folder / "annotations" / f"instances_{split}.json")
    (folder / "images").rename(folder / split)


def as_cvat(folder):
    (folder / "annotations").mkdir()
    (folder / "annotations.json").rename(folder / "annotations" / "instances_default.json")


def as_roboflow(folder):
    (folder / "images").rename(folder / "valid")
    (folder / "annotations.json").rename(folder / "valid" / "_annotations.coco.json")
    shutil.copytree(folder / "valid", folder / "train")


def as_yolo(folder, *, boxes=False, yaml="val: ../valid/images\ntest: ../test/images\nnames: ['{}']\n"):
    truth = read(folder)
    names = [category["name"] for category in truth["categories"]]
    (folder / "valid" / "labels").mkdir(parents=True)
    (folder / "images").rename(folder / "valid" / "images")
    lines = {image["id"]: [] for image in truth["images"]}
    for entry in truth["annotations"]:
        x, y, w, h = entry["bbox"]
        points = [x + w / 2, y + h / 2, w, h] if boxes else entry["segmentation"][0]
        shares = np.reshape(points, (-1, 2)) / SIZE[::-1]
        lines[entry["image_id"]].append(" ".join(map(str, [entry["category_id"] - 1, *shares.ravel()])))
    for image in truth["images"]:
        path = (folder / "valid" / "labels" / image["file_name"]).with_suffix(".txt")
        path.write_text("\n".join(lines[image["id"]]), "utf-8-sig")  # with a byte-order mark, as Windows' editors
    (folder / "data.yaml").write_text(yaml.format("', '".join(names)), "utf-8-sig")
    (folder / "annotations.json").unlink()


@pytest.mark.parametrize("arrange", [lambda _: None, as_coco, as_cvat, as_roboflow, as_yolo])
def test_each_layout_has_the_same_truth(arrange, folder):
    expected = read(folder)
    arrange(folder)
    images = DataSet(folder)
    truth = images.truth()
    images.check_images()
    frames = list(images.open())
    assert [frame.name.rpartition("/")[2] for frame in frames] == [each["file_name"] for each in expected["images"]]
    assert [frame.size_hw for frame in frames] == [SIZE] * 3
    assert [category["name"] for category in truth["categories"]] == [each["name"] for each in expected["categories"]]
    numbers = [category["id"] for category in truth["categories"]]
    assert len(truth["annotations"]) == len(expected["annotations"])
    for one, other in zip(truth["annotations"], expected["annotations"], strict=True):
        assert numbers.index(one["category_id"]) == other["category_id"] - 1
        first = np.reshape(other["segmentation"][0], (-1, 2))
        assert np.allclose(np.reshape(one["segmentation"][0], (-1, 2)), first)
        if arrange is as_yolo:  # of one part, whose box and area are not said
            assert np.allclose(one["bbox"], [*first.min(axis=0), *np.ptp(first, axis=0)])
        else:
            assert one == other


def test_yolo_boxes_have_no_masks(folder):
    expected = read(folder)
    as_yolo(folder, boxes=True, yaml="path: valid\nval: images\nnames:\n  0: '{}'\n".replace("'{}'", "x"))
    with pytest.raises(SourceError, match=r"line 6 of .*0\.txt' must begin with a class of data.yaml, 0 to 0, got"):
        DataSet(folder).truth()
    names = "".join(f"  {n}: {each['name']}\n" for n, each in enumerate(expected["categories"]))
    (folder / "data.yaml").write_text(f"val: [valid/images]\nnames:\n{names}")
    truth = DataSet(folder / "data.yaml").truth()
    for one, other in zip(truth["annotations"], expected["annotations"], strict=True):
        assert np.allclose(one["bbox"], other["bbox"])
        assert one["area"] == pytest.approx(other["bbox"][2] * other["bbox"][3])
    kinds, notes = coco.check_kinds(truth, {"found": []})
    assert (kinds, notes) == (["bbox"], ["segm left out: not everything has a segmentation in the truth."])


def test_a_split_is_chosen(folder):
    as_roboflow(folder)
    shutil.copytree(folder / "valid", folder / ".valid")  # hidden, as in an archive of macOS
    assert DataSet(folder).images == folder / "valid"
    assert DataSet(folder, "train").images == folder / "train"
    with pytest.raises(InputError, match=r"split must be one of .*, got 'test'; known: train, valid"):
        DataSet(folder, "test").truth()
    (folder / "valid").rename(folder / "extra")
    with pytest.raises(InputError, match=r"split must be given for .*, it has extra, train\."):
        DataSet(folder).truth()
    assert DataSet(folder / "train").length == 3
    with pytest.raises(InputError, match=r"split must be one of .*train', got 'val'\.$"):
        DataSet(folder / "train", "val").truth()
    (folder / "train" / "few.json").write_text("{}")
    with pytest.raises(SourceError, match=r"few\.json' must be a COCO data set, it lacks images, annotations or"):
        DataSet(folder / "train" / "few.json").truth()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("9 0.5 0.5 0.1 0.1", "must begin with a class of data.yaml, 0 to 4, got 9"),
        ("0.5 0.5 0.5 0.1 0.1", "must begin with a class of data.yaml, 0 to 4, got 0.5"),
        ("nan 0.5 0.5 0.1 0.1", "must begin with a class of data.yaml, 0 to 4, got nan"),
        ("0 0.1 0.1 0.2", "or an x and y for each of 3 or more points, got 3 numbers"),
        ("0", "got 0 numbers"),
        ("0 a 0.1 0.2 0.2", "must be numbers, got '0 a"),
        ("0 0.5 0.5 0.1 7", "must have coordinates of 0..1"),
        ("0 0.5 0.5 0.1 nan", "must have coordinates of 0..1"),
        ("0 0.5 0.5 0.1 1e300", "must have coordinates of 0..1"),
        ("0 0.5 0.5 -0.001 0.1", "must have coordinates of 0..1"),
        ("0 inf 0.5 inf 0.1 -inf 0", "must have coordinates of 0..1"),
    ],
)
def test_a_bad_label_is_named(line, message, folder):
    as_yolo(folder)
    path = next((folder / "valid" / "labels").glob("*0.txt"))
    path.write_text(f"\n{line}\n")
    with pytest.raises(SourceError, match=rf"line 2 of .*0\.txt' .*{message}"):
        DataSet(folder).truth()


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("names: [a]", "must have a folder of images as 'val', 'test' or 'train'"),
        ("val: /etc\nnames: [a]", "must name folders of images below its own, got '/etc'"),
        ("val: ../../x\nnames: [a]", "must name folders of images below its own, got '../../x'"),
        ("val: 3\nnames: [a]", "must name folders of images below its own, got '3'"),
        ("val: valid/images", "must have a list as 'names', or names by number"),
        ("val: valid/images\nnames: {a: b}", "must have a list as 'names', or names by number"),
        ("val: valid/images\nnames: [car, [x]]", r"must have .*: got \['x'\] as a name\."),
        ("val: valid/images\nnames: [car]\nkpt_shape: 3", "must have two numbers as 'kpt_shape'"),
        ("val: valid/images\nnames: [car]\nkpt_shape: [ab, 1000000000]", "must have two numbers as 'kpt_shape': got"),
        (f"val: {'a' * 5000}\nnames: [a]", "must name folders of images below its own, got 'aaa"),
        ("val: few.txt\nnames: [car]", "must name folders of images below its own, got 'few.txt'"),
        ("- a", "must have fields"),
        ("{" * 2000, "must be YAML: "),
        (MERGES, "must have a folder of images as"),
        (f"x: {'1:' * 400_000}1", "must have a folder of images as"),
        (f"val: [{'x, ' * 9000}x]", "must name folders of images below its own, got 'x'"),
        (f"{BOMB}val: *a40", "must name folders of images below its own"),
        (f"{BOMB}val: valid/images\nnames: *a40", "must have a list as 'names', or names by number"),
    ],
)
def test_a_bad_data_yaml_is_named(yaml, message, folder):
    as_yolo(folder)
    (folder / "data.yaml").write_text(yaml)
    with pytest.raises(SourceError, match=rf"data\.yaml' {message}"):
        DataSet(folder).truth()


def test_a_folder_named_often_is_listed_once(folder, monkeypatch):
    as_yolo(folder)
    listed, list_folder = [], datasets.list_folder
    monkeypatch.setattr(datasets, "list_folder", lambda *args, **kw: listed.append(1) or list_folder(*args, **kw))
    (folder / "data.yaml").write_text(f"val: [{'valid/images, valid/images/., ' * 500}]\nnames: [a, b, c, d, e]\n")
    assert (DataSet(folder).length, len(listed)) == (3, 1)


def test_labels_are_bounded(folder, monkeypatch):
    as_yolo(folder)
    monkeypatch.setattr(limits, "json_bytes", 1000)
    with pytest.raises(SourceError, match=r"labels of .*data\.yaml' have .* bytes, the limit is 1,000"):
        DataSet(folder).truth()


def test_images_that_are_missing_or_others_are_named(folder):
    edit(folder, "images", width=161)
    with pytest.raises(
        SourceError, match=r"images must have the annotated .*000000\.jpg' has \(96, 160\), not \(96, 161\)"
    ):
        DataSet(folder).check_images()
    (folder / "images" / "000001.jpg").unlink()
    with pytest.raises(SourceError, match=r"images must all be in '.*images', 1 of 3 are missing: 000001\.jpg"):
        DataSet(folder).check_images()
    edit(folder, "images", file_name="a" * 5000)
    with pytest.raises(SourceError, match=r"images must all be in .*, 2 of 3 are missing: aaa"):
        DataSet(folder).check_images()
    edit(folder, "images", file_name="./000002.jpg")
    with pytest.raises(SourceError, match="must have each image once, got 1 more"):
        DataSet(folder).length  # noqa: B018
    edit(folder, "images", file_name="caf\udce9.jpg")
    with pytest.raises(SourceError, match=r"must have images with names in UTF-8, rename 'caf\\udce9\.jpg'"):
        DataSet(folder).length  # noqa: B018
    edit(folder, "images", file_name="../set/images/000000.jpg")
    with pytest.raises(SourceError, match="must have images within its folder"):
        DataSet(folder).length  # noqa: B018


def test_a_video_is_no_image(folder):
    edit(folder, "images", file_name="clip.mp4")
    write_video(folder / "images" / "clip.mp4", frames=3)
    source = DataSet(folder).open()
    assert (len(list(source)), len(source.bad_frames)) == (2, 1)


def use(folder):
    model = SimpleNamespace(thresholds=dict.fromkeys(traffic.CLASSES, 0.5))
    scoring.prepare(DataSet(folder), model, {})


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("annotations", {"segmentation": [[1, 2, 3, 4, 5, "x"]]}, "or polygons of 3 or more points near the image"),
        ("annotations", {"segmentation": {"size": [9, 9], "counts": [81]}}, r"an RLE of its image's size \[96, 160\]"),
        ("images", {"id": 1}, "'images' in .* must have different ids, got 1 more than once"),
        ("categories", {"id": 2}, "'categories' in .* must have different ids, got 2 more than once"),
        ("annotations", {"bbox": [0, 0, 9, -9]}, "annotation 1 of image 0 in .* finite 'bbox' .* got .*-9. and"),
        ("annotations", {"bbox": [0, 0, 9e300, 9e300], "area": "", "segmentation": ""}, "finite 'bbox' .* and inf"),
        ("annotations", {"bbox": [0, 0, "ab", 10**9], "area": "", "segmentation": ""}, "not convert string to float"),
    ],
)
def test_a_bad_annotation_is_named(name, fields, message, folder):
    edit(folder, name, **fields)
    with pytest.raises(MaskjetError, match=message):
        use(folder)


@pytest.mark.parametrize("empty", [None, "", [], {}, [[]], float("nan")])
def test_empty_fields_of_coco_are_absent(empty, folder):
    expected = read(folder)["annotations"]
    edit(folder, "annotations", segmentation=empty, area=empty, iscrowd=empty)
    first, *others = DataSet(folder).truth()["annotations"]
    assert others == expected[1:]
    assert first["area"] == expected[0]["bbox"][2] * expected[0]["bbox"][3]
    use(folder)
    assert coco.check_kinds(DataSet(folder).truth(), {"found": []})[0] == ["bbox"]


def test_coco_is_read_as_leniently_as_by_others(folder):
    truth = read(folder)
    for image in truth["images"]:
        image |= {"id": f"i{image['id']}", "file_name": ".\\images\\\\" + image["file_name"]}
        image |= {"height": float(image["height"]), "width": str(image["width"])}
    for category in truth["categories"]:
        category["id"] = str(category["id"])
    for entry in truth["annotations"]:
        entry |= {"image_id": f"i{entry['image_id']}", "category_id": str(entry["category_id"])}
        del entry["area"]
    first, *others = truth["annotations"]
    strange = [{**first, "image_id": "other"}, {**first, "category_id": 99}, {**first, "segmentation": [[1, 2, 3, 4]]}]
    tilted = {**first, "segmentation": [*first["segmentation"], [1, 2]], "attributes": {"rotation": 30.0}}
    expected = read(folder)["annotations"]
    write(folder, {**truth, "annotations": [tilted, *others, *strange]})
    images = DataSet(folder / "annotations.json")
    images.check_images()
    use(folder)
    assert [frame.size_hw for frame in images.open()] == [SIZE] * 3
    assert images.truth()["images"][0]["file_name"] == "images/000000.jpg"
    for one, other in zip(images.truth()["annotations"], expected, strict=True):
        assert one["area"] == pytest.approx(sum(area_of(line) for line in other["segmentation"]))
        assert (one["category_id"], one["segmentation"]) == (other["category_id"], other["segmentation"])
    assert images.notes == [
        "left out: 2 polygons of fewer than 3 points.",
        "left out: 1 rotations of boxes.",
        "left out: 2 annotations of images or categories that are not listed.",
        "left out: 1 annotations that had no others.",
    ]


def area_of(line):
    return cv2.contourArea(np.reshape(line, (-1, 1, 2)).astype(np.float32))


@pytest.mark.parametrize(
    ("yaml", "name"),
    [
        ("val: {folder}/valid/images", "data.yaml"),
        ("path: {folder}/link\nval: images", "data.yaml"),
        ("val: .\\valid\\images\\", "birds.yml"),
        ("val: [valid/images, valid, ./valid/images, link/images]", "data.yaml"),
        ("val: lists/val.txt", "data.yaml"),
    ],
)
def test_yolo_images_are_named_in_any_way(yaml, name, folder, tmp_path, monkeypatch):
    as_yolo(folder)
    expected = DataSet(folder).truth()
    (folder / "link").symlink_to("valid")
    (folder / "lists").mkdir()
    images = sorted(path.name for path in (folder / "valid" / "images").iterdir())
    (folder / "lists" / "val.txt").write_text("".join(f"../valid/images/{each}\n\n" for each in images))
    for path in (folder / "valid" / "images" / "._0.jpg", folder / "valid" / "labels" / "._0.txt"):
        path.write_bytes(b"\0\xff")
    (folder / "data.yaml").unlink()
    names = ", ".join(category["name"] for category in expected["categories"])
    (folder / name).write_text(f"{yaml.format(folder=folder)}\nnames: [{names}]\n")
    monkeypatch.chdir(tmp_path)
    for given in (folder, "set", f"set/{name}"):
        found = DataSet(Path(given)).truth()
        assert found["annotations"] == expected["annotations"]
        assert [each["file_name"].rpartition("/")[2] for each in found["images"]] == images


def test_yolo_labels_are_read_as_by_their_trainer(folder):
    as_yolo(folder)
    path = next((folder / "valid" / "labels").glob("*0.txt"))
    boxes = "0 1.005 0.5 0.2 0.2\n0 1.00500000001 0.5 0.2 0.2\n1 0.5 0.5 0.2 0.2 0.9\n"
    path.write_text(boxes + "2 -0.1 0 0.4 0 0.4 0.5\n2 -0.1 0 0.4 0 -0.1 0.5\n")
    (folder / "data.yaml").write_text("validation: valid/images\nnames: {0: car, 1: no, 2: c, 3: d, 4: e}\ntest: null")
    images = DataSet(folder)
    truth = images.truth()
    first = [each for each in truth["annotations"] if each["image_id"] == 0]
    assert [each["category_id"] for each in first] == [0, 1, 2, 2]
    assert first[0]["bbox"] == pytest.approx([0.905 * SIZE[1], 0.4 * SIZE[0], 0.2 * SIZE[1], 0.2 * SIZE[0]])
    assert first[2]["bbox"] == first[3]["bbox"] == pytest.approx([-0.1 * SIZE[1], 0, 0.5 * SIZE[1], 0.5 * SIZE[0]])
    assert [each["name"] for each in truth["categories"]] == ["car", "no", "c", "d", "e"]
    assert images.notes == [
        "left out: 1 lines that are twice in a file of labels.",
        "left out: 1 confidences at the ends of lines.",
    ]
    (folder / "data.yaml").write_text("val: valid/images\nnames: [a, b, c, d, e]\nkpt_shape: [1, 2]")
    with pytest.raises(SourceError, match=r"line 3 of .* 4 numbers of a box, perhaps with 2 of its keypoints, got 5"):
        DataSet(folder).truth()
    for label in path.parent.iterdir():
        label.write_text("0 0.5 0.5 0.2 0.2 0.3 0.3\n1 0.5 0.5 0.2 0.2")
    path.unlink()
    images = DataSet(folder)
    assert all("segmentation" not in each for each in images.truth()["annotations"])
    assert images.notes == [
        "left out: 1 missing files of labels, whose images count as empty.",
        "left out: 2 sets of keypoints, whose boxes are scored.",
    ]


def test_edited_data_sets(folder):
    truth, random = read(folder), np.random.default_rng(7)
    taken = 0
    for _ in range(40):
        write(folder, replaced(random, truth, STRANGE))
        try:
            use(folder)
            taken += 1
        except MaskjetError as error:
            str(error).encode(errors="backslashreplace")
    assert taken < 30


def test_what_is_no_data_set_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(SourceError, match=r"data must be a folder with annotations\.json, .* has none of them"):
            DataSet(path).truth()

"""Records: nothing is lost on the way to the disk and back; files from anybody are refused before they take memory."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import maskjet
from maskjet import limits
from maskjet.errors import InputError, MaskjetError, OutputError, SourceError
from maskjet.outputs.lines import digest
from maskjet.parity.check import check
from maskjet.parity.gate import Limits, judge
from maskjet.parity.page import list_settings
from maskjet.parity.pair import compare
from maskjet.parity.record import read_record, write_record
from tests.parity.hostile import STRANGE, deep, flip, replaced
from tests.parity.records import FAULTS, IMAGES, STREETS, detections, record

TRUTH = STREETS.truth()
REFUSED = r"one\.jsonl' must be a record that maskjet run --record wrote, it is not: "


def assert_equal(actual, expected):
    assert actual.image_size == expected.image_size
    for name in ("xyxy", "confidence", "class_id"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    assert actual.rle == expected.rle
    assert actual.class_name.tolist() == expected.class_name.tolist()


@pytest.mark.parametrize(
    "found",
    [[], [detections(())], [detections(())] * 4, [replace(detections(), rle=None)] * 4],
    ids=["all", "gap", "none", "boxes"],
)
def test_it_comes_back_as_it_was(found, make):
    made = make(found=found)
    assert (made.name, made.skipped, made.thresholds) == ("one", [], {"car": 0.05, "truck": 0.05})
    assert [(each.name, each.digest) for each in made.images] == [(name, digest(image)) for name, image in IMAGES]
    for image, expected in zip(made.images, [*found, *[detections()] * 4], strict=False):
        assert_equal(image.found, expected)


def test_every_float32_is_exact(make):
    random = np.random.default_rng(0)
    odd = detections(confidence=np.nextafter(np.float32(random.random(3)), np.float32(1)))
    odd.xyxy[:] = np.sort(random.uniform(0, 96, (3, 4)).astype(np.float32), axis=1)
    odd.confidence[0], odd.xyxy[0, 0] = np.float32(1e-40), np.float32(2) ** -149  # denormal
    assert_equal(make(found=[odd]).images[0].found, odd)


def test_it_holds_what_the_model_finds(tmp_path):
    with maskjet.load("demo", device="cpu") as model:
        found = [model.predict(image) for _, image in IMAGES]
    made = record(tmp_path / "one.jsonl", found, classes=model.spec.class_names)
    for image, expected in zip(made.images, found, strict=True):
        assert_equal(image.found, expected)


def test_results_for_a_data_set(make):
    results = make(images=[(f"some/folder/{name}", image) for name, image in IMAGES]).to_annotations(TRUTH)
    names = {category["id"]: category["name"] for category in TRUTH["categories"]}
    assert [names[result["category_id"]] for result in results[:3]] == ["car", "truck", "car"]
    assert [result["image_id"] for result in results[::3]] == [0, 1, 2, 3]
    cars = {**TRUTH, "categories": [c for c in TRUTH["categories"] if c["name"] == "car"]}
    assert len(make().to_annotations(cars)) == 8
    assert make(images=IMAGES[:3]).list_left_out(cars) == [
        "'one' has detections of classes that the annotations lack, left out: truck (3).",
        "'one' has 3 of the 4 annotated images.",
    ]


def edited(name, /, **fields):
    """The truth with fields of the first entry of a list changed."""
    return {**TRUTH, name: [{**TRUTH[name][0], **fields}, *TRUTH[name][1:]]}


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ({**TRUTH, "images": TRUTH["images"][1:]}, "annotations must have each image once, 'street 5' is missing"),
        (edited("images", width=161), r"must have 'street 5' with \[96, 160\] pixels, got \[96, 161\]"),
        (edited("images", file_name="street 6"), "different names as 'file_name' in images, got 'street 6'"),
        (edited("images", file_name=None), "different names as 'file_name' in images, got None"),
        (edited("categories", name="truck"), "different names as 'name' in categories, got 'truck'"),
    ],
)
def test_a_record_and_annotations_that_do_not_meet(truth, message, make):
    with pytest.raises(InputError, match=message):
        make().to_annotations(truth)


def test_two_images_are_not_one(make):
    twice = [("a/street 5", IMAGES[0][1]), ("b/street 5", IMAGES[0][1])]
    with pytest.raises(InputError, match="must have each image once, 'b/street 5' is twice"):
        make(images=twice).to_annotations(TRUTH)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "one.jsonl"
    record(path, list(FAULTS.values())[:4])
    return path.read_bytes()


@pytest.fixture
def read(tmp_path):
    def read(data):
        (tmp_path / "one.jsonl").write_bytes(data)
        return read_record(tmp_path / "one.jsonl")

    return read


def join(lines):
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def use(expected, found):
    """All that is done with a record short of opening images."""
    report = check(expected, found) if len(found.images) == 4 else check(found, found)
    str(report).encode()
    json.dumps(report.as_dict(), allow_nan=False)
    judge(report, None, Limits(max_unmatched=1))
    found.to_annotations(TRUTH)
    list_settings(expected, found)


def fuzz(read, expected, mutate, count, seed):
    """Read mutated records, use those that are taken: how many were."""
    random = np.random.default_rng(seed)
    taken = 0
    for _ in range(count):
        try:
            use(expected, read(mutate(random)))
            taken += 1
        except MaskjetError as error:
            str(error).encode()
    return taken


def test_mutants(read, good, make):
    expected, lines = make("two"), [*map(json.loads, good.splitlines())]
    assert fuzz(read, expected, lambda random: flip(random, good, int(random.integers(1, 4))), 50, 0) < 40
    assert fuzz(read, expected, lambda random: good[: int(random.integers(len(good) - 2))], 20, 1) == 0

    def edit(random, among):
        at = int(random.integers(among))
        return join([*lines[:at], replaced(random, lines[at], STRANGE), *lines[at + 1 :]])

    assert fuzz(read, expected, lambda random: edit(random, len(lines)), 150, 2) < 90
    assert fuzz(read, expected, lambda random: edit(random, 1), 50, 3) < 40


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, "format"), "zip", "its first line must have the format 'maskjet record 1'"),
        ((0, "depth"), deep(9), "its first line must be at most 8 levels deep"),
        ((0, "depth"), float("inf"), "Out of range float values are not JSON compliant"),
        ((0, "name"), "a\nkept: all", "name must be in printable characters"),
        ((0, "classes"), {"0": "\x1b[2J"}, "classes must have printable names"),
        ((0, "classes"), {"-1": "car"}, "classes must be named by id"),
        ((0, "thresholds"), {"car": float("nan")}, "Out of range float values"),
        ((0, "thresholds"), {}, r"thresholds must be 0\.\.1"),
        ((1, "digest"), None, "line 2 must have an index, a name and a digest"),
        ((1, "size"), [10**6, 10**6], "line 2 of a record must be right: "),
        ((1, "detections", 0, "confidence"), 7, "line 2 must have boxes near an image"),
        ((1, "detections", 0, "xyxy"), [0, 0, 1e30, 9], "line 2 must have boxes near an image"),
        ((1, "detections", 0, "rle", "counts"), "0", "line 2 of a record must be right: "),
        ((2, "skipped"), [], "line 3 must be the last one"),
    ],
)
def test_wrong_lines_are_named(place, value, message, read, good):
    lines = [*map(json.loads, good.splitlines())]
    at = lines
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    with pytest.raises(SourceError, match=message):
        read(join(lines))


def test_files_that_are_none(read, good, tmp_path):
    with pytest.raises(SourceError, match=r"two\.jsonl' must be a record, there is no such file"):
        read_record(tmp_path / "two.jsonl")
    for data in (b"", b"[" * 200_000, b'{"format": ' + b"9" * 10_000 + b"}", b"\xff\xfe", b"[]\n"):
        with pytest.raises(SourceError, match=REFUSED):
            read(data)
    with pytest.raises(SourceError, match=f"{REFUSED}it is cut off: its last line is missing"):
        read(join(map(json.loads, good.splitlines()[:-1])))


def test_long_lines_and_files_are_refused_before_they_are_parsed(read, good, monkeypatch):
    monkeypatch.setattr(json, "loads", None)
    for name in ("line_bytes", "json_bytes"):
        with monkeypatch.context() as patch:
            patch.setattr(limits, name, 100)
            with pytest.raises(SourceError, match=rf"one\.jsonl' has \d+ bytes, the limit is 100; raise .*{name}"):
                read(good)


def test_images_larger_than_the_limit(read, good, monkeypatch):
    monkeypatch.setattr(limits, "image_pixels", 96 * 160 - 1)
    with pytest.raises(SourceError, match="the image has 15,360 pixels, the limit is 15,359"):
        read(good)


def test_what_could_not_be_read_is_not_written(make, tmp_path):
    for wrong in ({"name": "\n"}, {"threshold": 2}, {"found": [detections(confidence=(0.9, np.nan, 0.5))]}):
        with pytest.raises(InputError):
            make(**wrong)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must be writable"):
        write_record(tmp_path / "file" / "one.jsonl", [], classes={0: "car"}, threshold=0.5)


def test_names_that_are_no_text_are_escaped(make):
    name = b"stra\xdfe.png".decode("utf-8", "surrogateescape")
    (image,) = make(images=[(name, IMAGES[0][1])]).images
    assert re.fullmatch(r"stra\\udcdfe\.png", image.name)


def test_numbers_that_are_none_are_not_paired():
    with pytest.raises(InputError, match=r"confidence of actual must be finite, got .*nan"):
        compare(detections(), detections(confidence=(0.9, np.nan, 0.5)))
    misplaced = detections()
    misplaced.xyxy[1] = np.nan
    with pytest.raises(InputError, match="xyxy of expected must be finite"):
        compare(misplaced, detections())

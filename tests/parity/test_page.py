"""The gate's page: what it says, that it needs nothing else, and that it stays below a megabyte."""

import html.parser
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import OutputError
from maskjet.parity import coco, pictures
from maskjet.parity.check import check
from maskjet.parity.gate import Limits, judge
from maskjet.parity.page import list_settings, show_amount, show_overlap, show_share, write_page
from maskjet.parity.pair import KINDS
from tests.parity.records import BOXES, FAULTS, IMAGES, STREETS, detections, truthful

MEGABYTE = 1_000_000
EMPTY = ("img", "br", "meta")


class Page(html.parser.HTMLParser):
    """Tags must close as they opened."""

    def __init__(self, text):
        super().__init__()
        self.text, self.open, self.tags, self.said = text, [], [], []
        self.feed(text)
        assert self.open == []
        self.words = re.sub(r"\s+", " ", " ".join(self.said))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["title"]):
            self.said.append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_OVERVIEW_SIDE", 320)  # tests/parity/test_pictures.py looks at pictures

    def write(one, two, precision=None, images=IMAGES, **limits):
        report = check(one, two)
        verdicts = judge(report, precision, Limits(**limits or {"max_dconf": 0.01}))
        path = tmp_path / "a" / "page.html"
        write_page(path, report, verdicts, (one, two), (images[each.number][1] for each in report.worst), precision)
        return Page(path.read_text())

    return write


def test_the_verdict_comes_first(write, make):
    one, two = make(), make("two", [FAULTS["dropped"]])
    said = write(one, two, max_unmatched=0.01, max_dconf=0.5).words
    assert said.strip().startswith("Broken: 1 of 2 limits does not hold “two” does not find what “one” finds")
    assert "share of detections without a counterpart 8.33 % , allowed: at most 1 % ✗ broken" in said
    assert "largest difference in confidence 0 , allowed: at most 0.5 ✓ kept" in said
    assert "Among the things that both sides found" in said
    assert write(one, two, max_unmatched=0.01).words.strip().startswith("Broken: the limit does not hold")
    assert write(one, two, max_unmatched=0.5).words.strip().startswith("Kept: the limit holds “two” finds what “one”")
    said = write(one, two, max_unmatched=0.5, max_dconf=0.5).words
    assert said.strip().startswith("Kept: both limits hold")


def test_numbers_are_in_words(write, make):
    said = write(make(), make("two", [FAULTS["box moved"], FAULTS["confidence changed"]])).words
    for words in (
        "found by both (a pair) 12 of 12 (100 %)",
        "95 % of the differences are at most",
        "largest difference 0.05",
        "largest move 3 px",
        "smallest overlap (IoU) 0.8605",
        "the same in every pixel 11 of 12",
        "found by both, the box differs 1 –",
        "box moved by 3.00 px",
        "mask changed, overlap (IoU) 0.8605",
        "confidence changed by 0.0500",
    ):
        assert words in said
    for name in ("p95", "Δ", "RLE", "dropped", "swapped", "NaN", "nan"):
        assert name not in said


def test_precision_is_in_words(write, tmp_path):
    truth = STREETS.truth()
    one, two = truthful(tmp_path / "one.jsonl"), truthful(tmp_path / "two.jsonl")
    less = replace(two, images=[replace(each, found=each.found[:-1]) for each in two.images])
    precision = coco.evaluate(truth, {each.name: each.to_annotations(truth) for each in (one, less)})
    said = write(one, less, precision, max_dap=0.5).words
    assert "difference in accuracy of boxes (mAP)" in said
    assert "difference in accuracy of masks (mAP)" in said
    assert re.search(r"Boxes Average precision \(mAP\) [\d.]+ [\d.]+ −0\.\d{4} at an overlap", said)
    assert "of small things" in said


def test_nothing_is_fetched_and_no_script_runs(write, make):
    page = write(make(), make("two", [FAULTS[kind] for kind in KINDS]))
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "base", "form"}
    for tag, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on")}
        assert attributes.get("src", "data:image/webp;base64,").startswith("data:image/webp;base64,")
        assert attributes.get("href", "#").startswith("#"), tag
    assert "http" not in page.text.replace("http-equiv", "")
    assert "url(" not in page.text
    assert "@import" not in page.text
    assert "{{" not in page.text


def test_pictures_open_by_keyboard_and_are_described(write, make):
    page = write(make(), make("two", [FAULTS["dropped"], FAULTS["box moved"]]))
    pictures = page.all("img")
    assert len(pictures) == 4
    assert all(picture["alt"].endswith("Enlarge.") for picture in pictures)
    alts = " ".join(picture["alt"] for picture in pictures)
    assert "street 5, darkened, with 1 numbered difference." in alts
    assert "street 6, close-up 1, truck 0.75 at (80, 30) to (120, 70): expected, actual" in alts
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    figures = [attributes["id"] for attributes in page.all("figure")]
    links = page.all("a")  # links take the focus, and Enter follows them
    assert [link["class"] for link in links] == ["close", "open"] * len(figures)  # the first one is hidden until opened
    assert [link["href"][1:] for link in links if link["class"] == "open"] == figures
    closing = [link["href"][1:] for link in links if link["class"] == "close"]
    assert len(closing) == len(figures)
    assert set(closing) <= set(ids) - set(figures)


def test_names_are_escaped(write, make):
    script = "</title><script>alert(1)</script>"
    names = {0: "<b>car</b> & 'co'", 1: f'"><img src=x onerror=alert(1)>{{{{ {script} }}}}'}
    images = [(f"{script}{number}", image) for number, (_, image) in enumerate(IMAGES)]
    settings = {"name": script, "classes": names, script: script, "config": {script: [script]}}
    one = make(found=[detections(class_names=names)] * 4, images=images, **settings)
    two = make("two", [detections(BOXES[:2], class_names=names)], images=images, **settings)
    page = write(replace(one, skipped=["<i>no</i>"]), two, images=images)
    assert "<b>car</b> & 'co' 0.50 at (100, 72)" in page.words
    assert f"Note: '{script}' is without 1 images that could not be read: <i>no</i>" in page.words
    assert f"“{script}”" in page.words
    assert page.text.count("&lt;script&gt;") > 10
    assert not [*page.all("script"), *page.all("i"), *(image for image in page.all("img") if "onerror" in image)]
    long = write(make(name="x" * 5000), make("two", [FAULTS["dropped"]], name="y" * 5000))
    assert len(re.sub(r'base64,[^"]*', "", long.text)) < 40_000  # so that names leave the bytes to the pictures


def test_settings_that_differ_are_marked(write, make):
    config = {"precision": "bf16", "compile": None, "nvtx": False, "batch": 8}
    one = make(batch=4, config={**config, "precision": "fp32"})
    two = make("two", batch=4, config=config, more=[1])
    two.about["machine"]["versions"] |= {"torch": "3"}
    two.about["machine"]["measured_at"] = one.about["machine"]["measured_at"]
    settings = list_settings(one, two)
    assert [name for name, texts in settings.items() if texts[0] != texts[1]] == [
        "precision",
        "versions.torch",
        "more",
    ]
    assert settings["precision"] == ("fp32", "bf16")
    assert settings["more"] == ("(not stated)", "[1]")
    assert settings["compile"][0] == "not set"
    assert settings["nvtx"][0] == "no"
    assert (settings["batch"][0], settings["engine.batch"][0]) == ("4", "8")
    assert "name" not in settings
    page = write(one, two)
    assert len([row for row in page.all("tr") if row.get("class") == "differs"]) == 3
    assert "precision differs fp32 bf16" in page.words
    assert f"{len(settings) - 3} settings that are the same" in page.words
    assert "All settings and versions are the same." in write(make(), make("two")).words


def test_rounding_is_not_called_a_change(write, make):
    rounded = detections(confidence=(np.nextafter(np.float32(0.9), np.float32(1)), 0.75, 0.5))
    said = write(make(), make("two", [rounded])).words
    assert "3 images identical, bit for bit 1 identical but for rounding 0 with differences" in said
    assert "found by both, the confidence differs 0 1" in said
    assert "Nowhere, but for rounding." in said
    assert "confidence changed" not in said
    assert "largest difference below 0.0001 (6.0e-08)" in said


def test_the_page_of_no_difference(write, make, tmp_path):
    page = write(make(), make("two"), max_dconf=0)
    assert "Kept: the limit holds" in page.words
    assert "Nowhere." in page.words
    assert "Accuracy of each" not in page.words
    assert page.all("img") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must be writable"):
        write_page(tmp_path / "file" / "page.html", check(make(), make("two")), [], (make(), make("two")), [])


def test_without_masks_and_pairs(write, make):
    bare = Detections((96, 160), np.array(BOXES, np.float32), np.full(3, 0.5, np.float32), np.zeros(3, np.int32))
    said = write(make(found=[bare] * 4), make("two", [bare] * 4)).words
    assert "Mask of a pair" not in said
    said = write(make(), make("two", [detections(())] * 4), max_dconf=1).words
    assert "largest difference no pairs" in said
    assert "not measured , allowed: at most 1 ✗ broken" in said


@pytest.mark.slow
def test_a_page_of_noise_is_below_a_megabyte(write, make, monkeypatch):
    monkeypatch.undo()
    count, size_hw = 6, (360, 640)
    height, width = size_hw
    noise = np.random.default_rng(3).integers(256, size=(*size_hw, 3), dtype=np.uint8)
    images = [(f"noise {number}", noise) for number in range(count)]
    sides = []
    for name, shorter in (("one", 0), ("two", 7)):
        boxes = [(n * width // 8, n, (n + 1) * width // 8, height - shorter) for n in range(8)]
        found = detections(boxes, [0] * 8, [0.5] * 8, size_hw=size_hw)
        sides.append(make(name, [found] * count, images=images))
    page = write(*sides, images=images)
    assert len(page.all("img")) == count * (1 + 36 // count)
    assert 0.6 * MEGABYTE < len(page.text.encode()) < MEGABYTE


def test_values_are_truthful():
    assert show_amount(0) == "0"
    assert show_amount(0.0123456) == "0.01235"
    assert show_amount(1e-7) == "below 0.0001 (1.0e-07)"
    assert show_amount(math.nan) == show_share(math.nan) == "not measured"
    assert show_share(0.123456) == "12.3 %"
    assert show_overlap(1) == "1 (the same)"
    assert show_overlap(1 - 1e-6) == "above 0.9999"
    assert show_overlap(0.87654) == "0.8765"

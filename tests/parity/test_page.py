"""The gate's page: what it says, and that it needs nothing else."""

import html.parser
import re
from dataclasses import replace

import numpy as np
import pytest

from maskjet.detections import Detections
from maskjet.errors import OutputError
from maskjet.parity import coco, pictures
from maskjet.parity.check import check
from maskjet.parity.gate import Limits, judge
from maskjet.parity.page import list_settings, write_page
from maskjet.parity.pair import KINDS
from tests.parity.records import BOXES, FAULTS, IMAGES, STREETS, detections, truthful

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
    assert "share of detections without a counterpart 0.08333 , allowed: at most 0.01 ✗ broken" in said
    assert "largest difference in confidence 0 , allowed: at most 0.5 ✓ kept" in said
    assert write(one, two, max_unmatched=0.01).words.strip().startswith("Broken: the limit does not hold")
    assert write(one, two, max_unmatched=0.5).words.strip().startswith("Kept: the limit holds “two” finds what “one”")
    said = write(one, two, max_unmatched=0.5, max_dconf=0.5).words
    assert said.strip().startswith("Kept: both limits hold")


def test_differences_are_counted_and_described(write, make):
    said = write(make(), make("two", [FAULTS["box moved"], FAULTS["confidence changed"]])).words
    for words in (
        "box moved 1 –",
        "found only by the expected side 0 –",
        "box moved by 3.00 px",
        "mask changed, IoU 0.8605",
        "confidence changed by 0.0500",
        "one two 0.05 12 (100.00%) 0 0 0",
    ):
        assert words in said


def test_precision_has_a_table(write, tmp_path):
    truth = STREETS.truth()
    one, two = truthful(tmp_path / "one.jsonl"), truthful(tmp_path / "two.jsonl")
    less = replace(two, images=[replace(each, found=each.found[:-1]) for each in two.images])
    precision = coco.evaluate(truth, {each.name: each.to_annotations(truth) for each in (one, less)})
    said = write(one, less, precision, max_dap=0.5).words
    assert "difference in bbox mAP" in said
    assert re.search(r"two segm 0\.\d{4} [\d. -]+ -0\.\d{4}", said)


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
    differing = [name for name, texts in settings.items() if texts[0] != texts[1]]
    assert differing == ["config.precision", "machine.versions.torch", "more"] == [*settings][:3]
    assert settings["config.precision"] == ("fp32", "bf16")
    assert settings["more"] == ("(not stated)", "[1]")
    assert (settings["batch"][0], settings["config.batch"][0]) == ("4", "8")
    assert not {"name", "classes.0", "machine.load"} & settings.keys()
    page = write(one, two)
    assert len([row for row in page.all("tr") if row.get("class") == "differs"]) == 3
    assert "config.precision differs fp32 bf16" in page.words


def test_rounding_is_not_called_a_change(write, make):
    rounded = detections(confidence=(np.nextafter(np.float32(0.9), np.float32(1)), 0.75, 0.5))
    said = write(make(), make("two", [rounded])).words
    assert "3 images identical, bit for bit 1 identical but for rounding 0 with differences" in said
    assert "confidence changed 0 1" in said
    assert "Nowhere, but for rounding." in said
    assert "confidence changed by" not in said
    assert "largest difference in confidence 5.96e-08" in said


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
    assert "1.000 - - -" in said
    said = write(make(), make("two", [detections(())] * 4), max_dconf=1).words
    assert "not measured , allowed: at most 1 ✗ broken" in said

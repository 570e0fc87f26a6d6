"""The gate: limits, exit codes, and the page."""

import html.parser
import math
import re

import pytest

from maskjet.errors import InputError, OutputError
from maskjet.parity import coco
from maskjet.parity.check import check
from maskjet.parity.gate import Limits, Verdict, judge, write_page
from maskjet.parity.pair import KINDS
from tests.parity.dumps import FAULTS, STREETS, detections, dump, truthful

LIMIT = {"dropped": "max_unmatched", "added": "max_unmatched", "class swapped": "max_unmatched"}


@pytest.mark.parametrize("kind", [*LIMIT, "confidence changed"])
def test_a_fault_breaks_its_limit_and_no_other(kind):
    report = check(dump(), dump("two", [FAULTS[kind]]))
    limits = {"max_unmatched": 0.01, "max_dconf": 0.01}
    verdicts = judge(report, None, Limits(**limits))
    assert [verdict.limit for verdict in verdicts] == [0.01, 0.01]
    broken = [name for name, verdict in zip(limits, verdicts, strict=True) if not verdict.is_kept]
    assert broken == [LIMIT.get(kind, "max_dconf")]


def test_a_limit_holds_up_to_its_value():
    report = check(dump(), dump("two", [FAULTS["dropped"]]))
    share = 1 / 12
    assert judge(report, None, Limits(max_unmatched=share + 1e-9))[0].is_kept
    assert not judge(report, None, Limits(max_unmatched=share - 1e-9))[0].is_kept
    assert not Verdict("nothing known", math.nan, 1).is_kept
    assert str(Verdict("what", 0.25, 0.1)) == "BROKEN: what 0.25, limit 0.1"


def test_precision_is_judged_for_boxes_and_masks():
    truth = STREETS.truth()
    one, two = dump(), dump("two", [FAULTS["dropped"]])
    precision = coco.evaluate(truth, {"one": one.to_coco(truth), "two": two.to_coco(truth)}, resamples=0)
    verdicts = judge(check(one, two), precision, Limits(max_dap=0.5))
    nothing = "of which both have none,"  # boxes at places where the streets have nothing
    assert [verdict.what for verdict in verdicts] == [f"difference in {kind} mAP, {nothing}" for kind in coco.KINDS]
    assert not any(verdict.is_kept for verdict in verdicts)
    one, two = truthful("one"), truthful("two")
    precision = coco.evaluate(truth, {"one": one.to_coco(truth), "two": two.to_coco(truth)}, resamples=0)
    verdicts = judge(check(one, two), precision, Limits(max_dap=0))
    assert [verdict.what for verdict in verdicts] == ["difference in bbox mAP", "difference in segm mAP"]
    assert all(verdict.is_kept for verdict in verdicts)


def test_what_is_wrong_is_named():
    report = check(dump(), dump("two"))
    with pytest.raises(InputError, match="at least one of max_unmatched, max_dconf and max_dap must be given"):
        judge(report, None, Limits())
    with pytest.raises(InputError, match="max_dap needs a truth: generated traffic, or a COCO data set"):
        judge(report, None, Limits(max_dap=0.1))
    with pytest.raises(InputError, match=r"max_dconf must be 0\.\.1, got 2"):
        Limits(max_dconf=2)


class _Page(html.parser.HTMLParser):
    """Tags must close as they opened."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.words = [], 0, []
        self.feed(text)

    def handle_starttag(self, tag, _attrs):
        self.images += tag == "img"
        if tag not in ("img", "br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_says_what_happened(tmp_path):
    truth = STREETS.truth()
    one, two = dump("the <old> one"), dump("two", [FAULTS[kind] for kind in KINDS[:4]])
    report = check(one, two)
    results = {each.name: each.to_coco(truth) for each in (one, two)}
    precision = coco.evaluate(truth, results, resamples=0)
    verdicts = judge(report, precision, Limits(max_unmatched=0.1, max_dap=0))
    write_page(tmp_path / "a" / "page.html", report, verdicts, (one, two), precision)
    text = (tmp_path / "a" / "page.html").read_text()
    page = _Page(text)
    assert page.open == []
    assert page.images == 4
    said = re.sub(r"\s+", " ", "".join(page.words))
    assert "Does “two” still find what “the <old> one” finds?" in said
    assert "No: a limit that was set does not hold." in said
    for kind in KINDS:
        assert kind in said
    assert "street 8" in said
    assert "AP" in said
    assert "{{" not in text
    assert text.count("data:image/jpeg;base64,") == 4
    assert "http" not in text  # nothing is fetched


def test_the_page_of_no_difference(tmp_path):
    report = check(dump(), dump("two"))
    verdicts = judge(report, None, Limits(max_dconf=0))
    write_page(tmp_path / "page.html", report, verdicts, (dump(), dump("two")))
    text = (tmp_path / "page.html").read_text()
    assert "Yes, within the limits that were set." in text
    assert "Nowhere." in text
    assert "Accuracy of each" not in text
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must be writable"):
        write_page(tmp_path / "file" / "page.html", report, verdicts, (dump(), dump("two")))


def test_nothing_compared_is_never_kept():
    nothing = [detections(())] * 4
    report = check(dump(found=nothing), dump("two", nothing))
    with pytest.raises(InputError, match="must have detections to compare, 'one' and 'two' have none on 4 images"):
        judge(report, None, Limits(max_unmatched=0))
    report = check(dump(), dump("two", nothing))
    (verdict,) = judge(report, None, Limits(max_dconf=1))  # none is paired
    assert not verdict.is_kept

"""The gate: limits and verdicts."""

import math

import pytest

from maskjet.errors import InputError
from maskjet.parity import coco
from maskjet.parity.check import check
from maskjet.parity.gate import Limits, Verdict, check_comparable, judge
from tests.parity.records import FAULTS, STREETS, detections, truthful

LIMIT = {"dropped": "max_unmatched", "added": "max_unmatched", "class swapped": "max_unmatched"}


@pytest.mark.parametrize("kind", [*LIMIT, "confidence changed"])
def test_a_fault_breaks_its_limit_and_no_other(kind, make):
    report = check(make(), make("two", [FAULTS[kind]]))
    limits = {"max_unmatched": 0.01, "max_dconf": 0.01}
    verdicts = judge(report, None, Limits(**limits))
    assert [verdict.limit for verdict in verdicts] == [0.01, 0.01]
    broken = [name for name, verdict in zip(limits, verdicts, strict=True) if not verdict.is_kept]
    assert broken == [LIMIT.get(kind, "max_dconf")]


def test_a_limit_holds_up_to_its_value(make):
    report = check(make(), make("two", [FAULTS["dropped"]]))
    share = 1 / 12
    assert judge(report, None, Limits(max_unmatched=share + 1e-9))[0].is_kept
    assert not judge(report, None, Limits(max_unmatched=share - 1e-9))[0].is_kept
    assert [Verdict("q", value, 0).is_kept for value in (0, math.nan)] == [True, False]
    assert str(Verdict("quantity", 0.25, 0.1)) == "BROKEN: quantity 0.25, limit 0.1"


def test_precision_is_judged_for_boxes_and_masks(make, tmp_path):
    truth = STREETS.truth()
    one, two = make(), make("two", [FAULTS["dropped"]])
    precision = coco.evaluate(truth, {"one": one.to_annotations(truth), "two": two.to_annotations(truth)})
    verdicts = judge(check(one, two), precision, Limits(max_dap=0.5))
    nothing = "of which both have none,"  # boxes at places where the streets have nothing
    assert [verdict.quantity for verdict in verdicts] == [f"difference in {kind} mAP, {nothing}" for kind in coco.KINDS]
    assert not any(verdict.is_kept for verdict in verdicts)
    one, two = truthful(tmp_path / "one.jsonl"), truthful(tmp_path / "two.jsonl")
    precision = coco.evaluate(truth, {"one": one.to_annotations(truth), "two": two.to_annotations(truth)})
    verdicts = judge(check(one, two), precision, Limits(max_dap=0))
    assert [verdict.quantity for verdict in verdicts] == ["difference in bbox mAP", "difference in segm mAP"]
    assert all(verdict.is_kept for verdict in verdicts)


def test_what_is_wrong_is_named(make):
    report = check(make(), make("two"))
    with pytest.raises(InputError, match="at least one of max_unmatched, max_dconf and max_dap must be given"):
        judge(report, None, Limits())
    with pytest.raises(InputError, match="max_dap must go with annotations"):
        judge(report, None, Limits(max_dap=0.1))
    with pytest.raises(InputError, match=r"max_dconf must be 0\.\.1, got 2"):
        Limits(max_dconf=2)


def test_nothing_compared_is_never_kept(make):
    nothing = [detections(())] * 4
    with pytest.raises(InputError, match="must have detections to compare, 'one' and 'two' have none on 4 images"):
        check_comparable(make(found=nothing), make("two", nothing))
    report = check(make(), make("two", nothing))
    (verdict,) = judge(report, None, Limits(max_dconf=1))  # none is paired
    assert not verdict.is_kept

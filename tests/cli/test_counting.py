"""Counts of lines and zones on the command line."""

import json
import re

import pytest

from maskjet.model import Model
from maskjet.outputs import events
from maskjet.tracking import Counting, parse_counters
from tests.outputs.outputs import lines

SPECS = ["gate=line:0,50,160,45:anchor=bottom", "zone:0,30,160,30,160,96,0,96:frames=1"]
COUNTS = [word for spec in SPECS for word in ("--count", spec)]


@pytest.fixture(autouse=True)
def in_its_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def streamed(monkeypatch):
    """What the run's streams gave."""
    given, real = [], Model.stream

    def stream(self, source, **options):
        assert options["track"] is True
        for frame, found in real(self, source, **options):
            given.append((frame, found))
            yield frame, found

    monkeypatch.setattr(Model, "stream", stream)
    return given


def test_counts_are_in_the_summary_and_the_outputs(maskjet, clip, streamed):
    outs = "-o out.jsonl -o out.events.jsonl -o out.mp4 -o out.txt --threshold 0.3 --json"
    code, out, err = maskjet(f"run {clip} {outs}", *COUNTS)
    assert (code, err) == (0, "")
    counting = Counting(parse_counters(SPECS))
    counted = [counting.update(frame, found).counts for frame, found in streamed]
    summary = json.loads(out)
    assert summary["sources"][0]["counts"] == {count.name: count.as_dict() for count in counted[-1]}
    assert sum(summary["sources"][0]["counts"]["zone2"]["in"].values()) > 0
    assert [each["counts"] for each in lines("out.jsonl")] == [
        {count.name: count.as_dict() for count in counts} for counts in counted
    ]
    happened = [event for counts in counted for count in counts for event in count.events]
    assert [each["track_id"] for each in lines("out.events.jsonl")] == [event.track_id for event in happened]


def test_each_source_is_counted_for_itself(maskjet, clip):
    for more in ("", " --side-by-side"):
        code, _, err = maskjet(f"run {clip} {clip} -o all.events.jsonl --threshold 0.3{more}", *COUNTS)
        assert code == 0
        told = [line.partition(".mp4: ")[2] for line in err.splitlines() if ": zone2: " in line]
        assert len(told) == 2
        assert told[0] == told[1]
        assert len(lines("all.events.jsonl")) % 2 == 0


def test_lost_events_are_told_and_end_nothing(maskjet, clip, monkeypatch):
    monkeypatch.setattr(events, "_DELAYS_S", (0.0,))
    outs = "-o http://me:secret@127.0.0.1:9/hook?key=hidden --threshold 0.3"
    code, _, err = maskjet(f"run {clip} -o a.jsonl {outs}", *COUNTS)
    assert code == 4
    assert re.search(
        r"^maskjet: http://127.0.0.1:9/hook.* took 0 of \d+ events: Connection refused$", err, re.MULTILINE
    )
    assert "lost, not delivered" in err
    assert re.findall("wrote .*", err) == ["wrote a.jsonl"]
    assert "secret" not in err
    assert "hidden" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-o a.events.jsonl", "--out must go with --count where it gets events, got 'a.events.jsonl' without."),
        ("-o mqtt://me:pw@a/b -o a.csv", "--out must go with --count where it gets events, got 'mqtt://a/b' without."),
        ("-o a.txt", "--out must go with --track where it lists tracks, got 'a.txt' without."),
        ("-o a.csv --count line:1,2", "--count must be [NAME=]line:x1,y1,x2,y2"),
        ("-o a.csv --count a=line:1,2,3,4 --count a=line:1,2,3,5", "--count must have names of their own, got a, a."),
    ],
)
def test_what_is_wrong_is_one_line(words, message, maskjet, clip):
    code, out, err = maskjet(f"run {clip} {words}")
    assert (code, out) == (2, "")
    assert err.startswith(f"maskjet: {message}")
    assert err.count("\n") == 1

"""The benchmark of the host's time adds up what it says, and leaves the engine as it was."""

import json
import threading
from dataclasses import replace

import pytest

from benchmarks import host_time
from maskjet.config import EngineConfig

CASES = [
    ("96 × 64, 1 source", 4),
    ("96 × 64, 3 sources in one batch", 3),
    ("120 × 90, 1 source", 4),
    ("120 × 90, 3 sources in one batch", 3),
]


def methods():
    return [vars(owner)[method] for owner, method in host_time.SECTIONS.values()]


def test_the_parts_make_the_whole(monkeypatch, tmp_path):
    monkeypatch.setattr(host_time, "_WARM_UP", 1)
    before, path = methods(), tmp_path / "host.json"
    found = host_time.run(
        path, sizes_hw=[(64, 96)], config=EngineConfig(device="cpu", engine="eager"), sources=3, seconds=0.5
    )
    assert methods() == before
    assert [(each.case.sources, each.case.depth) for each in found.cases] == [(1, 4), (3, 3)]
    for each in found.cases:
        assert each.fps > 0 < each.wrapped_fps
        assert (each.replay_fps, each.replays_fps, each.share, each.polls) == (None, None, None, 0)
        names = [section.name for section in each.sections]
        assert names == ["taking frames", "reading results", "steps one by one"]
        assert max(each.sections, key=lambda section: section.cpu_us).name == "steps one by one"
        calls = {section.name: section.calls for section in each.sections}
        assert calls["reading results"] == calls["steps one by one"] <= 1.5
    assert (found.two, found.notes) == ([], [])
    written = json.loads(path.read_text())
    assert len(written["cases"]) == 2
    assert written["cases"][0]["case"] == {"sources": 1, "depth": 4, "size_hw": [64, 96]}
    assert "3 sources in one batch, depth 3" in str(found)


def test_what_no_time_is_left_for_is_a_note(tmp_path):
    path, config = tmp_path / "host.json", EngineConfig(device="cpu", engine="eager")
    found = host_time.run(path, sizes_hw=[(64, 96), (90, 120)], config=config, sources=3, limit_s=0)
    notes = [f"{case}, depth {depth}: left out, 0 s were over." for case, depth in CASES]
    assert (found.cases, found.notes) == ([], notes)
    assert json.loads(path.read_text())["notes"] == notes
    assert str(found).endswith("\n".join(["", *notes]))


def test_a_method_within_another_counts_once(monkeypatch):
    clock = iter(range(0, 10_000_000, 1000))  # each look at a clock takes a microsecond
    monkeypatch.setattr(host_time.time, "thread_time_ns", lambda: next(clock))
    monkeypatch.setattr(host_time.time, "perf_counter_ns", lambda: next(clock))
    watch = host_time._Watch()
    inner = watch.wrap("copying", lambda: 7)
    outer = watch.wrap("submitting, the rest", lambda: inner() + inner())
    assert outer() == 14
    spent = {each.name: (each.calls, each.cpu_us, each.wall_us) for each in watch.sections(1)}
    assert spent["copying"] == (2, 2.0, 6.0)
    assert spent["submitting, the rest"] == (1, 9.0 - 2.0, 11.0 - 6.0)
    assert spent["waiting"] == (0, 0, 0)
    watch.begin()
    assert {each.calls for each in watch.sections(1)} == {0}


def test_other_threads_and_errors():
    watch = host_time._Watch()

    def breaks():
        raise KeyError("x")

    wrapped = watch.wrap("copying", breaks)
    with pytest.raises(KeyError):
        wrapped()
    thread = threading.Thread(target=watch.wrap("copying", lambda: None))
    thread.start()
    thread.join()
    assert [each.calls for each in watch.sections(1)][1] == 1
    assert watch._inner == []


def test_what_a_gpu_shows_is_told():
    case = host_time.Case(16, 3, (176, 312))
    one = host_time.HostTime(case, 9, 3900.0, 50.0, 20.0, 3800.0, 1.0, 0.2, [], 7.0, 4000.0, 4450.0)
    pair = host_time.TwoThreads(replace(case, sources=1, depth=4), 1000.0, 1910.0)
    text = str(host_time.HostReport(None, "m", "cuda", 0.9, [one], [pair]))
    assert "4,000 from one slot, 4,450 in flight; streaming gives 87.6% of these" in text
    assert "two 1,910: 1.91 times one" in text

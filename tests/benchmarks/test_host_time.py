"""The benchmark of the host's time adds up what it says, and leaves the engine as it was."""

import json
import threading

import pytest

from benchmarks import host_time
from maskjet.config import EngineConfig


@pytest.fixture
def run(tmp_path, monkeypatch, network):
    """The benchmark of a tiny network: what it returns and what it writes."""
    monkeypatch.setattr(host_time, "read_network", lambda *_: network)
    monkeypatch.setattr(host_time, "_WARM_UP", 1)
    monkeypatch.setattr(host_time, "_PROBES", 100)
    config = EngineConfig(device="cpu", engine="eager")

    def run(**options):
        found = host_time.run(tmp_path / "host.json", sizes_hw=[(64, 96)], config=config, sources=3, **options)
        return found, json.loads((tmp_path / "host.json").read_text())

    return run


@pytest.mark.slow
def test_the_parts_make_the_whole(run):
    before = [vars(owner)[method] for owner, method in host_time.SECTIONS.values()]
    found, written = run(seconds=0.1)
    assert [vars(owner)[method] for owner, method in host_time.SECTIONS.values()] == before
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
    assert len(written["cases"]) == 2
    assert written["cases"][0]["case"] == {"sources": 1, "depth": 4, "size_hw": [64, 96]}


def test_what_no_time_is_left_for_is_a_note(run):
    found, written = run(limit_s=0)
    names = ("96 × 64, 1 source, depth 4", "96 × 64, 3 sources in one batch, depth 3")
    notes = [f"{name}: left out, 0 s were over." for name in names]
    assert (found.cases, found.notes, written["notes"]) == ([], notes, notes)
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

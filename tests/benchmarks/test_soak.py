"""The soak of many sources counts what it says."""

import itertools
import os
import time

import pytest

from benchmarks import soak, trend
from maskjet.config import EngineConfig
from maskjet.media.frames import Frame
from maskjet.model import Model


def test_all_sources_go_on(monkeypatch):
    monkeypatch.setattr(soak, "_FRAMES", 5)
    found = soak.soak(3.0, sources=3, size_hw=(64, 96), config=EngineConfig(device="cpu"))
    assert found.out_of_turn == 0
    assert found.frames > 3 * soak._FRAMES  # the videos were opened again
    assert 0 < found.fewest <= found.most <= found.fewest + 30
    assert found.detections > found.frames
    assert found.gpu_mib is None
    assert "3 sources" in str(found)


@pytest.mark.parametrize(("indices", "wrong"), [([0, 1, 2, 3], 0), ([0, 2, 3, 4], 3), ([0, 0, 1, 2], 3)])
def test_frames_out_of_turn_are_counted(indices, wrong, monkeypatch):
    def stream(*_, **__):
        for index in indices:
            yield Frame(index, None, None, "s", "n"), []

    monkeypatch.setattr(soak, "_FRAMES", 2)
    monkeypatch.setattr(Model, "stream", stream)
    monkeypatch.setattr(soak.Sampler, "trend", lambda *_: soak.Trend(0, 0, 0, 0))
    assert soak.soak(9.0, sources=1, size_hw=(64, 96), config=EngineConfig(device="cpu")).out_of_turn == wrong


def test_further_samples_are_taken(monkeypatch):
    monkeypatch.setattr(trend, "_SAMPLE_S", 0.001)
    rising = itertools.count(1.0)
    sampler = trend.Sampler(os.getpid(), {"more": lambda: next(rising)})
    sampler.start()
    while len(sampler.times_s) < 40:
        time.sleep(0.001)
    sampler.stop()
    found = sampler.trend("more")
    assert found.most == len(sampler.times_s) == len(sampler.samples["rss_mib"])
    assert len(sampler.times_s) / 2 < found.start < found.end < found.most
    assert found.per_minute > 0

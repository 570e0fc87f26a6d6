"""The soak of many sources counts what it says."""

import pytest

from benchmarks import soak
from maskjet.config import EngineConfig
from maskjet.model import Model
from maskjet.sources.frames import Frame


@pytest.fixture(autouse=True)
def _short(monkeypatch, network):
    monkeypatch.setattr(soak, "plant_network", lambda *_, **__: network)
    monkeypatch.setattr(soak, "_FRAMES", 2)
    monkeypatch.setattr("benchmarks.trend._SAMPLE_S", 0.1)


def test_frames_out_of_turn_are_counted(monkeypatch):
    monkeypatch.setattr(soak.Sampler, "trend", lambda *_: soak.Trend(0, 0, 0, 0))
    for indices, wrong in (([0, 1, 2, 3], 0), ([0, 2, 3, 4], 3), ([0, 0, 1, 2], 3)):
        frames = [(Frame(index, None, None, "s", "n"), []) for index in indices]
        monkeypatch.setattr(Model, "stream", lambda *_, frames=frames, **__: (each for each in frames))
        assert soak.soak(9.0, sources=1, size_hw=(64, 96), config=EngineConfig(device="cpu")).out_of_turn == wrong

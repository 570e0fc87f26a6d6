"""One demo model for the tests of the service."""

import pytest

import maskjet


@pytest.fixture(scope="session")
def model():
    with maskjet.load("demo", device="cpu", threshold=0.3) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def warmed_up_quickly(monkeypatch):
    monkeypatch.setattr("maskjet.serve.dispatcher._SIZES_HW", ((64, 64),))


@pytest.fixture(scope="session")
def street():
    return maskjet.traffic.sample(seed=3, size_hw=(180, 320)).image

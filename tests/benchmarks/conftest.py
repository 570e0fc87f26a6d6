"""Benchmarks under test measure the machine's memory with little of it, and networks that take milliseconds."""

from copy import deepcopy

import pytest

from benchmarks import ops
from benchmarks.planted import TINY, plant_network
from maskjet import traffic


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setitem(ops._COPIED_BYTES, "cpu", 2**20)


@pytest.fixture(scope="session")
def planted_network():
    return plant_network(TINY, [traffic.sample(seed, size_hw=(96, 160)).image for seed in range(5)], survivors=6)


@pytest.fixture
def network(planted_network):
    """Finds about six things on a street of 160 × 96 pixels; a copy, as a model moves and converts its network."""
    return deepcopy(planted_network)

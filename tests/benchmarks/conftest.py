"""Benchmarks under test measure the machine's memory with little of it."""

import pytest

from maskjet.parity import machine


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setitem(machine._COPIED_BYTES, "cpu", 2**20)

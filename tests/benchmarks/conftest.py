"""Benchmarks under test measure the machine's memory with little of it."""

import pytest

from benchmarks import ops


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch):
    monkeypatch.setitem(ops._COPIED_BYTES, "cpu", 2**20)

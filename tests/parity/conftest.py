"""What tests of parity share."""

import pytest

from maskjet.model import read_network


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    """Reports say where they were made: that takes longer than all else here."""
    for module in ("parity.check", "parity.coco", "evaluation.scoring"):
        monkeypatch.setattr(f"maskjet.{module}.describe_machine", lambda: None)


@pytest.fixture(scope="module")
def network():
    return read_network("demo")

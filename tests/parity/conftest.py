"""What tests of parity share."""

import pytest

from tests.parity.records import record


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    """Reports say where they were made: that takes longer than all else here."""
    for module in ("parity.check", "parity.coco", "evaluation.scoring"):
        monkeypatch.setattr(f"maskjet.{module}.describe_machine", lambda: None)


@pytest.fixture
def make(tmp_path):
    """Makes a record of a name, of given detections; see `record`."""
    return lambda stem="one", found=None, **more: record(tmp_path / f"{stem}.jsonl", found, **more)

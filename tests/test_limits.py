"""Limits of what comes from outside."""

import pytest

from maskjet import limits
from maskjet.errors import CheckpointError, InputError


@pytest.fixture(autouse=True)
def _limits_as_before(monkeypatch):
    for name in limits.NAMES:
        monkeypatch.setattr(limits, name, getattr(limits, name))


def test_what_is_larger_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(limits, "image_pixels", 1000)
    limits.check("image_pixels", 1000, "'a.png' has")
    with pytest.raises(InputError, match=r"'a\.png' has 1,001 pixels, the limit is 1,000; raise maskjet\.limits\."):
        limits.check("image_pixels", 1001, "'a.png' has")
    with pytest.raises(CheckpointError, match=r"raise .*MASKJET_LIMIT_CHECKPOINT_BYTES if you trust it"):
        limits.check("checkpoint_bytes", 2**60, "'a.pt' has", CheckpointError)


@pytest.mark.parametrize("text", ["0", "1e9", "", "9" * 5000])
def test_other_than_whole_numbers_are_refused(monkeypatch, text):
    monkeypatch.setenv("MASKJET_LIMIT_LINE_BYTES", text)
    with pytest.raises(InputError, match="MASKJET_LIMIT_LINE_BYTES must be a whole number of at least 1, got"):
        limits.read_environment()
    monkeypatch.setenv("MASKJET_LIMIT_LINE_BYTES", "7")
    limits.read_environment()
    assert limits.line_bytes == 7

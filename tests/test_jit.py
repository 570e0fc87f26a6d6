"""Compiled functions: at import, and also where nothing can be cached."""

import numpy as np
import pytest
from numba.core.caching import CacheImpl

from maskjet.jit import compiled


def total(values):
    result = 0
    for value in values:
        result += value
    return result


@pytest.mark.parametrize("can_cache", [True, False])
def test_compiles_with_and_without_a_place_to_cache(monkeypatch, can_cache):
    if not can_cache:
        monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    function = compiled("int64(Array(int64, 1, 'A', True))")(total)
    assert len(function.signatures) == 1  # before any call
    frozen = np.arange(10)[::3]
    frozen.flags.writeable = False
    assert function(frozen) == 18


def test_other_failures_are_not_swallowed(monkeypatch):
    def fail(*_):
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(CacheImpl, "__init__", fail)
    with pytest.raises(RuntimeError, match="disk on fire"):
        compiled("int64(Array(int64, 1, 'A', True))")(total)

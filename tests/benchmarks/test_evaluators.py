"""The contest of COCO evaluators, of those that are installed for tests."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import evaluators


@pytest.mark.parametrize("kind", ["bbox", "segm"])
def test_an_evaluator_is_compared(kind):
    data, sent = evaluators.make_data(3), []
    for name in ("pycocotools", "hotcoco"):
        evaluators.run(name, kind, data, SimpleNamespace(send=sent.append))
    (_, expected), (_, found) = sent
    assert 0 < expected["stats"][0] < 1
    assert all(evaluators._tell([found[name]], [expected[name]]) == "equal" for name in expected)
    assert evaluators._tell([np.array([0.5])], [np.array([0.25])]) == "within 2.5e-01"

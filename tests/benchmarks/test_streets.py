"""Streets of studies: the same every time, from however many processes."""

import os

import numpy as np
import pytest

from benchmarks import streets as streets_module
from benchmarks.streets import Streets
from maskjet import traffic


def test_streets_know_what_is_on_them():
    streets = Streets(2, (96, 160), seed=4)
    truth = streets.truth()
    assert [image["file_name"] for image in truth["images"]] == ["street 4", "street 5"]
    assert [one["id"] for one in truth["annotations"]] == list(range(1, len(truth["annotations"]) + 1))
    scenes = [traffic.sample(seed, size_hw=(96, 160)) for seed in (4, 5)]
    assert len(truth["annotations"]) == sum(len(scene.class_id) for scene in scenes) > 0


@pytest.mark.slow
def test_processes_draw_the_same_streets_in_order(monkeypatch):
    streets = Streets(5, (32, 48), seed=8)
    expected = list(streets.read())
    monkeypatch.setattr(streets_module, "_PER_PROCESS", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    np.testing.assert_array_equal(list(streets.read()), expected)
    beginning = streets.read()
    np.testing.assert_array_equal(next(beginning), expected[0])
    beginning.close()  # and the processes with it

"""The parts of `Steps` that need no network."""

import pytest
import torch

from maskjet import ops
from maskjet.config import EngineConfig
from maskjet.engine.steps import WorkOptions
from maskjet.errors import InputError
from maskjet.model import Model
from maskjet.ops.memory import Scratch
from tests.networks.test_network import tiny_network
from tests.threads import run_at_once


def test_frames_that_can_not_be_worked_on_are_named():
    model = Model(tiny_network(), EngineConfig(device="cpu", max_detections=2**40))
    with model, pytest.raises(InputError, match="max_detections must be at most 268,435,456 here"):
        model.predict(torch.zeros(4, 4, 3, dtype=torch.uint8).numpy())


def test_models_count_their_own_fallbacks_in_threads():
    models = [Model(tiny_network(), EngineConfig(device="cpu")) for _ in range(2)]
    ops.FALLBACKS.clear()

    def count(model, times):
        for _ in range(times):
            steps = model._engine.steps
            options = WorkOptions(1, steps.input_hw((4, 4)), steps.postprocess_buffers(), Scratch(steps.device))
            work = steps.work(options)
            work.strings.fallbacks["a slower path"] += 1

    run_at_once(lambda number: count(models[number], 10 * (number + 1)), range(2))
    assert [dict(model.report().fallbacks) for model in models] == [{"a slower path": 10}, {"a slower path": 20}]
    assert not ops.FALLBACKS
    for model in models:
        model.close()

"""The parts of `Steps` that need no network."""

import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.model import Model
from tests.networks.test_network import tiny_network


def test_frames_that_can_not_be_worked_on_are_named():
    model = Model(tiny_network(), EngineConfig(device="cpu", max_detections=2**40))
    with model, pytest.raises(InputError, match="max_detections must be at most 268,435,456 here"):
        model.predict(torch.zeros(4, 4, 3, dtype=torch.uint8).numpy())

"""The registry of network families: a third one needs no change outside of networks/."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import maskjet
from maskjet import networks
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.model import Model
from maskjet.networks.rfdetr import family as rfdetr
from maskjet.spec import ModelSpec
from tests.networks.test_network import tiny_network


def test_a_third_family_is_a_line_in_the_registry(monkeypatch):
    class Other:
        """What `load` is given for it."""

    class Spec(ModelSpec):
        threshold, max_detections = 0.02, 3

    network = tiny_network()
    network.spec = Spec(**vars(network.spec))
    third = SimpleNamespace(
        serves=lambda model: isinstance(model, Other),
        load=lambda _model, _weights, _input_size: network,
        make_steps=rfdetr.make_steps,
    )
    monkeypatch.setitem(sys.modules, "maskjet.networks.third.family", third)
    monkeypatch.setattr(networks, "_FAMILIES", ("rfdetr", "third"))
    monkeypatch.setattr(networks, "import_module", lambda name: sys.modules[name])
    with maskjet.load(Other(), device="cpu") as model:
        image = np.random.default_rng(0).integers(0, 256, (48, 80, 3), np.uint8)
        assert len(model.predict(image)) == model.config.max_detections == 3


def test_a_network_keeps_the_input_that_it_was_read_with():
    network = networks.read_network("demo", input_size=(240, 420))
    with Model(network, EngineConfig(device="cpu", input_size=(240, 420))) as model:
        assert model.spec.input_hw == (240, 420)
    with pytest.raises(InputError, match=r"input_size must be the network's, \(240, 420\), got \(420, 240\)"):
        Model(network, EngineConfig(device="cpu", input_size=(420, 240)))

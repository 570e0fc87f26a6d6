"""The registry of network families: a third one needs no change outside of networks/."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import maskjet
from maskjet import networks
from maskjet.config import EngineConfig
from maskjet.errors import InputError
from maskjet.model import Model
from maskjet.networks import Defaults, find_family
from maskjet.networks.rfdetr import family as rfdetr
from tests.networks.test_network import tiny_network

SOURCES = Path(maskjet.__file__).parent


def test_the_engine_and_the_model_know_no_network():
    for path in [*(SOURCES / "engine").glob("*.py"), SOURCES / "model.py"]:
        text = path.read_text()
        assert "isinstance(network" not in text
        code = [line for line in text.splitlines() if line.startswith(("from maskjet.networks", "import maskjet.net"))]
        allowed = ["from maskjet.networks import Network, find_family, read_network"] if path.name == "model.py" else []
        assert code == allowed, path


@pytest.mark.parametrize("model", ["demo", Path("anywhere.pt"), "rf-detr-nano"])
def test_names_and_paths_are_rfdetrs(model):
    assert find_family(model) is rfdetr


def test_other_things_are_refused():
    with pytest.raises(InputError, match="model must be a name, a path or a torchvision detector, got a int"):
        maskjet.load(5)
    with pytest.raises(InputError, match="weights must be a name or a path, got a int"):
        maskjet.load("demo", weights=5)


def test_a_third_family_is_a_line_in_the_registry(monkeypatch):
    class Other:
        """What `load` is given for it."""

    third = SimpleNamespace(
        serves=lambda model: isinstance(model, Other),
        defaults=lambda _: Defaults(0.02, 3),
        load=lambda _model, _weights, _input_size: tiny_network(),
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

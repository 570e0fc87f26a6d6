"""Exports that several tests look at."""

import pytest

from maskjet import runtimes
from tests.networks.test_network import tiny_network


@pytest.fixture(scope="session")
def exported_network():
    """The tiny network that `exported` has exported, in training mode."""
    return tiny_network().train()


@pytest.fixture(scope="session")
def exported(exported_network, tmp_path_factory):
    """Files of the tiny network by precision and whether they choose detections; not to be changed."""
    folder, made = tmp_path_factory.mktemp("exported"), {}

    def export(precision="fp32", chooses=False):
        key = (precision, chooses)
        if key not in made:
            postprocess = runtimes.Postprocess(threshold=0.2, class_thresholds={"c": 0.1}) if chooses else None
            out = folder / f"{precision}_{chooses}.onnx"
            made[key] = runtimes.export(exported_network, out, precision=precision, postprocess=postprocess)
        return made[key]

    return export

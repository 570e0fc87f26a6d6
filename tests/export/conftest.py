"""Exports that several tests look at."""

import pytest

from maskjet.export import export
from tests.networks.test_network import tiny_network


@pytest.fixture(scope="session")
def exported_network():
    """The tiny network that `exported` has exported, in training mode."""
    return tiny_network().train()


@pytest.fixture(scope="session")
def exported(exported_network, tmp_path_factory):
    """Files of the tiny network by precision and batch; not to be changed."""
    folder, made = tmp_path_factory.mktemp("exported"), {}

    def make(precision="fp32", batch=None):
        key = f"{precision}{batch or ''}"
        if key not in made:
            made[key] = export(exported_network, folder / f"{key}.onnx", precision=precision, batch=batch)
        return made[key]

    return make

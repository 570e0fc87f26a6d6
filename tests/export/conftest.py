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
    """Files of the tiny network by precision; not to be changed."""
    folder, made = tmp_path_factory.mktemp("exported"), {}

    def make(precision="fp32"):
        if precision not in made:
            made[precision] = export(exported_network, folder / f"{precision}.onnx", precision=precision)
        return made[precision]

    return make

"""What tests of checkpoints share."""

import pytest

from tests.networks.test_network import tiny_network


@pytest.fixture(scope="session")
def state():
    """A tiny network's tensors; not to be changed."""
    return {name: tensor.contiguous() for name, tensor in tiny_network().state_dict().items()}

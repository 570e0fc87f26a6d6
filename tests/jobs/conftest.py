"""What the tests of jobs share."""

import pytest

import maskjet
from maskjet import traffic


@pytest.fixture(scope="session")
def model():
    """The demo model on the CPU, which finds something on every street."""
    with maskjet.load("demo", device="cpu", threshold=0.1) as model:
        yield model


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A video of 12 frames."""
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=12, seed=2)
    return path

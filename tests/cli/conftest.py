"""Clips for the command line."""

import pytest

from maskjet import traffic


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=6, seed=2)
    return path

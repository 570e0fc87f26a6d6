"""One demo model for the tests of the service."""

import numpy as np
import pytest

import maskjet
from tests.sources.clips import encode


@pytest.fixture(scope="session")
def model():
    """Answers at once what it was asked before: the same pixels with the same options."""
    with maskjet.load("demo", device="cpu", threshold=0.3) as loaded:
        predict, known = loaded.predict, {}

        def remember(images, **options):
            one = images[0] if isinstance(images, list) and len(images) == 1 else images
            if not isinstance(one, np.ndarray):
                return predict(images, **options)
            key = one.shape, one.tobytes(), str(options)
            if key not in known:
                known[key] = predict(one, **options)
            return known[key] if one is images else [known[key]]

        loaded.predict = remember
        yield loaded


@pytest.fixture(scope="module", autouse=True)
def started_and_ended_quickly():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskjet.serve.dispatcher._SIZE_HW", (64, 64))
        patch.setattr("maskjet.serve.server.GRACE_S", 0.05)
        yield


@pytest.fixture(scope="session")
def street():
    return maskjet.traffic.sample(seed=3, size_hw=(180, 320)).image


@pytest.fixture(scope="session")
def scenes():
    return [maskjet.traffic.sample(seed=seed, size_hw=(120, 160)).image for seed in range(4)]


@pytest.fixture(scope="session")
def write_video(tmp_path_factory, scenes):
    """Writes a video of so many frames, which show the scenes in turn, and gives its path."""

    def write(name, frames, rate):
        images = [scenes[number % len(scenes)] for number in range(frames)]
        return encode(tmp_path_factory.mktemp("videos") / name, images, "mpeg4", rate=rate)

    return write

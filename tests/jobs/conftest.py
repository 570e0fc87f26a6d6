"""What the tests of jobs share."""

from itertools import count

import pytest

import maskjet
from maskjet import traffic
from tests.jobs.stores import CREDENTIALS, s3_server

_FOLDERS = count()


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


@pytest.fixture(scope="module")
def s3():
    """An S3 server with a bucket: its file system, and the parameters of its URLs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        with s3_server() as server:
            yield server


@pytest.fixture
def remote_out(s3):
    """The URL of a folder in a store, with nothing in it."""
    return f"s3://bucket/a job {next(_FOLDERS)}?{s3[1]}"


@pytest.fixture(params=["local", "remote"])
def any_out(request, tmp_path):
    """A path, then the URL of a folder in a store."""
    return str(tmp_path) if request.param == "local" else request.getfixturevalue("remote_out")

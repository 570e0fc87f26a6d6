"""What the tests of jobs share."""

from contextlib import contextmanager
from itertools import count

import fsspec
import pytest
from pyarrow import fs

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.host import devices
from maskjet.jobs.local import LocalWorkers
from maskjet.model import Model
from tests.jobs.making import CREDENTIALS, run_driver, write_street
from tests.networks.test_network import tiny_network

_FOLDERS = count()


@pytest.fixture(scope="session")
def model():
    """A tiny model on the CPU, which finds something on most streets."""
    with Model(tiny_network(), EngineConfig(device="cpu"), threshold=0.05) as model:
        yield model


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A video of 12 frames."""
    path = tmp_path_factory.mktemp("clip") / "street.mp4"
    traffic.write_video(path, size_hw=(96, 160), frames=12, seed=2)
    return path


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Paths of images of two sizes in turn, the third of which is damaged."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = [write_street(folder / f"{i}.png", i, size_hw=[(96, 160), (80, 96)][i % 2]) for i in range(7)]
    paths[2].write_bytes(paths[0].read_bytes()[:500])
    return paths


@pytest.fixture(scope="session")
def streets(tmp_path_factory):
    """A folder with eight images, of which one is broken, and a video of five frames."""
    folder = tmp_path_factory.mktemp("streets")
    for number in range(8):
        write_street(folder / f"{number}.png", number % 4, size_hw=(64, 96))
    (folder / "5.png").write_bytes(b"no image")
    traffic.write_video(folder / "street.mp4", size_hw=(64, 96), frames=5, seed=1)
    return folder


@pytest.fixture(scope="session")
def whole(streets, tmp_path_factory):
    """The folder of an undisturbed job over the streets, whose worker has a process of its own."""
    out, places = tmp_path_factory.mktemp("whole"), devices.choose("cpu", EngineConfig().check_cpu)
    found = run_driver(streets, out, lambda orders: LocalWorkers(orders, places, 1))
    assert (found.done, found.failed, found.failures) == (9, 0, 1)
    return out


@pytest.fixture(scope="session")
def _store():
    """An S3 server on loopback with a bucket: its file system, and the variables that lead to it."""
    moto = pytest.importorskip("moto.server", reason="the store is moto's S3 server, which is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    variables = CREDENTIALS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_DEFAULT_REGION": "us-east-1"}
    with environment(variables):
        system, _ = fs.FileSystem.from_uri("s3://bucket/?allow_bucket_creation=true")
        system.create_dir("bucket")
    yield system, variables
    server.stop()


@pytest.fixture(scope="module")
def s3(_store):
    """A store whose bucket is empty, at s3://bucket by the environment."""
    system, variables = _store
    with environment(variables):
        yield system
        system.delete_dir_contents("bucket")


@contextmanager
def environment(variables):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def remote_out(s3):  # noqa: ARG001 - the store must be there first
    """The URL of a folder in a store, with nothing in it."""
    return f"s3://bucket/a job {next(_FOLDERS)}"


@pytest.fixture(params=["local", "remote"])
def any_out(request, tmp_path):
    """A path, then the URL of a folder in a store."""
    return str(tmp_path) if request.param == "local" else request.getfixturevalue("remote_out")


@pytest.fixture
def memory():
    """A store in memory, with nothing in it."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]

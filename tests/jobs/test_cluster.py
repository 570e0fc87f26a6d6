"""Workers that fit a Ray cluster, and addresses of clusters; no Ray is started."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from maskjet.errors import InputError, MissingDependencyError, UnsupportedError
from maskjet.jobs import cluster
from maskjet.jobs.cluster import Pool, fit
from maskjet.jobs.segments import Settings
from maskjet.jobs.work import digest_weights
from tests.cli.command_line import call


def node(cpus, gpus=0):
    """A node as Ray describes it: nothing is said of what it has none of."""
    has = {"CPU": float(cpus), "GPU": float(gpus), "memory": 2.0**34}
    return {name: number for name, number in has.items() if number}


@pytest.mark.parametrize(
    ("nodes", "device", "workers", "pool"),
    [
        pytest.param([node(2)], "auto", None, Pool(1, "cpu", 2), id="one machine without a GPU"),
        pytest.param([node(2)], "auto", 2, Pool(2, "cpu", 1), id="as many workers as CPUs"),
        pytest.param([node(7)], "auto", 2, Pool(2, "cpu", 3), id="a core remains"),
        pytest.param([node(4)] * 3, "auto", None, Pool(3, "cpu", 4), id="a worker on each node"),
        pytest.param([node(4)] * 3, "auto", 4, Pool(4, "cpu", 2), id="one node has two"),
        pytest.param([node(2), node(64)], "auto", None, Pool(2, "cpu", 2), id="the smallest node's streams"),
        pytest.param([node(0), node(8)], "auto", None, Pool(1, "cpu", 8), id="a head without CPUs"),
        pytest.param([node(0.5), node(2)], "auto", None, Pool(1, "cpu", 2), id="half a CPU is none"),
        pytest.param([node(32, 8)] * 2, "auto", None, Pool(16, "cuda", 8), id="all GPUs"),
        pytest.param([node(32, 8)] * 2, "cuda", 3, Pool(3, "cuda", 8), id="some GPUs"),
        pytest.param([node(4, 8)], "auto", None, Pool(8, "cuda", 8), id="more GPUs than CPUs"),
        pytest.param([node(8), node(8, 1)], "auto", None, Pool(1, "cuda", 8), id="the GPU's node alone"),
        pytest.param([node(2), node(0, 4)], "auto", None, Pool(4, "cuda", 8), id="GPUs of a node without CPUs"),
        pytest.param([node(8, 1)], "cpu", None, Pool(1, "cpu", 8), id="the GPU is not wanted"),
        pytest.param([node(8, 0.5)], "auto", None, Pool(1, "cpu", 8), id="half a GPU is none"),
    ],
)
def test_a_pool_fits_its_cluster(nodes, device, workers, pool):
    assert fit(nodes, device, workers) == pool


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize(("cpus", "gpus"), [([1], 0), ([1], 8), ([3], 3), ([1, 64], 1), ([2, 0, 2], 3), ([16] * 4, 8)])
def test_the_largest_pool_has_all_gpus_or_cpus(cpus, gpus, device):
    nodes = [node(each, gpus) for each in cpus]
    size = sum(cpus) if device == "cpu" or not gpus else gpus * len(cpus)
    pool = fit(nodes, device, size)
    assert pool.size == size
    with pytest.raises(UnsupportedError, match=f"workers must be at most {size}, one per .PU, got {size + 1}: "):
        fit(nodes, device, size + 1)


@pytest.mark.parametrize(
    ("nodes", "device", "workers", "error", "message"),
    [
        ([node(2)], "auto", 0, InputError, "workers must be a whole number of at least 1, got 0"),
        ([node(8, 2)], "cuda:1", None, InputError, "device must be auto, cpu or cuda .* got 'cuda:1'"),
        ([node(2)] * 2, "cuda", None, UnsupportedError, "needs GPUs, the cluster has 2 nodes with 4 CPUs and 0 GPUs: "),
        ([node(2)], "auto", 3, UnsupportedError, "at most 2, one per CPU, got 3: the cluster has 1 node with 2 CPUs"),
        ([node(0, 4)], "cpu", None, UnsupportedError, "device='cpu' needs CPUs, the cluster has 1 node with 0 CPUs"),
    ],
)
def test_a_pool_without_room_is_refused(nodes, device, workers, error, message):
    with pytest.raises(error, match=message):
        fit(nodes, device, workers)


@pytest.mark.parametrize("pool", [Pool(2, "cuda", 8), Pool(2, "cpu", 1)])
def test_workers_get_the_limits_and_caches_of_the_driver(pool, monkeypatch):
    passed = {
        "TORCHINDUCTOR_CACHE_DIR": "a",
        "TRITON_CACHE_DIR": "b",
        "MASKJET_CACHE_DIR": "c",
        "MASKJET_LIMIT_PIXELS": "7",
    }
    for name, value in {**passed, "MASKJET_TOKEN": "secret"}.items():
        monkeypatch.setenv(name, value)
    options = pool.options()
    one_thread = {"OMP_NUM_THREADS": "1"} if pool.device == "cpu" else {}
    assert options["runtime_env"] == {"env_vars": {**passed, **one_thread}}
    assert options["max_concurrency"] == pool.streams
    assert (options["num_cpus"], options["num_gpus"]) == ((0, 1) if pool.device == "cuda" else (1, 0))


def test_rays_client_is_refused(monkeypatch):
    with pytest.raises(UnsupportedError, match=r"has this machine as a node, got 'ray://head:10001': .*ray start"):
        connect("ray://head:10001")
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: True))
    ray = SimpleNamespace(util=SimpleNamespace(client=client), is_initialized=lambda: True)
    monkeypatch.setattr(cluster, "require", lambda *_, **__: ray)
    with pytest.raises(UnsupportedError, match="not by ray://"):
        connect("auto")


def test_an_address_that_is_none_or_does_not_answer_is_an_error_at_once():
    message = r"must be auto, local or the HOST:PORT of a cluster that answers .*, got .*ray start --head"
    for address in ("head", "head:", ":", "127.0.0.1:0", "127.0.0.1:99999999", "[::1]:x"):
        with pytest.raises(UnsupportedError, match=message):
            connect(address)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnsupportedError, match=f"'127.0.0.1:{port}': .*refused"):
        connect(f"127.0.0.1:{port}")


def test_a_missing_ray_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r'^--ray needs ray.*: pip install "maskjet\[ray\]"\.$'):
        connect("auto")


def test_settings_have_paths_that_hold_on_all_nodes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("tuned.pt").touch()
    assert Settings(model="tuned.pt").with_absolute_paths().model == str(tmp_path / "tuned.pt")
    (tmp_path / "demo").mkdir()  # a folder of images, or of results
    assert Settings().with_absolute_paths().model == "demo"
    assert digest_weights(Settings()) is None
    named = Settings(model="rf-detr-seg-nano", weights="tuned.pt").with_absolute_paths()
    assert (named.model, named.weights) == ("rf-detr-seg-nano", str(tmp_path / "tuned.pt"))


@pytest.mark.parametrize(
    ("submitted", "given"),
    [
        ("", {"working_dir": []}),
        ('{"runtime_env": {}}', {"working_dir": []}),
        ('{"runtime_env": {"working_dir": "gcs://a"}}', {}),
    ],
)
def test_workers_have_an_empty_folder_unless_a_submitted_job_has_one(monkeypatch, submitted, given):
    environments = []
    ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None)

    def init(*_, runtime_env, **__):
        environments.append({name: list(Path(folder).iterdir()) for name, folder in runtime_env.items()})

    ray.init = init
    monkeypatch.setattr(cluster, "require", lambda *_, **__: ray)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", submitted)
    with cluster.connected("auto"):
        assert environments == [given]


def test_rays_handler_of_sigterm_does_not_replace_the_drivers(monkeypatch):
    before = signal.signal(signal.SIGTERM, finish := lambda *_: None)
    ray = SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None)
    ray.init = lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_DFL)
    monkeypatch.setattr(cluster, "require", lambda *_, **__: ray)
    try:
        with cluster.connected("auto"):
            assert signal.getsignal(signal.SIGTERM) is finish
    finally:
        signal.signal(signal.SIGTERM, before)


def test_optional_packages_are_loaded_on_use_alone():
    loads("import maskjet.jobs", {"pyarrow", "ray"})


@pytest.mark.slow
def test_ray_is_loaded_on_use_alone():
    loads("from maskjet.jobs import cluster, ray", {"ray"})


def loads(statement, without):
    """Check that a program loads none of these packages."""
    program = f"import sys; {statement}; assert not {without} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ray auto --devices cpu", "--devices must be left out with --ray, which gives each worker its "),
        ("--ray auto --processes 2", "--processes must be left out with --ray, which gives each worker its "),
        ("--workers 2", "--workers must come with --ray, got 2 alone. On this machine "),
    ],
)
def test_options_of_this_machine_and_of_a_cluster_do_not_mix(options, message, tmp_path, capsys):
    code, out, err = call(capsys, *f"maskjet job run a.mp4 --out {tmp_path}/out".split(), *options.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"maskjet: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def connect(address):
    with cluster.connected(address):
        pass

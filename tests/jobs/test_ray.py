"""Jobs on a real local Ray: the same rows as on one machine, nothing lost, nothing twice, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from maskjet.errors import UnsupportedError
from maskjet.jobs import local
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs.folders import Folder
from maskjet.jobs.manifest import FAILURES
from maskjet.jobs.parts import Parts
from tests import ray_cluster
from tests.cli.command_line import call
from tests.jobs.making import read_part, run_driver
from tests.waiting import until

ray = pytest.importorskip("ray", reason='needs Ray: pip install "maskjet[ray]"', exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.")]


class Killed(jobs_ray.Actor):
    """A worker that image 2 kills each time; on a spot machine, any takes it all along."""

    spot: str

    def load(self):
        answer = super().load()
        self._done, self._worker.do = self._worker.do, self._do
        return answer

    def _do(self, part, segment, **options):
        if ray.get_runtime_context().get_node_id() == self.spot:
            os.kill(os.getppid(), signal.SIGKILL)  # the node's own process
            time.sleep(60)  # which this one does not outlive
        if Path(segment.files[0].path).stem == "2":
            os.kill(os.getpid(), signal.SIGKILL)
        return self._done(part, segment, **options)


class Held(jobs_ray.Actor):
    """A worker that does one segment, and the others once a file is there."""

    marker: str

    def load(self):
        answer = super().load()
        self._done, self._worker.do = self._worker.do, self._do
        Path(f"{self.marker}.path").write_text("\n".join(sys.path))
        return answer

    def _do(self, part, segment, **options):
        try:
            Path(self.marker).touch(exist_ok=False)
        except FileExistsError:
            while not Path(f"{self.marker}.go").exists():
                time.sleep(0.05)
        return self._done(part, segment, **options)


@pytest.fixture(scope="module", autouse=True)
def cluster(s3):  # noqa: ARG001 - the store must be there first
    """The folder of a cluster with two CPUs, whose processes have the store's credentials."""
    quick = {"health_check_period_ms": 500}  # a node is lost after five that fail
    with pytest.MonkeyPatch.context() as patch, ray_cluster.running(_system_config=quick) as folder:
        patch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")  # as the command does, for good
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests
        yield folder


@pytest.fixture
def spot(cluster):
    """The id of a second node of the cluster, with one CPU."""
    before = {node["NodeID"] for node in nodes()}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", "--num-gpus", "0"]
    command += ["--address", ray.get_runtime_context().gcs_address, "--object-store-memory", str(100 * 2**20)]
    with Path(cluster, "spot.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    until(lambda: process.poll() is not None or len(nodes()) > len(before))
    yield next(node["NodeID"] for node in nodes() if node["NodeID"] not in before)
    process.terminate()
    process.wait()


def nodes():
    """The nodes that are up."""
    return [node for node in ray.nodes() if node["Alive"]]


def arguments(streets, out, *options):
    return ["job", "run", str(streets), "--out", str(out), "--segment-images", "1", *options]


def started(log, ray_folder, streets, out, marker, *options):
    """The command in a process of its own, whose workers are `Held`; a cluster that it starts has that folder."""
    program = f"""
        from tests.jobs import test_ray
        test_ray.Held.marker = {str(marker)!r}
        test_ray.jobs_ray.Actor = test_ray.Held
        test_ray.ray.cloudpickle.register_pickle_by_value(test_ray)
        from maskjet.cli.main import main
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments(streets, out, *options)]
    own = {**os.environ, "RAY_TMPDIR": ray_folder}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=own, cwd=Path(marker).parent)


def parts_of(out):
    return {path.stem for path in Path(out, "parts").rglob("*.parquet")}


def assert_same(out, other, names):
    """Both have these parts, each with the same rows and metadata, byte for byte; the first has no others."""
    for name in names:
        one, another = read_part(out, name), read_part(other, name)
        assert one.schema.equals(another.schema, check_metadata=True)
        assert one.equals(another)
    assert set(filter(Parts(str(out)).had, planned(out).values())) == set(names)


def planned(out):
    """Name of the file or frames to name of the part, in the plan's order."""
    return {segment.name: part for part, segment in Parts(str(out)).manifest()}


def actors_of(folder):
    """Ids of the processes of this cluster's workers."""
    return [number for number, line in ray_cluster.processes_of(folder).items() if line.startswith(b"ray::Held")]


def test_actors_and_a_node_that_are_killed_lose_nothing_but_a_segment_that_kills_them(
    streets, whole, remote_out, spot, monkeypatch
):
    monkeypatch.setattr(Killed, "spot", spot, raising=False)
    monkeypatch.setattr(jobs_ray, "Actor", Killed)
    monkeypatch.setattr(local, "TRIES", 2)
    found = run_driver(streets, remote_out, lambda orders: jobs_ray.RayWorkers(orders, "auto"))
    assert spot not in {node["NodeID"] for node in nodes()}
    assert (found.done, found.failed, found.failures) == (8, 1, 2)
    parts = planned(whole)
    assert list(planned(remote_out).items()) == list(parts.items())
    killer = parts.pop(str(streets / "2.png"))
    assert_same(remote_out, whole, parts.values())
    failures = [json.loads(line) for line in Folder(remote_out).read(FAILURES).splitlines()]
    assert {failure["what"] for failure in failures} == {str(streets / "2.png"), str(streets / "5.png")}
    lost = {"part": killer, "what": str(streets / "2.png"), "reason": "its worker died 2 times"}
    assert lost in failures


def test_a_job_that_is_stopped_and_then_killed_goes_on(streets, whole, tmp_path, cluster, capsys):
    out = tmp_path / "out"
    with (tmp_path / "log").open("w+") as log:
        # On a cluster of its own; the signal lets the segments that were begun end.
        process = started(log, cluster, streets, out, tmp_path / "a", "--ray", "local", "--workers", "1", "--json")
        until(lambda: process.poll() is not None or parts_of(out))
        process.terminate()
        time.sleep(1)  # until the driver has noticed
        (tmp_path / "a.go").touch()
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM, Path(log.name).read_text()
        done = json.loads(told)["done"]
        assert 0 < done == len(parts_of(out)) < 9
        assert "Traceback" not in Path(log.name).read_text()

        # On the other cluster, where actors end with their driver.
        address = ray.get_runtime_context().gcs_address
        process = started(log, cluster, streets, out, tmp_path / "b", "--ray", address, "--workers", "1")
        until(lambda: process.poll() is not None or len(parts_of(out)) > done)
        process.kill()
        process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, Path(log.name).read_text()
        assert len(parts_of(out)) == done + 1
        until(lambda: not actors_of(cluster))
        for marker in "ab":  # a module of the driver's current folder is not the workers'
            assert str(tmp_path) not in (tmp_path / f"{marker}.path").read_text().splitlines()

    command = ("maskjet", *arguments(streets, out, "--ray", "auto", "--workers", "2", "--json"))
    for is_again in (False, True):
        code, told, err = call(capsys, *command)
        found = json.loads(told)
        assert (code, found["planned"], found["failures"]) == (1, 9, 1), err
        assert found["skipped"] == (9 if is_again else done + 1)
        assert_same(out, whole, planned(whole).values())
        assert len(parts_of(out)) == len(list((out / "parts").rglob("*.*"))) == 9


def test_a_worker_that_cannot_begin_and_a_pool_without_room_are_told_in_one_line(
    streets, tmp_path, capsys, monkeypatch
):
    weights = tmp_path / "broken.pt"
    weights.write_bytes(b"no weights")
    command = ("maskjet", *arguments(streets, tmp_path / "out", "--ray", "auto"))
    code, out, err = call(capsys, *command, "--model", "rf-detr-seg-nano", "--weights", weights)
    assert (code, out) == (3, "")
    (line,) = (each for each in err.splitlines() if "(raylet)" not in each)  # which may say that actors end
    assert line.startswith("maskjet: --weights must be a checkpoint")
    code, _, err = call(capsys, *command, "--workers", "99")
    assert code == 2
    assert "--workers must be at most 2, one per CPU, got 99: the cluster has 1 node with 2 CPUs and 0 GPUs" in err
    monkeypatch.setenv("MASKJET_DEVICE", "cuda")
    code, _, err = call(capsys, *command)
    assert code == 2
    assert "needs GPUs, the cluster has 1 node with 2 CPUs and 0 GPUs" in err


def test_a_pool_that_waits_for_others_is_an_error(streets, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_ray, "_ARRIVAL_S", 1)

    @ray.remote(num_cpus=2)
    class Other:
        def wait(self):
            pass

    other = Other.remote()
    ray.get(other.wait.remote())
    why = r"No worker started within 1 s\. Each needs a CPU; the cluster has 2, of which 0 are free\."
    with pytest.raises(UnsupportedError, match=why):
        run_driver(streets, tmp_path, lambda orders: jobs_ray.RayWorkers(orders, "auto", 1))
    ray.kill(other)
    assert not parts_of(tmp_path)

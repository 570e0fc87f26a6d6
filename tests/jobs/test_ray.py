"""Jobs on a real local Ray: the same rows as on one machine, nothing lost, nothing twice, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

from maskjet import traffic
from maskjet.config import EngineConfig
from maskjet.devices import choose
from maskjet.errors import UnsupportedError
from maskjet.jobs import driver, ray_dataset
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs.folders import open_folder
from maskjet.jobs.local import LocalWorkers
from maskjet.jobs.parts import FAILURES, Parts
from tests import ray_cluster
from tests.cli.command_line import call
from tests.jobs.making import write_street
from tests.waiting import until

ray = pytest.importorskip("ray", reason='needs Ray: pip install "maskjet[ray]"', exc_type=ImportError)
pytest.importorskip("ray.data", reason='needs Ray Data: pip install "maskjet[ray]"', exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.")]


class Killed(jobs_ray._Actor):
    """A worker that image 1 kills the first time, and image 2 each time; on a spot machine, any takes it all along."""

    marker: str
    spot: str

    def _work(self, part, segment):
        if ray.get_runtime_context().get_node_id() == self.spot:
            os.kill(os.getppid(), signal.SIGKILL)  # the node's own process
            time.sleep(60)  # which this one does not outlive
        name = Path(segment.files[0].path).stem
        if name == "2" or (name == "1" and made(self.marker)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._work(part, segment)


class Held(jobs_ray._Actor):
    """A worker that does one segment, and those that it has begun once the job is stopped."""

    marker: str

    def _work(self, part, segment):
        if not made(self.marker):
            while not self._is_stopped(segment):
                time.sleep(0.05)
        return super()._work(part, segment)

    def _is_stopped(self, segment):
        probe = uuid.uuid4().hex
        answer, _ = self._begin(probe, segment, is_alone=True)
        self._wait(self._desk.end.remote(probe, ""))
        return answer == "known"


def made(marker):
    """Whether this call has made the file."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


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
    command = [Path(sys.executable).with_name("ray"), "start", "--block", "--num-cpus", "1", "--num-gpus", "0"]
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


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """Six images, of which one is broken, and a video."""
    folder = tmp_path_factory.mktemp("streets")
    for number in range(6):
        write_street(folder / f"{number}.png", number % 4)
    (folder / "5.png").write_bytes(b"no image")
    traffic.write_video(folder / "street.mp4", size_hw=(96, 160), frames=12, seed=1)
    return folder


@pytest.fixture(scope="module")
def whole(streets, tmp_path_factory):
    """Results of a local run, a segment per image."""
    out = tmp_path_factory.mktemp("whole")
    found = run(streets, out, lambda orders: LocalWorkers(orders, choose("cpu", EngineConfig()), 2))
    assert (found.done, found.failed, found.failures) == (7, 0, 1)
    return out


def run(streets, out, make_workers):
    """A job in this process, a segment per image."""
    return driver.run(driver.Job([str(streets)], str(out), images=1), make_workers, threading.Event())


def arguments(streets, out, *options):
    return ["job", "run", str(streets), "--out", str(out), "--segment-images", "1", *options]


def started(log, ray_folder, streets, out, marker, *options):
    """The command in a process of its own, whose workers are `Held`; a cluster that it starts has that folder."""
    program = f"""
        from tests.jobs import test_ray
        test_ray.Held.marker = {str(marker)!r}
        test_ray.jobs_ray._Actor = test_ray.Held
        test_ray.ray.cloudpickle.register_pickle_by_value(test_ray)
        from maskjet.cli.main import main
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments(streets, out, *options)]
    own = {**os.environ, "RAY_TMPDIR": ray_folder}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=own)


def parts_of(out):
    return {path.stem for path in Path(out, "parts").rglob("*.parquet")}


def assert_same(out, other, names):
    """Both have these parts, each with the same rows and metadata, byte for byte; the first has no others."""
    for name in names:
        one, another = Parts(str(out)).read(name), Parts(str(other)).read(name)
        assert one.schema.equals(another.schema, check_metadata=True)
        assert one.equals(another)
    assert Parts(str(out)).existing(planned(out).values()) == set(names)


def planned(out):
    """Name of the file or frames to name of the part, in the plan's order."""
    return {segment.name: part for part, segment in Parts(str(out)).manifest()}


def actors_of(folder):
    """Ids of the processes of this cluster's workers."""
    return [number for number, line in ray_cluster.processes_of(folder).items() if line.startswith(b"ray::MapWorker")]


def test_actors_and_a_node_that_are_killed_lose_nothing_but_a_segment_that_kills_them(
    streets, whole, remote_out, spot, tmp_path, monkeypatch
):
    monkeypatch.setattr(Killed, "spot", spot, raising=False)
    monkeypatch.setattr(Killed, "marker", str(tmp_path / "marker"), raising=False)
    monkeypatch.setattr(jobs_ray, "_Actor", Killed)
    found = run(streets, remote_out, lambda orders: jobs_ray.RayWorkers(orders, "auto"))
    assert (tmp_path / "marker").exists()
    assert spot not in {node["NodeID"] for node in nodes()}
    assert (found.done, found.failed, found.failures) == (6, 1, 2)
    parts = planned(whole)
    assert list(planned(remote_out).items()) == list(parts.items())
    killer = parts.pop(str(streets / "2.png"))
    assert_same(remote_out, whole, parts.values())
    reasons = {}
    for line in open_folder(remote_out).read(FAILURES).splitlines():
        failure = json.loads(line)
        reasons[failure["what"]] = (failure["part"], failure["reason"])
    assert reasons.keys() == {str(streets / "2.png"), str(streets / "5.png")}
    assert reasons[str(streets / "2.png")] == (killer, "its worker died 3 times")


def test_a_job_that_is_stopped_and_then_killed_goes_on(streets, whole, tmp_path, cluster, capsys):
    out = tmp_path / "out"
    with (tmp_path / "log").open("w+") as log:
        # On a cluster of its own; the signal lets the segments that were begun end.
        process = started(log, cluster, streets, out, tmp_path / "a", "--ray", "local", "--workers", "1", "--json")
        until(lambda: process.poll() is not None or parts_of(out))
        process.terminate()
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM, Path(log.name).read_text()
        done = json.loads(told)["done"]
        assert 0 < done == len(parts_of(out)) < 7
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

    command = ("maskjet", *arguments(streets, out, "--ray", "auto", "--workers", "2", "--json"))
    for is_again in (False, True):
        code, told, err = call(capsys, *command)
        found = json.loads(told)
        assert (code, found["planned"], found["failures"]) == (1, 7, 1), err
        assert found["skipped"] == (7 if is_again else done + 1)
        assert_same(out, whole, planned(whole).values())
        assert len(parts_of(out)) == len(list((out / "parts").rglob("*.*"))) == 7


def test_a_worker_that_cannot_begin_ends_the_job_with_one_line(streets, tmp_path, capsys):
    weights = tmp_path / "broken.pt"
    weights.write_bytes(b"no weights")
    options = ("--model", "rf-detr-seg-nano", "--weights", str(weights), "--ray", "auto")
    code, out, err = call(capsys, "maskjet", *arguments(streets, tmp_path / "out", *options))
    assert (code, out) == (3, "")
    assert err.startswith("maskjet: --weights must be a checkpoint")
    assert err.count("\n") == 1


def test_a_pool_without_room_is_an_error(streets, tmp_path, capsys, monkeypatch):
    command = ("maskjet", *arguments(streets, tmp_path, "--ray", "auto"))
    code, _, err = call(capsys, *command, "--workers", "99")
    assert code == 2
    assert "--workers must be at most 2, one per CPU, got 99: the cluster has 1 node with 2 CPUs and 0 GPUs" in err
    monkeypatch.setenv("MASKJET_DEVICE", "cuda")
    code, _, err = call(capsys, *command)
    assert code == 2
    assert "needs GPUs, the cluster has 1 node with 2 CPUs and 0 GPUs" in err


def test_a_pool_that_waits_for_others_is_an_error(streets, tmp_path):
    @ray.remote(num_cpus=2)
    class Other:
        def wait(self):
            pass

    other = Other.remote()
    ray.get(other.wait.remote())
    why = r"No worker began within 1 s\. Each needs 0\.5 CPUs; the cluster has 2, of which 0 are free\."
    with pytest.raises(UnsupportedError, match=why):
        run(streets, tmp_path, lambda orders: jobs_ray.RayWorkers(orders, "auto", 1, arrival_s=1))
    ray.kill(other)
    until(lambda: "maskjet-ray" not in {thread.name for thread in threading.enumerate()})  # there is room now
    assert not parts_of(tmp_path)


def test_a_dataset_has_the_rows_of_the_parts_and_leaves_room_for_other_steps(streets, whole):
    from ray.data.expressions import col

    sources = [streets / "street.mp4", streets / "0.png", streets / "1.png"]
    rows = ray_dataset(sources, workers=2, images=1).filter(expr=col("index") < 7).take_all()
    parts = planned(whole)
    expected = [row for name in map(str, sources) for row in Parts(str(whole)).read(parts[name]).to_pylist()]
    assert len(rows) == 7 + 2
    assert sorted(rows, key=place) == sorted((row for row in expected if row["index"] < 7), key=place)


def place(row):
    return row["source"], row["index"]

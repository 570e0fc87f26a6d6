"""Jobs on a real local Ray: the same rows as on one machine, nothing lost, nothing twice, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from maskjet import traffic
from maskjet.errors import CheckpointError, OutputError, UnsupportedError
from maskjet.jobs import driver, ray_dataset
from maskjet.jobs import ray as jobs_ray
from maskjet.jobs.parts import Parts
from maskjet.jobs.segments import Settings
from tests import ray_cluster
from tests.cli.command_line import call
from tests.jobs.making import write_street

ray = pytest.importorskip("ray", reason='needs Ray: pip install "maskjet[ray]"', exc_type=ImportError)
pytest.importorskip("ray.data", reason='needs Ray Data: pip install "maskjet[ray]"', exc_type=ImportError)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.")]


class Slow(jobs_ray._Actor):
    """A worker that takes its time, and that some images kill or end."""

    def _work(self, part, segment):
        time.sleep(0.5)
        name = Path(segment.files[0].path).stem
        if name == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "full":
            self._worker = FullDisk()
        return super()._work(part, segment)


class FullDisk:
    def do(self, part, _):
        raise OutputError(f"part must be writable, {part!r} is not: No space left on device.")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """The folder of a cluster with two CPUs."""
    with ray_cluster.running() as folder:
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers can't import tests
        yield folder


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """Nine images, of which one is broken, and a video."""
    folder = tmp_path_factory.mktemp("streets")
    for number in range(9):
        write_street(folder / f"{number}.png", number % 4)
    (folder / "5.png").write_bytes(b"no image")
    traffic.write_video(folder / "street.mp4", size_hw=(96, 160), frames=12, seed=1)
    return folder


@pytest.fixture(scope="module")
def whole(streets, tmp_path_factory):
    """Results of a local run, a segment per image."""
    out = tmp_path_factory.mktemp("whole")
    found = subprocess.run([*command(streets, out), "--devices", "cpu"], capture_output=True, text=True)
    assert found.returncode == 1, found.stderr
    return out


def command(streets, out, *options):
    return [sys.executable, "-m", "maskjet", *arguments(streets, out, *options)]


def arguments(streets, out, *options):
    return ["job", str(streets), "--out", str(out), "--segment-images", "1", *options]


def on_ray(capsys, streets, out, *options):
    code, told, err = call(capsys, "maskjet", *arguments(streets, out, "--ray", "auto", "--json", *options))
    return code, json.loads(told) if told else None, err


def run(streets, out, *, workers=2, stop=None, on_progress=lambda _: None, **settings):
    """A job in this process."""
    planned = driver.Job([str(streets)], str(out), Settings(**settings), images=1)
    make = lambda orders: jobs_ray.RayWorkers(orders, "auto", workers)  # noqa: E731
    return driver.run(planned, make, stop or threading.Event(), on_progress)


def parts_of(out):
    return {path.stem for path in Path(out, "parts").rglob("*.parquet")}


def assert_same(out, other):
    """Both have the same parts, each with the same rows and metadata, byte for byte."""
    names = [name for name, _ in Parts(str(other)).manifest()]
    assert [name for name, _ in Parts(str(out)).manifest()] == names
    assert parts_of(out) == parts_of(other)
    for name in parts_of(other):
        one, another = Parts(str(out)).read(name), Parts(str(other)).read(name)
        assert one.schema.equals(another.schema, check_metadata=True)
        assert one.equals(another)
    assert not list(Path(out).rglob("*.partial*"))


def until(check, within_s=60):
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, "It did not come true in time."
        time.sleep(0.05)
    return found


def actors_of(folder):
    """Ids of the processes of this cluster's workers."""
    return [number for number, line in ray_cluster.processes_of(folder).items() if line.startswith(b"ray::MapWorker")]


def test_two_actors_find_what_one_machine_finds(streets, whole, tmp_path, capsys):
    code, told, err = on_ray(capsys, streets, tmp_path, "--workers", "2")
    assert (code, told["done"], told["failed"], told["failures"]) == (1, told["planned"], 0, 1), err
    assert_same(tmp_path, whole)
    (line,) = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["what"] == str(streets / "5.png")
    code, told, err = on_ray(capsys, streets, tmp_path, "--workers", "2")
    assert (code, told["done"], told["skipped"]) == (1, 0, told["planned"]), err


def test_an_actor_that_is_killed_loses_nothing(streets, whole, tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(jobs_ray, "_Actor", Slow)
    killed = []

    def kill(progress):
        if progress.done and not killed:
            killed.append(actors_of(cluster)[0])
            os.kill(killed[0], signal.SIGKILL)

    found = run(streets, tmp_path, on_progress=kill)
    assert killed
    assert (found.done, found.failed) == (len(parts_of(whole)), 0)
    assert_same(tmp_path, whole)


def test_a_driver_that_is_killed_goes_on_later(streets, whole, tmp_path, cluster, capsys):
    program = """
        import sys
        from tests.jobs import test_ray
        test_ray.jobs_ray._Actor = test_ray.Slow
        test_ray.ray.cloudpickle.register_pickle_by_value(test_ray)
        from maskjet.cli.main import main
        main()
    """
    address = ray.get_runtime_context().gcs_address
    options = [*arguments(streets, tmp_path), "--ray", address, "--workers", "1"]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *options], stderr=log)
        until(lambda: process.poll() is not None or parts_of(tmp_path))
        assert process.poll() is None, Path(log.name).read_text()
        process.kill()
        process.wait()
    until(lambda: not actors_of(cluster))
    assert 0 < len(parts_of(tmp_path)) < len(parts_of(whole))
    assert on_ray(capsys, streets, tmp_path)[0] == 1
    assert_same(tmp_path, whole)


def test_a_segment_that_kills_its_actors_is_given_up_and_the_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_ray, "_Actor", Slow)
    folder = tmp_path / "streets"
    folder.mkdir()
    for seed, name in enumerate(("a", "b", "killer", "x")):
        write_street(folder / f"{name}.png", seed)
    found = run(folder, tmp_path / "out", workers=1)  # which works on two segments at a time
    assert (found.done, found.failed) == (3, 1)
    (line,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
    assert json.loads(line)["what"] == str(folder / "killer.png")
    assert json.loads(line)["reason"] == "its worker died 3 times"


def test_a_stopped_job_finishes_what_was_begun(streets, whole, tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(jobs_ray, "_Actor", Slow)
    stop = threading.Event()
    found = run(streets, tmp_path, stop=stop, on_progress=lambda progress: progress.done and stop.set())
    assert 0 < found.done == len(parts_of(tmp_path)) < len(parts_of(whole))
    until(lambda: not actors_of(cluster))
    assert run(streets, tmp_path).skipped == found.done
    assert_same(tmp_path, whole)


def test_a_full_disk_ends_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_ray, "_Actor", Slow)
    for seed, name in enumerate(("a", "b", "full", "x")):
        write_street(tmp_path / f"{name}.png", seed)
    with pytest.raises(OutputError, match="No space left on device"):
        run(tmp_path, tmp_path / "out")


def test_a_worker_that_cannot_begin_ends_the_job_with_its_error(streets, tmp_path):
    weights = tmp_path / "broken.pt"
    weights.write_bytes(b"no weights")
    with pytest.raises(CheckpointError, match=r"broken\.pt"):
        run(streets, tmp_path / "out", model="rf-detr-seg-nano", weights=str(weights))


def test_a_pool_without_room_is_an_error(streets, tmp_path, capsys):
    code, _, err = on_ray(capsys, streets, tmp_path, "--workers", "99")
    assert code == 2
    assert "--workers must be at most 2, one per CPU, got 99: the cluster has 1 node with 2 CPUs and 0 GPUs" in err
    code, _, err = on_ray(capsys, streets, tmp_path, "--device", "cuda")
    assert code == 2
    assert "needs GPUs: the cluster has 1 node with 2 CPUs and 0 GPUs" in err


def test_a_pool_that_waits_for_others_is_an_error(streets, tmp_path):
    @ray.remote(num_cpus=2)
    class Other:
        def wait(self):
            pass

    other = Other.remote()
    ray.get(other.wait.remote())
    planned = driver.Job([str(streets)], str(tmp_path))
    make = lambda orders: jobs_ray.RayWorkers(orders, "auto", 1, arrival_s=3)  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"No worker began within 3 s: 1 workers need 0\.5 CPUs each, .* 0 free"):
        driver.run(planned, make, threading.Event())
    ray.kill(other)


def test_a_dataset_has_the_rows_of_the_parts(streets, whole):
    sources = [streets / "street.mp4", streets / "0.png", streets / "1.png"]
    rows = ray_dataset(sources, workers=2, images=1).take_all()
    local = Parts(str(whole))
    expected = [row for name, _ in local.manifest() if name in parts_of(whole) for row in local.read(name).to_pylist()]
    names = {str(each) for each in sources}
    assert sorted(rows, key=place) == sorted((row for row in expected if row["source"] in names), key=place)


def place(row):
    return row["source"], row["index"]

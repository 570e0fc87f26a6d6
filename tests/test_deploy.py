"""The files in deploy/: they parse, their commands are known, and nothing ends the service before it has drained."""

import configparser
import itertools
import json
import re
import shlex

import pytest
import yaml

from maskjet.host.devices import SEGMENTS_PER_GPU
from maskjet.jobs.cluster import Pool, fit
from maskjet.serve import Settings, sources
from maskjet.serve.guard import HEALTH
from maskjet.serve.settings import is_loopback
from tests.snippets import ROOT, check_command

DEPLOY = ROOT / "deploy"
END_S = Settings.drain_s + sources._JOIN_S + 5  # of one model's dispatcher


@pytest.fixture(scope="module")
def image():
    """The instructions of the Dockerfile, in order: (name, arguments)."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [
        (name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


def last(image, name):
    return [arguments for each, arguments in image if each == name][-1]


def host_of(words):
    """The --host of a command that is known; the first word is the program."""
    assert words[0].rpartition("/")[2] == "maskjet"
    check_command(words[1:])
    return dict(itertools.pairwise(words))["--host"]


def test_the_unit_starts_the_service_and_waits_for_its_end():
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string((DEPLOY / "maskjet.service").read_text())
    service = unit["Service"]
    assert not is_loopback(host_of(shlex.split(service["ExecStart"])))
    assert service["EnvironmentFile"]  # so it needs a token
    assert float(service["TimeoutStopSec"]) > END_S
    needed = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"}
    assert not needed & set(service)  # the GPU and machine code are left alone


def test_the_image_is_of_locked_packages_and_files_that_are_there(image):
    assert all(
        step.count("pip install") == step.count("--require-hashes") + step.count("--no-index") for _, step in image
    )
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name, arguments in image:
        if name == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source


@pytest.mark.parametrize("lock", ["serve", "build"])
def test_the_image_has_the_versions_that_are_tested(lock):
    def pins(name):
        return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))

    assert set() < pins(lock) <= pins("test")


def test_the_image_starts_the_service_and_asks_a_path_without_a_token(image):
    entry, arguments = (json.loads(last(image, name)) for name in ("ENTRYPOINT", "CMD"))
    assert not is_loopback(host_of([*entry, *arguments]))
    assert int(last(image, "USER")) > 0
    check = json.loads(last(image, "HEALTHCHECK").partition("CMD ")[2])
    compile(check[2], "HEALTHCHECK", "exec")
    port, path = re.search(r"127\.0\.0\.1', (\d+).*'GET', '([^']+)'", check[2]).groups()
    assert (int(port), path in HEALTH) == (Settings.port, True)


def test_the_pod_starts_the_service_and_waits_for_its_end(image):
    kinds = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    host_of([*json.loads(last(image, "ENTRYPOINT")), *container["args"]])
    assert {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")} <= HEALTH
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + END_S
    assert pause > container["readinessProbe"]["periodSeconds"]
    assert last(image, "WORKDIR") in {mount["mountPath"] for mount in container["volumeMounts"]}  # of compiled code


def test_the_ray_cluster_is_one_that_ray_up_takes_and_a_job_fits():
    config = pytest.importorskip("ray.autoscaler._private.util", reason='needs Ray: pip install "maskjet[ray]"')
    cluster = config.prepare_config(yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text()))
    config.validate_config(cluster)  # by Ray's own schema
    kinds = cluster["available_node_types"]
    head, gpu = kinds[cluster["head_node_type"]], kinds["gpu"]
    nodes = [head["resources"], *[gpu["resources"]] * gpu["max_workers"]]
    assert fit(nodes, "auto", None) == Pool(4, "cuda", SEGMENTS_PER_GPU)


def test_the_ray_job_runs_a_job_that_fits_its_cluster():
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())["spec"]
    words = shlex.split(job["entrypoint"])
    check_command(words[1:])
    head, (gpu,) = job["rayClusterSpec"]["headGroupSpec"], job["rayClusterSpec"]["workerGroupSpecs"]
    for group in (head, gpu):
        (container,) = group["template"]["spec"]["containers"]
        (mount,) = container["volumeMounts"]
        assert all(path.startswith(f"{mount['mountPath']}/") for path in (words[3], words[words.index("--out") + 1]))
    requests = container["resources"]["requests"]
    nodes = [{"CPU": float(head["rayStartParams"]["num-cpus"])}]
    nodes += [{"CPU": float(requests["cpu"]), "GPU": float(requests["nvidia.com/gpu"])}] * gpu["replicas"]
    assert fit(nodes, "auto", None) == Pool(4, "cuda", SEGMENTS_PER_GPU)

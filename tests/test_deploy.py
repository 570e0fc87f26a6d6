"""The files in deploy/: their commands, paths, ports and times fit the service, their clusters the jobs."""

import configparser
import itertools
import json
import re
import shlex

import pytest
import yaml

import maskjet
from maskjet.host.devices import SEGMENTS_PER_GPU
from maskjet.jobs.cluster import Pool, fit
from maskjet.serve import Settings, create_app, sources
from maskjet.serve.guard import HEALTH
from tests.snippets import ROOT, check_command

DEPLOY = ROOT / "deploy"
END_S = Settings.drain_s + sources._JOIN_S + 5  # of one model's dispatcher


@pytest.fixture(scope="module")
def unit():
    """The settings of the systemd unit, by section and name."""
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str
    parser.read_string((DEPLOY / "maskjet.service").read_text())
    return parser


@pytest.fixture(scope="module")
def image():
    """The instructions of the Dockerfile, in order: (name, arguments)."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", "")
    return [
        (name, " ".join(rest.split())) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)
    ]


@pytest.fixture(scope="module")
def manifests():
    """The objects of kubernetes.yaml, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


@pytest.fixture(scope="module")
def pod(manifests):
    return manifests["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def paths():
    """The paths of the service."""
    with maskjet.load("demo", device="cpu") as model:
        return set(create_app({"demo": model}).openapi()["paths"])


def last(image, name):
    return [arguments for each, arguments in image if each == name][-1]


def chosen(words):
    """The settings that a command line chooses, which the command takes; the first word is the program."""
    assert words[0].rpartition("/")[2] == "maskjet"
    check_command(words[1:])
    return {flag[2:]: value for flag, value in itertools.pairwise(words) if flag.startswith("--")}


def test_the_unit_starts_the_service_and_waits_for_its_end(unit):
    service = unit["Service"]
    options = chosen(shlex.split(service["ExecStart"]))
    assert not Settings(host=options["host"]).is_loopback
    assert service["EnvironmentFile"]  # so it needs a token
    assert service["KillSignal"] == "SIGTERM"
    assert float(service["TimeoutStopSec"]) > END_S
    assert service["Restart"] == "on-failure"
    needed = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "MemoryDenyWriteExecute"}
    assert not needed & set(service)  # the GPU and machine code are left alone
    assert "AF_INET" in service["RestrictAddressFamilies"].split()


def test_the_image_is_of_locked_packages_and_files_that_are_there(image):
    locks = re.findall(r"--requirement (\S+)", " ".join(arguments for _, arguments in image))
    assert locks == ["requirements/build.txt", "requirements/serve.txt"]
    assert all(
        step.count("pip install") == step.count("--require-hashes") + step.count("--no-index") for _, step in image
    )
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    for name, arguments in image:
        if name == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source


@pytest.mark.parametrize("lock", ["serve", "build"])
def test_the_locks_of_the_image_are_those_of_the_tests(lock):
    """The image has the versions that are tested."""

    def pins(name):
        return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))

    assert pins(lock) <= pins("test")
    names = {pin.partition("==")[0] for pin in pins(lock)}
    assert {"serve": {"torch", "uvicorn", "fastapi"}, "build": {"hatchling"}}[lock] <= names


def test_the_image_starts_the_service_as_a_user_and_gets_signals(image, paths):
    entry, arguments = (json.loads(last(image, name)) for name in ("ENTRYPOINT", "CMD"))
    options = chosen([*entry, *arguments])
    assert not Settings(host=options["host"]).is_loopback
    assert last(image, "EXPOSE") == str(Settings.port)
    assert int(last(image, "USER")) > 0
    check = json.loads(last(image, "HEALTHCHECK").partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    port, path = re.search(r"127\.0\.0\.1', (\d+).*'GET', '([^']+)'", check[2]).groups()
    assert (int(port), path in paths, path in HEALTH) == (Settings.port, True, True)


def test_the_probes_ask_paths_without_a_token(pod, paths):
    (container,) = pod["containers"]
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert [probe["path"] for probe in asked.values()] == ["/health/ready", "/health/live", "/health/ready"]
    (port,) = container["ports"]
    assert all(probe["path"] in paths & HEALTH and probe["port"] == port["name"] for probe in asked.values())
    assert port["containerPort"] == Settings.port


def test_the_pod_starts_the_service_and_waits_for_its_end(image, manifests, pod):
    deployment, service = manifests["Deployment"]["spec"], manifests["Service"]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    assert labels >= deployment["selector"]["matchLabels"].items() | service["selector"].items()
    assert service["ports"][0]["targetPort"] == pod["containers"][0]["ports"][0]["name"]
    (container,) = pod["containers"]
    chosen([*json.loads(last(image, "ENTRYPOINT")), *container["args"]])
    assert container["env"][0]["name"] == "MASKJET_TOKEN"
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + END_S
    readiness = container["readinessProbe"]
    assert pause > readiness["periodSeconds"]
    assert pod["securityContext"]["runAsUser"] == int(last(image, "USER"))
    home = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert last(image, "WORKDIR") in home  # where the compiled code is kept


def test_the_ray_cluster_is_one_that_ray_up_takes_and_a_job_fits():
    config = pytest.importorskip("ray.autoscaler._private.util", reason='needs Ray: pip install "maskjet[ray]"')
    cluster = config.prepare_config(yaml.safe_load((DEPLOY / "ray-cluster.yaml").read_text()))
    config.validate_config(cluster)  # by Ray's own schema
    kinds = cluster["available_node_types"]
    gpu = kinds["gpu"]
    assert cluster["max_workers"] == gpu["min_workers"] == gpu["max_workers"]
    head = kinds[cluster["head_node_type"]]
    assert "InstanceMarketOptions" not in head["node_config"]
    assert fit([head["resources"], *[gpu["resources"]] * gpu["max_workers"]], "auto", None) == Pool(
        4, "cuda", SEGMENTS_PER_GPU
    )


def test_the_ray_job_runs_a_job_that_fits_its_cluster():
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())["spec"]
    words = shlex.split(job["entrypoint"])
    assert words[:3] == ["maskjet", "job", "run"]
    check_command(words[1:])
    assert words[-2:] == ["--ray", "auto"]
    head, (gpu,) = job["rayClusterSpec"]["headGroupSpec"], job["rayClusterSpec"]["workerGroupSpecs"]
    assert gpu["minReplicas"] == gpu["replicas"] == gpu["maxReplicas"]
    nodes = [{"CPU": float(head["rayStartParams"]["num-cpus"])}]
    for group in (head, gpu):
        pod = group["template"]["spec"]
        (container,), (volume,) = pod["containers"], pod["volumes"]
        (mount,) = container["volumeMounts"]
        assert mount["name"] == volume["name"]
        assert all(path.startswith(f"{mount['mountPath']}/") for path in (words[3], words[words.index("--out") + 1]))
    assert container["resources"]["requests"].items() >= container["resources"]["limits"].items()
    requests = container["resources"]["requests"]
    nodes += [{"CPU": float(requests["cpu"]), "GPU": float(requests["nvidia.com/gpu"])}] * gpu["replicas"]
    assert fit(nodes, "auto", None) == Pool(4, "cuda", SEGMENTS_PER_GPU)

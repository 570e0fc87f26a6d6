"""The arguments of an application on Ray Serve; without Ray."""

import dataclasses
import importlib
import pickle
import subprocess
import sys

import pytest

from maskjet.errors import InputError, MissingDependencyError
from maskjet.serve import Settings, arguments
from maskjet.serve.arguments import parse


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("MASKJET_TOKEN", raising=False)


def test_without_arguments_it_serves_the_demo_and_watches_nothing():
    chosen, scale = parse({})
    assert (chosen.models, chosen.weights, chosen.engine) == ({"demo": "demo"}, None, {})
    assert chosen.settings == Settings(sources=0)
    assert (scale.replicas, scale.num_gpus, scale.num_cpus) == (1, None, None)
    assert scale.max_ongoing_requests == Settings.connections


def test_a_command_lines_texts_and_a_files_values_are_the_same():
    values = {"model": ["demo", "cars=a/cars.pt"], "replicas": 3, "num_gpus": 0.5, "num_cpus": 2, "insecure": True}
    values |= {"device": "cuda", "runtime": "torch", "compile": False, "max_detections": 50, "max_ongoing_requests": 7}
    values |= {"queue": 9, "deadline_s": 1.5, "batch": 4, "threads": 3}
    texts = {**{name: str(value) for name, value in values.items()}, "model": "demo,cars=a/cars.pt"}
    chosen, scale = parse(texts)
    assert (chosen, scale) == parse(values)
    assert chosen.models == {"demo": "demo", "cars": "a/cars.pt"}
    assert chosen.engine == {"device": "cuda", "runtime": "torch", "compile": False, "max_detections": 50}
    assert chosen.settings == Settings(queue=9, deadline_s=1.5, insecure=True, batch=4, threads=3, sources=0)
    assert scale == arguments.Scale(3, 0.5, 2.0, 7)


def test_each_setting_can_be_given_or_says_where_it_is():
    for each in dataclasses.fields(Settings):
        default = getattr(Settings(), each.name)
        if each.name in ("host", "port", "header_s", "stall_s", "drain_s", "token"):
            with pytest.raises(InputError, match=f"^{each.name} must be given"):
                parse({each.name: default})
        else:
            texts_and_counts = {"threads": 2, "batch": 2, "source": "a.mp4", "label": "{name}", "tile": "64"}
            given = default or texts_and_counts.get(each.name, True)
            expected = (given,) if each.name == "source" else given
            assert getattr(parse({each.name: given})[0].settings, each.name) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"body-bytes": "2"}, r"args must have names that are known, got 'body-bytes'; did you mean 'body_bytes'\?"),
        ({"token": "secret"}, "token must be given by MASKJET_TOKEN, as Ray writes arguments to its logs."),
        ({"replicas": "two"}, "replicas must be a valid integer, unable .*, got 'two'."),
        ({"replicas": 0}, "replicas must be at least 1, got 0."),
        ({"num_cpus": "nan"}, "num_cpus must be at least 0, got nan."),
        ({"weights": 5}, "weights must be a valid string, got 5."),
        ({"weights": "a.pt", "model": "a,b"}, "weights must go with one model, got several; "),
        ({"model": ["demo", 5]}, r"model must be a valid string, got \['demo', 5\]"),
        ({"device": "cuda:1"}, "device must be 'auto', 'cpu' or 'cuda', got 'cuda:1': Ray chooses each replica's GPU."),
        ({"source": "a.mp4", "replicas": 2}, "sources must be 0 with several replicas, got 8 with 2: "),
    ],
)
def test_mistakes_are_one_sentence(args, message):
    with pytest.raises(InputError, match=f"^{message}"):
        parse(args)


def test_the_token_is_the_environments_and_not_shown(monkeypatch):
    monkeypatch.setenv("MASKJET_TOKEN", "correct-horse")
    chosen, _ = parse({})
    assert chosen.settings.token == "correct-horse"
    assert "correct-horse" not in repr(chosen)
    monkeypatch.setenv("MASKJET_TOKEN", "another")
    assert pickle.loads(pickle.dumps(chosen.settings)).with_token().token == "correct-horse"
    assert Settings().with_token().token == "another"


def test_behind_haproxy_a_token_is_demanded(monkeypatch):
    arguments.check_exposure(Settings())
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(InputError, match=r"^token must be given where Ray listens with HAProxy, .*MASKJET_TOKEN"):
        arguments.check_exposure(Settings())
    arguments.check_exposure(Settings(token="a"))
    arguments.check_exposure(Settings(insecure=True))


def test_without_ray_its_module_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "maskjet.serve.ray", raising=False)
    with pytest.raises(MissingDependencyError, match=r'^maskjet.serve.ray needs ray: pip install "maskjet\[ray\]"\.$'):
        importlib.import_module("maskjet.serve.ray")


@pytest.mark.parametrize(
    ("imports", "left_out"),
    [
        ("maskjet.serve.arguments", {"ray", "fastapi", "torch"}),
        pytest.param("maskjet.serve; maskjet.serve.create_app", {"ray"}, marks=pytest.mark.slow),
    ],
)
def test_the_service_and_the_arguments_load_no_ray(imports, left_out):
    program = f"import sys, {imports}\nassert not {left_out} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

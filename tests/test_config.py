"""Choices: defaults, checks, and where the environment comes in."""

import pytest
import torch

from maskjet.config import EngineConfig
from maskjet.errors import InputError, UnsupportedError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "fp8"),
        ("implementation", "cuda"),
        ("implementation", {"select": "cuda"}),
        ("resample", "cubic"),
        ("max_detections", 0),
        ("batch", -1),
        ("input_size", 384),
        ("input_size", (384.0, 384)),
        ("compile", "yes"),
        ("nvtx", 1),
    ],
)
def test_choices_are_checked(name, value):
    with pytest.raises(InputError, match=f"{name} must be .*, got ") as raised:
        EngineConfig(**{name: value})
    assert raised.value.argument == name


@pytest.mark.parametrize(
    ("device", "name"), [(0, "cuda:0"), ("1", "cuda:1"), (torch.device("cuda", 2), "cuda:2"), ("cpu", "cpu")]
)
def test_a_gpu_may_be_a_number(device, name):
    assert EngineConfig(device=device).device == name


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({"device": "meta"}, InputError),
        ({"device": "cuda:x"}, InputError),
        ({"device": "cuda:99"}, UnsupportedError),
        ({"precision": "fp16", "device": "cpu"}, UnsupportedError),
        ({"nvtx": True, "device": "cpu"}, UnsupportedError),
    ],
)
def test_devices_that_can_not_be_had_are_named(choice, error):
    with pytest.raises(error) as raised:
        EngineConfig(**choice).resolve_device()
    assert raised.value.argument == next(iter(choice))


def test_the_environment_is_overridden_by_what_is_given(monkeypatch):
    monkeypatch.setenv("MASKJET_PRECISION", "bf16")
    monkeypatch.setenv("MASKJET_MAX_DETECTIONS", "7")
    config = EngineConfig.from_env(precision="fp32", device=None)
    assert (config.precision, config.max_detections, config.device) == ("fp32", 7, "auto")


def test_steps_are_chosen_one_by_one(monkeypatch):
    monkeypatch.setenv("MASKJET_IMPLEMENTATION", "reference")
    assert EngineConfig.from_env().implementation_of("select") == "reference"
    config = EngineConfig.from_env(implementation="preprocess=reference,encode_masks=cpu")
    steps = ("preprocess", "select", "encode_masks")
    assert [config.implementation_of(step) for step in steps] == ["reference", "auto", "cpu"]
    with pytest.raises(InputError, match=r"implementation must name steps of .*, got 'triton'"):
        EngineConfig.from_env(implementation="preprocess=cpu,triton")


def test_an_input_size_is_width_and_height_in_text(monkeypatch):
    monkeypatch.setenv("MASKJET_INPUT_SIZE", "640x384")
    assert EngineConfig.from_env().input_size == (384, 640)
    assert EngineConfig.from_env(input_size="96x64").input_size == (64, 96)
    for wrong in ("640", "640x", "x384", "640,384", "640x384x3", "0x384", "1e3x384"):
        with pytest.raises(InputError, match="input_size must be "):
            EngineConfig.from_env(input_size=wrong)


def test_switches_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("MASKJET_COMPILE", "false")
    monkeypatch.setenv("MASKJET_NVTX", "1")
    config = EngineConfig.from_env()
    assert config.compile is False
    assert config.nvtx is True
    for name, value, kind in (("BATCH", "many", "int"), ("COMPILE", "perhaps", "bool")):
        monkeypatch.setenv(f"MASKJET_{name}", value)
        with pytest.raises(InputError, match=f"MASKJET_{name} must be {kind}, got '{value}'"):
            EngineConfig.from_env()
        monkeypatch.delenv(f"MASKJET_{name}")


def test_auto_takes_what_is_there():
    assert EngineConfig().resolve_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert EngineConfig().resolve_precision(torch.device("cpu")) == "fp32"
    assert EngineConfig().resolve_precision(torch.device("cuda", 0)) == "fp16"
    assert EngineConfig(precision="bf16").resolve_precision(torch.device("cuda", 0)) == "bf16"

"""The arguments of `serve.ray`, from a command line or a configuration file of Ray Serve; needs no Ray."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from maskjet.config import EngineConfig
from maskjet.errors import InputError, suggest
from maskjet.serve.models import parse_models
from maskjet.serve.settings import NAMES, Settings

_TOKEN = "MASKJET_TOKEN"
_ENGINE = ("device", "precision", "runtime", "engine", "compile", "max_detections")
_SCALE = {"replicas": int, "num_gpus": float, "num_cpus": float, "max_ongoing_requests": int}
_LEAST = {"replicas": 1, "num_gpus": 0, "num_cpus": 0, "max_ongoing_requests": 1}
_LISTENING = "must be given to Ray, which listens: http_options in a configuration file, or serve start --http-"
_FRONT = "is no limit of Ray's proxy, which listens: set one at a proxy in front of it."
_ELSEWHERE = {
    "host": f"host {_LISTENING}host.",
    "port": f"port {_LISTENING}port.",
    "header_s": f"header_s {_FRONT}",
    "stall_s": f"stall_s {_FRONT}",
    "drain_s": "drain_s must be given as graceful_shutdown_timeout_s of the deployment maskjet in a configuration "
    "file.",
    "token": f"token must be given by {_TOKEN} in the environment of replicas: Ray writes arguments to its logs.",
}
_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class Chosen:
    """What each replica runs."""

    models: dict[str, str]
    """Models as `maskjet.load` takes them, by name."""
    weights: str | None
    """Checkpoint of the only model."""
    engine: dict[str, Any]
    """Fields of `EngineConfig` that were given."""
    settings: Settings
    """Limits, and the token if it is known where the application is built."""


@dataclass(frozen=True)
class Scale:
    """How many replicas there are, and what each may take."""

    replicas: int
    num_gpus: float | None
    """None where it follows from the device and the cluster."""
    num_cpus: float | None
    """None for Ray's default, 1."""
    max_ongoing_requests: int
    """Requests that Ray gives a replica at a time."""


def parse(args: Mapping[str, Any]) -> tuple[Chosen, Scale]:
    """Check arguments and bring them to their types.

    Args:
        args: Arguments by name: texts from a command line, or values from a configuration file.

    Raises:
        InputError: There is no such argument, or its value does not fit.
    """
    given = _convert_all(args)
    models = parse_models(given.get("model", ("demo",)))
    if "weights" in given and len(models) > 1:
        raise InputError("weights must go with one model, got several; give each as NAME=PATH.")
    engine = _pick(given, _ENGINE)
    EngineConfig(**engine)
    device = engine.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}: Ray chooses each replica's GPU.")
    if device == "cuda" and given.get("num_gpus") == 0:
        raise InputError("num_gpus must be above 0 with device='cuda', got 0.")
    if given.keys() & {"source", "sources"}:
        check_sources(given.get("sources", Settings.sources), given.get("replicas", 1))
    else:
        given["sources"] = 0
    settings = with_token(Settings(**_pick(given, NAMES)))
    scale = Scale(
        given.get("replicas", 1),
        given.get("num_gpus"),
        given.get("num_cpus"),
        given.get("max_ongoing_requests", settings.connections),
    )
    return Chosen(models, given.get("weights"), engine, settings), scale


def check_sources(sources: int, replicas: int) -> None:
    """Refuse sources of several replicas.

    Raises:
        InputError: There may be sources, and there are several replicas.
    """
    if sources and replicas != 1:
        raise InputError(
            f"sources must be 0 with several replicas, got {sources} with {replicas}: a source would live in one, "
            "and requests for it meet others."
        )


def with_token(settings: Settings) -> Settings:
    """Settings with the environment's token, if they have none."""
    token = os.environ.get(_TOKEN)
    return settings if settings.token is not None or not token else replace(settings, token=token)


def check_exposure(settings: Settings) -> None:
    """Refuse to serve without a token where the address that a connection came to does not tell who sent it.

    Raises:
        InputError: HAProxy listens for Ray, and there is neither a token nor `insecure`.
    """
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and settings.token is None and not settings.insecure:
        raise InputError(
            "token must be given where Ray listens with HAProxy, whose connections hide whether another machine sent a "
            f"request: set {_TOKEN}, or insecure=true if whoever reaches it may use it."
        )


def _convert_all(args: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {
        "model": tuple,
        "weights": str,
        **_SCALE,
        **_kinds(EngineConfig, _ENGINE),
        **_kinds(Settings, (name for name in NAMES if name not in _ELSEWHERE)),
    }
    given: dict[str, Any] = {}
    for name, value in args.items():
        if name in _ELSEWHERE:
            raise InputError(_ELSEWHERE[name])
        if name not in kinds:
            raise InputError(f"args must have names that are known, got {name!r}{suggest(name, kinds)}")
        several = value.split(",") if name == "model" and isinstance(value, str) else value
        given[name] = _convert(name, several, kinds[name])
        if name in _LEAST and not given[name] >= _LEAST[name]:
            raise InputError(f"{name} must be at least {_LEAST[name]}, got {given[name]}.")
    return given


def _kinds(cls: type, names: Iterable[str]) -> dict[str, type]:
    """The types of a dataclass' fields: bool, int, float, str, or tuple for several texts."""
    hints, found = typing.get_type_hints(cls), {}
    for name in names:
        hint = hints[name]
        kind = typing.get_args(hint)[0] if isinstance(hint, UnionType) else hint
        is_several = typing.get_origin(kind) is tuple
        found[name] = tuple if is_several else kind if kind in (bool, int, float) else str
    return found


def _convert(name: str, value: Any, kind: type) -> Any:
    """An argument's value: from its text, or as a configuration file has it.

    Raises:
        InputError: It is neither.
    """
    if kind is tuple:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise InputError(f"{name} must be a text or a list of texts, got {value!r}.")
        return tuple(texts)
    if isinstance(value, str) and kind is not str:
        try:
            return _SWITCHES[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            pass
    elif isinstance(value, bool) == (kind is bool) and isinstance(value, int | float if kind is float else kind):
        return value
    expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[kind]
    raise InputError(f"{name} must be {expected}, got {value!r}.")


def _pick(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}

"""Arguments of `serve.ray`, from a command line or a configuration file of Ray Serve. Imports no Ray."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any

from maskjet.config import EngineConfig
from maskjet.errors import InputError, suggest
from maskjet.serve.models import parse_models
from maskjet.serve.settings import NAMES, Settings

_ENGINE = ("device", "precision", "runtime", "engine", "compile", "max_detections")
_SCALE = ("replicas", "num_gpus", "num_cpus", "max_ongoing_requests")
_LISTENING = "must be given to Ray, which listens: http_options in a configuration file, or serve start --http-"
_FRONT = "is no limit of Ray's proxy, which listens: set one at a proxy in front of it."
_ELSEWHERE = {
    "host": f"host {_LISTENING}host.",
    "port": f"port {_LISTENING}port.",
    "grpc_port": "grpc_port must be given to maskjet serve alone: Ray's proxy takes HTTP to the replicas.",
    "header_s": f"header_s {_FRONT}",
    "stall_s": f"stall_s {_FRONT}",
    "drain_s": "drain_s must be given as graceful_shutdown_timeout_s of the deployment maskjet in a configuration "
    "file.",
    "token": "token must be given by MASKJET_TOKEN in the environment of replicas: Ray writes arguments to its logs.",
}
_SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class ReplicaConfig:
    """Configuration of a replica: models, engine and settings."""

    models: dict[str, str]
    """Model arguments of `maskjet.load`, by name."""
    weights: str | None
    """Path of the checkpoint if there is a single model; None otherwise."""
    engine: dict[str, Any]
    """Fields of `EngineConfig` that were given."""
    settings: Settings
    """Limits of the service, and the token if it is in the environment that builds the application."""


@dataclass(frozen=True)
class Scale:
    """Number of replicas, and resources per replica."""

    replicas: int = 1
    num_gpus: float | None = None
    """GPUs of a replica; None to choose by device and cluster."""
    num_cpus: float | None = None
    """CPUs of a replica; None for Ray's default, 1."""
    max_ongoing_requests: int = Settings.connections
    """Most concurrent requests that Ray sends to a replica."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 0 if each.name.startswith("num_") else 1
            if value is not None and not value >= least:
                raise InputError(f"{each.name} must be at least {least}, got {value}.")


def parse(args: Mapping[str, Any]) -> tuple[ReplicaConfig, Scale]:
    """Check arguments and convert them to their types.

    Args:
        args: Arguments by name: texts from a command line, or values from a configuration file.

    Raises:
        InputError: An argument is unknown, or its value invalid.
    """
    given = _convert_all(args)
    models = parse_models(given.get("model", ("demo",)), given.get("weights"))
    engine = _pick(given, _ENGINE)
    EngineConfig(**engine)
    device = engine.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}: Ray chooses each replica's GPU.")
    scale = Scale(**{"max_ongoing_requests": given.get("connections", Settings.connections), **_pick(given, _SCALE)})
    if device == "cuda" and scale.num_gpus == 0:
        raise InputError("num_gpus must be above 0 with device='cuda', got 0.")
    if given.keys() & {"source", "sources"}:
        check_sources(given.get("sources", Settings.sources), scale.replicas)
    else:
        given["sources"] = 0
    settings = Settings(**_pick(given, NAMES)).with_token()
    return ReplicaConfig(models, given.get("weights"), engine, settings), scale


def check_sources(sources: int, replicas: int) -> None:
    """Raise InputError for sources with several replicas."""
    if sources and replicas != 1:
        raise InputError(
            f"sources must be 0 with several replicas, got {sources} with {replicas}: a source would live in one, "
            "and requests for it meet others."
        )


def check_exposure(settings: Settings) -> None:
    """Raise InputError without a token behind HAProxy, which hides the address that clients connected to."""
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and settings.token is None and not settings.insecure:
        raise InputError(
            "token must be given where Ray listens with HAProxy, whose connections hide whether another machine sent a "
            "request: set MASKJET_TOKEN, or insecure=true if whoever reaches it may use it."
        )


def _convert_all(args: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {
        "model": tuple,
        "weights": str,
        **_kinds(Scale, _SCALE),
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
    return given


def _kinds(cls: type, names: Iterable[str]) -> dict[str, type]:
    """Types of a dataclass's fields by name: bool, int, float, str, or tuple for several texts."""
    hints, found = typing.get_type_hints(cls), {}
    for name in names:
        hint = hints[name]
        kind = typing.get_args(hint)[0] if isinstance(hint, UnionType) else hint
        is_several = typing.get_origin(kind) is tuple
        found[name] = tuple if is_several else kind if kind in (bool, int, float) else str
    return found


def _convert(name: str, value: Any, kind: type) -> Any:
    """Convert a text of the command line, or check a value of a configuration file."""
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

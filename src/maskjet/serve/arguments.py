"""Arguments of `serve.ray`, from a command line or a configuration file of Ray Serve. Imports no Ray."""

from __future__ import annotations

import os
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from maskjet.config import EngineConfig
from maskjet.errors import InputError, suggest
from maskjet.serve.models import parse_models
from maskjet.serve.settings import NAMES, Settings

_ENGINE = ("device", "precision", "runtime", "engine", "compile", "max_detections")
_SEVERAL = tuple[str, ...]
_SCALE = ("replicas", "num_gpus", "num_cpus", "max_ongoing_requests")
_OF_RAY = ("host", "port", "header_s", "stall_s", "drain_s")  # settings of its proxy and deployment


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
    models = parse_models(given.get("model") or ("demo",), given.get("weights"))
    engine = _pick(given, _ENGINE)
    EngineConfig(**engine)
    device = engine.get("device", "auto")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"device must be 'auto', 'cpu' or 'cuda', got {device!r}: Ray chooses each replica's GPU.")
    scale = Scale(**{"max_ongoing_requests": given.get("connections", Settings.connections), **_pick(given, _SCALE)})
    if device == "cuda" and scale.num_gpus == 0:
        raise InputError("num_gpus must be above 0 with device='cuda', got 0.")
    if given.keys() & {"source", "sources", "allow_sources"}:
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
    """Raise InputError without a token where one is needed: also behind HAProxy, which hides clients' addresses."""
    settings.check_exposure()
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and settings.token is None and not settings.insecure:
        raise InputError(
            "token must be given where Ray listens with HAProxy, whose connections hide whether another machine sent a "
            "request: set MASKJET_TOKEN, or insecure=true if whoever reaches it may use it."
        )


def _convert_all(args: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {
        "model": _SEVERAL,
        "weights": str,
        **_kinds(Scale, _SCALE),
        **_kinds(EngineConfig, _ENGINE),
        **_kinds(Settings, (name for name in NAMES if name not in (*_OF_RAY, "token"))),
    }
    given: dict[str, Any] = {}
    for name, value in args.items():
        if name == "token":
            raise InputError(f"{name} must be given by MASKJET_TOKEN, as Ray writes arguments to its logs.")
        if name in _OF_RAY:
            raise InputError(f"{name} must be given to Ray, which listens; docs/serving.md says how.")
        if name not in kinds:
            raise InputError(f"args must have names that are known, got {name!r}{suggest(name, kinds)}")
        if kinds[name] == _SEVERAL and isinstance(value, str):
            value = value.split(",") if name == "model" else [value]
        try:
            given[name] = TypeAdapter(kinds[name]).validate_python(value)
        except ValidationError as error:
            expected = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise InputError(f"{name} must be {expected}, got {value!r}.") from None
    return given


def _kinds(cls: type, names: Iterable[str]) -> dict[str, Any]:
    """Types of a dataclass's fields by name: bool, int, float, str, or several texts."""
    hints, found = typing.get_type_hints(cls), {}
    for name in names:
        hint = hints[name]
        kind = typing.get_args(hint)[0] if isinstance(hint, UnionType) else hint
        found[name] = kind if kind in (bool, int, float, _SEVERAL) else str
    return found


def _pick(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}

"""The service on Ray Serve: `app` is an application builder, and each replica runs the application of `create_app`.

    serve run maskjet.serve.ray:app model=demo replicas=2

docs/serving.md describes the arguments, which `arguments` parses. The token is none, as Ray logs arguments: it comes
from MASKJET_TOKEN where the application is built or a replica runs. Ray's proxies accept connections and read requests,
so `server`'s limits on connections, headers and stalled clients don't apply. A source would live in one replica and be
unknown to the others, so `sources` is 0 unless given, and then needs one replica.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from maskjet.config import EngineConfig
from maskjet.errors import UnsupportedError
from maskjet.host import process
from maskjet.host.extras import require
from maskjet.serve import check_extra
from maskjet.serve.arguments import ReplicaConfig, Scale, check_exposure, check_sources, parse

if TYPE_CHECKING:
    from fastapi import FastAPI

    from maskjet.serve.service import Service

check_extra()
ray = require("ray", extra="ray", purpose="maskjet.serve.ray")
serve = require("ray.serve", extra="ray", purpose="maskjet.serve.ray")

_HEALTH_S = 2.0
"""Seconds between health checks of a replica; Ray replaces it after three failures. With Ray's default of 10, a replica
with a failed device would attract most requests meanwhile, as it refuses them at once."""


def app(args: dict[str, Any]) -> Any:
    """Build the application for Ray Serve; docs/serving.md has the arguments.

    Args:
        args: Arguments by name: texts from a command line, or values from a configuration file.

    Returns:
        A `ray.serve.Application` with one deployment, `maskjet`.

    Raises:
        InputError: An argument is unknown, or its value invalid.
    """
    chosen, scale = parse(args)

    def build() -> FastAPI:
        return _make_app(chosen)

    resources = {"num_gpus": _num_gpus(scale, chosen.engine.get("device", "auto"))}
    if scale.num_cpus is not None:
        resources["num_cpus"] = scale.num_cpus
    deployment = serve.deployment(
        serve.ingress(build)(Replica),
        name="maskjet",
        num_replicas=scale.replicas,
        ray_actor_options=resources,
        max_ongoing_requests=scale.max_ongoing_requests,
        health_check_period_s=_HEALTH_S,
    )
    return deployment.bind()


class Replica:
    """A replica of the Ray deployment; Ray calls `check_health`, `serve.ingress` sets `app`."""

    app: FastAPI

    async def check_health(self) -> None:
        """Wait until the models have answered frames; Ray sends no request before the first check passes.

        Raises UnsupportedError if a device has failed; Ray then replaces the replica.
        """
        service: Service = self.app.state.service
        await service.warmed_up()
        if service.failure is not None:
            raise UnsupportedError(f"The replica has failed: {service.failure}")

    def __del__(self) -> None:
        if hasattr(self, "app"):  # unset if the constructor failed
            self.app.state.resources.close()


def _make_app(chosen: ReplicaConfig) -> FastAPI:
    """Load the models and create the application; `state.resources` closes the models."""
    process.suit_program()
    from maskjet.model import load
    from maskjet.serve import create_app
    from maskjet.serve.source_names import check_files

    context = serve.get_replica_context()
    settings = chosen.settings.with_token()
    check_exposure(settings)
    check_sources(settings.sources, context.world_size)
    check_files(settings.source)
    config = EngineConfig.from_env(**chosen.engine)
    if config.device == "auto":  # Ray exposes GPUs even to replicas that request none
        has_gpu = bool(ray.get_runtime_context().get_accelerator_ids()["GPU"])
        config = replace(config, device="cuda" if has_gpu else "cpu")
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(given, weights=chosen.weights, **asdict(config)))
            for name, given in chosen.models.items()
        }
        stack.enter_context(process.garbage_frozen())
        made = create_app(models, settings)
        made.state.service.metrics.replica = context.replica_tag
        made.state.resources = stack.pop_all()
    return made


def _num_gpus(scale: Scale, device: str) -> float:
    """GPUs of each replica; if not given, 1 for device cuda, or for auto where there are some."""
    if scale.num_gpus is not None:
        return scale.num_gpus
    if device != "auto":
        return float(device == "cuda")
    if ray.is_initialized():
        return float(bool(ray.cluster_resources().get("GPU")))
    import torch  # Ray is not running yet, as in `serve run`

    return float(torch.cuda.is_available())

"""The service on Ray Serve: `app` is an application builder, and each replica runs the application of `create_app`.

    serve run maskjet.serve.ray:app model=demo replicas=2

serves at http://127.0.0.1:8000. The same in a configuration file of Serve, as `serve run FILE`, `serve deploy` and
KubeRay's RayService take it:

    http_options: {host: 0.0.0.0}
    applications:
      - name: maskjet
        import_path: maskjet.serve.ray:app
        route_prefix: /
        args: {model: [demo, cars=/models/cars.pt], replicas: 4, num_gpus: 1, queue: 128}

Arguments: `model` and `weights` as those of `maskjet serve`; where replicas run: `replicas`, `num_gpus`, `num_cpus` and
`max_ongoing_requests`; the engine's `device`, `precision`, `runtime`, `engine`, `compile` and `max_detections`; and
limits by the names of the fields of `Settings`. Options of the deployment `maskjet` in the file, as
`autoscaling_config`, win.

The token comes from MASKJET_TOKEN where the application is built or where a replica runs. It is no argument, as Ray
writes arguments to its logs. Without a token only requests that came to a loopback address are answered (`guard`),
wherever Ray's proxies listen.

Ray's proxies listen, read requests and spread them over replicas, so that what `server` limits (connections, the time
of headers, clients that do not read) is theirs to limit. A source would live in one replica and be unknown to others:
there are none unless `sources` asks for them, with one replica.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from maskjet import process
from maskjet.config import EngineConfig
from maskjet.errors import UnsupportedError
from maskjet.extras import require
from maskjet.serve import check_extra
from maskjet.serve.arguments import Chosen, Scale, check_exposure, check_sources, parse, with_token

if TYPE_CHECKING:
    from fastapi import FastAPI

    from maskjet.serve.service import Service

check_extra()
ray = require("ray", extra="ray", purpose="maskjet.serve.ray")
serve = require("ray.serve", extra="ray", purpose="maskjet.serve.ray")

_HEALTH_S = 2.0
"""Seconds between checks of a replica, which Ray replaces after three that fail. Ray's default is 10: until it is
replaced, a replica whose device has failed refuses requests so quickly that most of them go to it."""


def app(args: dict[str, Any]) -> Any:
    """Build the application for Ray Serve; the module's docstring has the arguments.

    Args:
        args: Arguments by name: texts from a command line, or values from a configuration file.

    Returns:
        A `ray.serve.Application` with one deployment, `maskjet`.

    Raises:
        InputError: There is no such argument, or its value does not fit.
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
    """One replica, as Ray asks for its health and ends it; `serve.ingress` gives it the application."""

    app: FastAPI

    async def check_health(self) -> None:
        """Wait until the models have answered frames; Ray sends no request before the first check has passed.

        Raises:
            UnsupportedError: A device has failed, so that Ray replaces the replica.
        """
        service: Service = self.app.state.service
        await service.warmed_up()
        if service.failure is not None:
            raise UnsupportedError(f"The replica has failed: {service.failure}")

    def __del__(self) -> None:
        if hasattr(self, "app"):  # not where its constructor failed
            self.app.state.resources.close()


def _make_app(chosen: Chosen) -> FastAPI:
    """Load the models and make the application that serves them, in a replica.

    `state.resources` of the application closes the models.
    """
    process.suit_program()
    from maskjet.model import load
    from maskjet.serve import create_app

    context = serve.get_replica_context()
    settings = with_token(chosen.settings)
    check_exposure(settings)
    check_sources(settings.sources, context.world_size)
    config = EngineConfig.from_env(**chosen.engine)
    if config.device == "auto":  # Ray does not hide GPUs from a replica that asks for none
        has_gpu = bool(ray.get_runtime_context().get_accelerator_ids()["GPU"])
        config = replace(config, device="cuda" if has_gpu else "cpu")
    options = {each.name: getattr(config, each.name) for each in fields(config)}
    with ExitStack() as stack:
        models = {
            name: stack.enter_context(load(what, weights=chosen.weights, **options))
            for name, what in chosen.models.items()
        }
        stack.enter_context(process.garbage_frozen())
        made = create_app(models, settings)
        made.state.service.metrics.replica = context.replica_tag
        made.state.resources = stack.pop_all()
    return made


def _num_gpus(scale: Scale, device: str) -> float:
    """GPUs of each replica; if not asked for, one where the device or else the cluster has any."""
    if scale.num_gpus is not None:
        return scale.num_gpus
    return float(device == "cuda" or (device == "auto" and _has_gpus()))


def _has_gpus() -> bool:
    """Whether Ray's cluster has GPUs; before Ray runs, as in `serve run`, whether this machine has."""
    if ray.is_initialized():
        return bool(ray.cluster_resources().get("GPU"))
    import torch

    return torch.cuda.is_available()

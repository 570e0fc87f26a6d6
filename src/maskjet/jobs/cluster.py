"""Connecting to a Ray cluster, and choosing the number and resources of its workers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from maskjet.checks import check_count
from maskjet.errors import InputError, UnsupportedError, first_line
from maskjet.host.devices import SEGMENTS_PER_GPU
from maskjet.host.extras import require
from maskjet.jobs.local import ONE_THREAD

_ANSWER_S = 10.0  # timeout of a connection to the cluster's head
# Prefixes of environment variables passed to workers.
_PASSED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MASKJET_CACHE_DIR", "MASKJET_LIMIT_")


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a Ray cluster, and yield the module ray; an existing connection is used, and left open.

    The address is "auto" for the cluster of this machine, "local" to start one on it, or HOST:PORT of the head of a
    cluster that has this machine as a node. Raises UnsupportedError if there is none.
    """
    ray: Any = require("ray", extra="ray", purpose="--ray")
    if ray.is_initialized():
        if ray.util.client.ray.is_connected():  # whose machine does not share the nodes' files
            raise UnsupportedError(
                "ray must be connected as a node of the cluster, not by ray://. Run this on a node, for example with "
                "ray job submit."
            )
        yield ray
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address not in ("auto", "local"):  # Ray itself would wait for two minutes if nothing answers
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        # Without a working_dir, workers would import from the current folder first; a submitted job may have its own.
        has_own = '"working_dir"' in os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "")
        with TemporaryDirectory() as empty:
            options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
            options |= {"logging_level": logging.WARNING, "log_to_driver": False}
            ray.init(address, runtime_env={} if has_own else {"working_dir": empty}, **options)
    except Exception as error:
        raise UnsupportedError(
            "ray must be auto, local or the HOST:PORT of a cluster that answers and has this machine as a node, got "
            f"{address!r}: {first_line(error)}. Start one with ray start --head, or use --ray local."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # restore our handler, which finishes segments; Ray's exits
    try:
        yield ray
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class Pool:
    """Number and resources of the workers of a job."""

    size: int
    """Number of workers."""
    device: str
    """Device of each worker: "cpu", or "cuda", the only GPU that Ray shows it."""
    streams: int
    """Concurrent segments per worker: `SEGMENTS_PER_GPU` on a GPU, else one per core of its share of the node."""

    def options(self) -> dict[str, Any]:
        """Ray options of each actor."""
        variables = {name: text for name, text in os.environ.items() if name.startswith(_PASSED)}
        has_gpu = self.device == "cuda"
        return {
            "num_cpus": int(not has_gpu),
            "num_gpus": int(has_gpu),
            "max_concurrency": self.streams,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": variables if has_gpu else variables | ONE_THREAD},
        }


def fit(nodes: Sequence[Mapping[str, float]], device: str, workers: int | None) -> Pool:
    """Choose a pool of workers that fits the nodes, given by the resources of each under Ray's names.

    A worker has a GPU if device is cuda, or auto and the cluster has GPUs; else a CPU. By default there is one per GPU,
    or else one per node. Raises UnsupportedError if there are not enough.
    """
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    has = f"the cluster has {len(nodes)} node{'s' * (len(nodes) != 1)} with {cpus:g} CPUs and {gpus:g} GPUs"
    if workers is not None:
        check_count("workers", workers)
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"device must be auto, cpu or cuda on a Ray cluster, which gives each worker its own; got {device!r}."
        )
    has_gpus = device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes))
    kind = "GPU" if has_gpus else "CPU"
    rooms = [(int(node.get("CPU", 0)), room) for node in nodes if (room := int(node.get(kind, 0)))]
    if not rooms:
        raise UnsupportedError(
            f"device={device!r} needs {kind}s, {has}: start nodes that have some, or choose another device."
        )
    room = sum(room for _, room in rooms)
    size = workers or (room if has_gpus else len(rooms))
    if size > room:
        raise UnsupportedError(
            f"workers must be at most {room}, one per {kind}, got {workers}: {has}. Start more nodes, or ask for fewer "
            "workers."
        )
    per_node = -(-size // len(rooms))  # workers are spread over the nodes
    return Pool(
        size,
        device="cuda" if has_gpus else "cpu",
        streams=SEGMENTS_PER_GPU if has_gpus else max(1, min(cpus for cpus, _ in rooms) // per_node),
    )

"""A Ray cluster: the connection to it, and the workers that it has room for."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from maskjet.devices import SEGMENTS_PER_GPU
from maskjet.errors import InputError, UnsupportedError, first_line
from maskjet.extras import require
from maskjet.jobs.local import ONE_THREAD

_CPUS = 0.5  # of Ray's that a worker reserves; with one per CPU at most, half of them stay free for Ray Data
_ANSWER_S = 10.0  # for a cluster to take a connection
_PASSED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MASKJET_LIMIT_")  # beginnings of variables


def import_ray(purpose: str) -> Any:
    """Ray with Ray Data; raises MissingDependencyError."""
    require("ray.data", extra="ray", purpose=purpose)
    return require("ray", extra="ray", purpose=purpose)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Be connected to a cluster, and yield Ray; a connection that is there already is used, and left as it is.

    Args:
        address: "auto" for the cluster of this machine, "local" to start one on it, or HOST:PORT of another one, of
            which this machine is a node.

    Raises:
        UnsupportedError: There is none, or the connection is of Ray's client.
        MissingDependencyError: Ray is not installed.
    """
    ray = import_ray("--ray")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised, too
    if ray.is_initialized():
        yield check_connection(ray)
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address not in ("auto", "local"):  # Ray itself waits for two minutes for an address that does not answer
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        options = {"include_dashboard": False} if address == "local" else {}
        ray.init(address, logging_level=logging.WARNING, log_to_driver=False, **options)
    except Exception as error:
        raise UnsupportedError(
            "ray must be auto, local or the HOST:PORT of a cluster that answers and has this machine as a node, got "
            f"{address!r}: {first_line(error)}. Start one with ray start --head, or use --ray local."
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray's ends the process, where ours finishes what was begun
    try:
        yield ray
    finally:
        ray.shutdown()


def check_connection(ray: Any) -> Any:
    """Ray; raises UnsupportedError if it is connected by its client, whose machine is no node: it has no files."""
    if ray.util.client.ray.is_connected():
        raise UnsupportedError(
            "ray must be connected as a node of the cluster, not by ray://. Run this on a node, for example with "
            "ray job submit."
        )
    return ray


@dataclass(frozen=True)
class Pool:
    """The workers of a job or dataset."""

    size: int
    """Workers."""
    device: str
    """Device of each, in its own names: it sees one GPU at most."""
    num_cpus: float
    """Ray's CPUs that each reserves."""
    streams: int
    """Segments that each works on at a time: `SEGMENTS_PER_GPU` on a GPU, else one per core that it has to itself."""

    def options(self, ray: Any) -> dict[str, Any]:
        """Options of `map_batches` for a pool of this size that doesn't grow."""
        variables = {name: text for name, text in os.environ.items() if name.startswith(_PASSED)}
        has_gpu = self.device == "cuda"
        pool = ray.data.ActorPoolStrategy(
            size=self.size, max_concurrent_calls_per_actor=self.streams, enable_true_multi_threading=self.streams > 1
        )
        environment = {"env_vars": variables if has_gpu else variables | ONE_THREAD}
        return {"compute": pool, "num_cpus": self.num_cpus, "num_gpus": int(has_gpu), "runtime_env": environment}


def nodes_of(ray: Any) -> list[Mapping[str, float]]:
    """The resources of each node that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def fit(nodes: Sequence[Mapping[str, float]], device: str, workers: int | None) -> Pool:
    """Choose workers that the nodes have room for.

    A GPU each if the device or else the cluster has any; else at most one worker per CPU. Either way at least half of
    the CPUs stay free: Ray Data's own tasks need some, and a pool that took them all would wait for ever.

    Args:
        nodes: The resources of each node, by Ray's names.
        device: auto, cpu or cuda.
        workers: How many; None is one per GPU, or else one per node.

    Raises:
        InputError: workers or the device is out of range.
        UnsupportedError: There are not enough GPUs or CPUs.
    """
    cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
    has = f"the cluster has {len(nodes)} node{'s' * (len(nodes) != 1)} with {cpus:g} CPUs and {gpus:g} GPUs"
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}.")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"device must be auto, cpu or cuda on a Ray cluster, which gives each worker its own; got {device!r}."
        )
    if not any(int(node.get("CPU", 0)) for node in nodes):
        raise UnsupportedError(f"Ray Data needs CPUs, {has}: start nodes that have some.")
    has_gpus = device == "cuda" or (device == "auto" and any(node.get("GPU", 0) >= 1 for node in nodes))
    kind = "GPU" if has_gpus else "CPU"
    rooms = [(int(node.get("CPU", 0)), room) for node in nodes if (room := int(node.get(kind, 0)))]
    if not rooms:
        raise UnsupportedError(
            f"device='cuda' needs GPUs, {has}: start nodes that have some, or choose the device cpu."
        )
    room = sum(room for _, room in rooms)
    size = workers or (room if has_gpus else len(rooms))
    if size > room:
        raise UnsupportedError(
            f"workers must be at most {room}, one per {kind}, got {workers}: {has}. Start more nodes, or ask for fewer "
            "workers."
        )
    per_node = -(-size // len(rooms))  # Ray Data spreads them
    return Pool(
        size,
        device="cuda" if has_gpus else "cpu",
        num_cpus=_CPUS * min(1.0, *(cpus / room for cpus, room in rooms)),
        streams=SEGMENTS_PER_GPU if has_gpus else max(1, min(cpus for cpus, _ in rooms) // per_node),
    )

"""Clients of `serve_soak` that ask by gRPC: good ones with raw frames, and bad ones."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loading import load_module
from maskjet.media.images import read_image

DIFFERENT = "another answer to the same frame"
_REGION = "soak"
_ANSWER_S = 60.0
_PAUSE_S = 0.05  # of a bad client between its requests


def run_grpc(name: str, port: int, files: Sequence[str], seconds: float, result: Any) -> None:
    """Ask for some seconds, in threads; puts the number of answers by status, of each kind of clients."""
    grpc: Any = load_module("tritonclient.grpc", "tritonclient[grpc]")
    frames, end = [read_image(Path(file)) for file in files], time.perf_counter() + seconds
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("message", "region", *_BAD)}
    memory = SharedMemory(create=True, size=max(frame.nbytes for frame in frames))
    works: list[tuple[str, Callable[[Any], str]]] = [
        ("message", _asking(grpc, name, frames)),
        ("region", _asking(grpc, name, frames, memory)),
        *((kind, lambda client, ask=ask: ask(grpc, client, name, port)) for kind, ask in _BAD.items()),
    ]

    def work(kind: str, ask: Callable[[Any], str]) -> None:
        with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            while time.perf_counter() < end:
                try:
                    counts[kind][ask(client)] += 1
                except grpc.InferenceServerException as error:
                    counts[kind][str(error.status())] += 1
                if kind in _BAD:
                    time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=work, args=each) for each in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.unlink()
    result.put({kind: dict(each) for kind, each in counts.items()})


def _asking(
    grpc: Any, name: str, frames: Sequence[np.ndarray[Any, Any]], memory: SharedMemory | None = None
) -> Callable[[Any], str]:
    """A good client, which asks for one frame after the other and compares answers to the same one."""
    seen: dict[int, bytes] = {}
    turn = 0

    def ask(client: Any) -> str:
        nonlocal turn
        number, turn = turn % len(frames), turn + 1
        frame = frames[number]
        tensor = grpc.InferInput("image", list(frame.shape), "UINT8")
        if memory is None:
            tensor.set_data_from_numpy(frame)
        else:
            if turn == 1:
                client.register_system_shared_memory(_REGION, memory.name, memory.size)
            np.ndarray(frame.shape, np.uint8, memory.buf)[:] = frame
            tensor.set_shared_memory(_REGION, frame.nbytes)
        answer = b"".join(client.infer(name, [tensor], client_timeout=_ANSWER_S).get_response().raw_output_contents)
        return "OK" if seen.setdefault(number, answer) == answer else DIFFERENT

    return ask


def _ask_for(grpc: Any, client: Any, name: str, shape: Sequence[int], *, region: str | None = None) -> str:
    tensor = grpc.InferInput("image", list(shape), "UINT8")
    if region is None:
        tensor.set_data_from_numpy(np.zeros(shape, np.uint8))
    else:
        tensor.set_shared_memory(region, int(np.prod(shape)))
    client.infer(name, [tensor], client_timeout=_ANSWER_S)
    return "OK"


def _leave(grpc: Any, client: Any, name: str, _port: int) -> str:
    tensor = grpc.InferInput("image", [720, 1280, 3], "UINT8")
    tensor.set_data_from_numpy(np.zeros((720, 1280, 3), np.uint8))
    client.async_infer(name, [tensor], lambda **_: None).cancel()
    return "gone"


def _send_garbage(_grpc: Any, _client: Any, _name: str, port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)) * 64)
        time.sleep(0.3)
    return "gone"


def _register(_grpc: Any, client: Any, region: str, key: str, size: int) -> str:
    client.register_system_shared_memory(region, key, size)
    return "OK"


_BAD: Mapping[str, Callable[[Any, Any, str, int], str]] = {
    "no such model": lambda grpc, client, _name, _port: _ask_for(grpc, client, "none", (8, 8, 3)),
    "no image": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (8, 8, 3, 3)),
    "too large": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (9000, 9000, 3)),
    "no such region": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (8, 8, 3), region="none"),
    "another's file": lambda grpc, client, _name, _port: _register(grpc, client, "stolen", "../etc/passwd", 64),
    "no memory of the name": lambda grpc, client, _name, _port: _register(grpc, client, "lost", "soak-none", 64),
    "leaves": _leave,
    "sends garbage": _send_garbage,
}

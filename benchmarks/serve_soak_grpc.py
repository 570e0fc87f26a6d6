"""Clients of `serve_soak` that ask by gRPC: good ones with raw frames, and bad ones."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.loading import load_module
from maskjet.sources.images import read_image

DIFFERENT = "another answer to the same frame"
_GOOD = "good"
_ANSWER_S = 60.0
_PAUSE_S = 0.05  # of a bad client between its requests


def run_grpc(name: str, port: int, files: Sequence[str], seconds: float, result: Any) -> None:
    """Ask for some seconds, in threads; puts the number of answers by status, of each kind of clients."""
    grpc: Any = load_module("tritonclient.grpc", "tritonclient[grpc]")
    frames, end = [read_image(Path(file)) for file in files], time.perf_counter() + seconds
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (_GOOD, *_BAD)}

    def work(kind: str) -> None:
        with grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
            if kind == _GOOD:
                ask = _make_good(grpc, client, name, frames)
            else:
                ask = partial(_BAD[kind], grpc, client, name, port)
            while time.perf_counter() < end:
                try:
                    counts[kind][ask()] += 1
                except grpc.InferenceServerException as error:
                    counts[kind][str(error.status())] += 1
                if kind in _BAD:
                    time.sleep(_PAUSE_S)

    threads = [threading.Thread(target=work, args=(kind,)) for kind in counts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.put({kind: dict(each) for kind, each in counts.items()})


def _make_good(grpc: Any, client: Any, name: str, frames: list[np.ndarray[Any, Any]]) -> Callable[[], str]:
    """A good client, which asks for frames of one size in turn, and compares answers to the same one."""
    seen: dict[int, bytes] = {}
    turns = cycle(enumerate(frames))
    tensor = grpc.InferInput("image", list(frames[0].shape), "UINT8")

    def ask() -> str:
        number, frame = next(turns)
        tensor.set_data_from_numpy(frame)
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


def _send_nothing(_grpc: Any, client: Any, _name: str, _port: int) -> str:
    go = threading.Event()
    call = client._channel.stream_unary("/inference.GRPCInferenceService/ServerLive")
    calls = [call.future((b"" for _ in range(1) if go.wait(_ANSWER_S)), timeout=_ANSWER_S) for _ in range(32)]
    errors = [str(error.code()) for each in calls if (error := each.exception()) is not None]
    go.set()
    return errors[0] if errors else "OK"


_BAD: Mapping[str, Callable[[Any, Any, str, int], str]] = {
    "no such model": lambda grpc, client, _name, _port: _ask_for(grpc, client, "none", (8, 8, 3)),
    "no image": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (8, 8, 3, 3)),
    "too large": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (9000, 9000, 3)),
    "names a region": lambda grpc, client, name, _port: _ask_for(grpc, client, name, (8, 8, 3), region="none"),
    "leaves": _leave,
    "sends garbage": _send_garbage,
    "sends no message": _send_nothing,
}

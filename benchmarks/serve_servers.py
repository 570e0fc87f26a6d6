"""Servers that `maskjet serve` is compared with, each in a process of its own, and the ceiling of them all.

python -m benchmarks.serve_servers fastapi --port 8001 --model demo
python -m benchmarks.serve_servers litserve --port 8002 --model rf-detr-seg-nano --weights nano.pt --workers 4
python -m benchmarks.serve_servers floor --port 8003 --answer-bytes 8000
python -m benchmarks.serve_servers ceiling --model demo a.jpg b.jpg
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool

from benchmarks.contest import median_ms
from maskjet.cli.main import main
from maskjet.cli.options import ModelOption, WeightsOption, print_result, with_config
from maskjet.config import EngineConfig
from maskjet.errors import MaskjetError
from maskjet.host import process

PortOption = Annotated[int, typer.Option(help="Port on 127.0.0.1.")]
WorkersOption = Annotated[int, typer.Option(help="Processes that detect.")]
_STREAMS = {"cpu": ((1, 2),), "cuda": ((1, 4), (8, 3))}  # (sources, batches in flight)
_TIMED = 20  # calls, at least, for a median

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
@with_config("device", "precision", "engine", "compile")
def fastapi(
    *, port: PortOption, model: ModelOption = "demo", weights: WeightsOption = None, config: EngineConfig
) -> None:
    """Serve a model as one would in ten lines: a FastAPI handler that calls `predict`."""
    from maskjet.model import Model, read_network

    with Model(read_network(model, weights), config) as loaded:
        server, decoder = FastAPI(), _decoder_of(loaded)

        def work(body: bytes) -> dict[str, Any]:
            return loaded.predict(body, decoder=decoder).as_dict()

        @server.post("/predict")
        async def predict(request: Request) -> dict[str, Any]:
            return await run_in_threadpool(work, await request.body())

        uvicorn.run(server, host="127.0.0.1", port=port, log_level="warning", access_log=False)


@app.command()
@with_config("device")
def litserve(
    *,
    port: PortOption,
    model: ModelOption,
    weights: WeightsOption = None,
    workers: WorkersOption = 1,
    config: EngineConfig,
) -> None:
    """Serve rfdetr's fastest `predict` by LitServe, masks as RLE by pycocotools."""
    lit = importlib.import_module("litserve")
    device = config.resolve_device()
    api = importlib.import_module("benchmarks.serve_litserve").RfdetrAPI(model, str(weights or ""), str(device))
    server = lit.LitServer(api, accelerator=device.type, devices=1, workers_per_device=workers, timeout=60)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning", access_log=False)


@app.command()
def floor(*, port: PortOption, answer_bytes: int = 8000) -> None:
    """Answer each request at once, to measure the load generator."""
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {answer_bytes}\r\n\r\n".encode() + b" " * answer_bytes

    class Trivial(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport, self._left, self._head = transport, 0, b""

        def data_received(self, data: bytes) -> None:
            if not self._left:
                head, end, rest = (self._head + data).partition(b"\r\n\r\n")
                if not end:
                    self._head = head
                    return
                self._head, data = b"", rest
                self._left = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0] or 0)
                self._ends = b"Connection: close" in head
            self._left -= len(data)
            if not self._left:
                self._transport.write(answer)  # type: ignore[attr-defined]
                if self._ends:
                    self._transport.close()

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Trivial, "127.0.0.1", port)
        await server.serve_forever()

    uvloop = importlib.import_module("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@app.command()
@with_config("device", "precision", "engine", "compile")
def ceiling(
    *,
    files: Annotated[list[Path], typer.Argument(help="Images of one size.")],
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    seconds: Annotated[float, typer.Option(help="Seconds of each measurement.")] = 2.0,
    config: EngineConfig,
) -> None:
    """Print as JSON how fast the model is without a network between, and what `predict` finds on each image."""
    from maskjet.model import Model, read_network
    from maskjet.sources.images import decode_image

    with Model(read_network(model, weights), config) as loaded, process.garbage_frozen():
        bodies = [file.read_bytes() for file in files]
        images = [decode_image(body, "it") for body in bodies]
        found = [loaded.predict(body, decoder=_decoder_of(loaded)) for body in bodies]
        report: dict[str, Any] = {
            "decode_ms": median_ms(lambda n: decode_image(bodies[n % len(bodies)], "it"), _TIMED, seconds),
            "predict_ms": median_ms(lambda n: loaded.predict(images[n % len(images)]), _TIMED, seconds),
            "encode_ms": median_ms(lambda n: json.dumps(found[n % len(found)].as_dict()), _TIMED, seconds / 4),
            "stream_fps": 0.0,
            "stream_how": "-",
            "files_fps": 0.0,
            "files_how": "-",
        }
        for sources, depth in _STREAMS[config.resolve_device().type]:
            for name, items in (("stream_fps", images), ("files_fps", [str(file) for file in files])):
                fps = _stream_fps(loaded, items, sources=sources, depth=depth, seconds=seconds)
                if fps > report[name]:
                    report[name] = fps
                    report[name.replace("fps", "how")] = f"{sources} sources, {depth} batches in flight"
        report["report"] = loaded.report().as_dict()
        report["expected"] = [each.as_dict() for each in found]
    print_result(report)


def _decoder_of(model: Any) -> Any:
    """Where the service decodes JPEGs of a model."""
    decoding = model.decoding()
    try:
        return "cpu" if decoding.device == "cpu" else decoding.jpeg_decoder() and "cuda"
    except MaskjetError:
        return "cpu"


def _stream_fps(model: Any, items: Sequence[Any], *, sources: int, depth: int, seconds: float) -> float:
    """Frames per second of `stream` over items in rotation; the first third of the time is not counted."""
    start = time.perf_counter()
    begin, end = start + seconds / 2, start + 1.5 * seconds

    def feed(first: int) -> Iterator[Any]:
        number = first
        while time.perf_counter() < end:
            yield items[number % len(items)]
            number += 1

    opened = [feed(first) for first in range(sources)]
    times = [
        time.perf_counter() for _ in model.stream(opened if sources > 1 else opened[0], depth=depth, batch=sources)
    ]
    counted = [each for each in times if begin <= each <= end]
    return (len(counted) - 1) / (counted[-1] - counted[0]) if len(counted) > 1 else 0.0


if __name__ == "__main__":
    main(app)

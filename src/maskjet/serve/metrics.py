"""Metrics for Prometheus, in a registry per application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maskjet.serve.other_workers import OtherWorkers, is_from_worker

if TYPE_CHECKING:
    from maskjet.serve.dispatcher import Dispatcher
    from maskjet.sources.metering import SourceState

router = APIRouter(tags=["health"])
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32)


class Metrics(Collector):
    """The metrics of one application; `dispatchers`, by model, are read at each scrape."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher], is_ready: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("maskjet_requests", "Requests by route and HTTP status, or gone.", ("route", "outcome"))
        self.batch_images = histogram("maskjet_batch_images", "Images in a batch.", ("model",), buckets=_IMAGES)
        text = "Seconds of decode, queue, predict and encode."
        self.stage_seconds = histogram("maskjet_stage_seconds", text, ("stage",), buckets=_SECONDS)
        self.frames = counter("maskjet_frames", "Frames detected on, by source.", ("source",))
        self.dropped = counter("maskjet_frames_dropped", "Frames left out for newer ones, by source.", ("source",))
        self.jpegs_on_cpu = counter("maskjet_jpegs_on_cpu", "JPEGs that the GPU leaves to the CPU.", ("reason",))
        self.streams = gauge("maskjet_streams", "WebSockets that are open.")
        self._dispatchers, self._is_ready = dispatchers, is_ready
        self.source_states: Callable[[], Mapping[str, SourceState]] = dict
        """Returns the states of the sources by id."""
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Compute the metrics that are read at each scrape."""
        yield from _collect_state(self._dispatchers, self._is_ready())
        yield from _collect_sources(self.source_states())


def merge(texts: Mapping[str, str]) -> bytes:
    """Merge texts in Prometheus' format by process; each sample gets the label `process`."""
    families: dict[str, Metric] = {}
    for process, text in texts.items():
        for family in text_string_to_metric_families(text):
            joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joined.add_sample(sample.name, {**sample.labels, "process": process}, sample.value)
    registry: Any = SimpleNamespace(collect=families.values)
    return generate_latest(registry)


def _collect_state(dispatchers: Mapping[str, Dispatcher], is_ready: bool) -> Iterator[Metric]:
    yield GaugeMetricFamily("maskjet_ready", "1 while requests are answered at once.", value=is_ready)
    depth = GaugeMetricFamily("maskjet_queue_depth", "Images that wait.", labels=("model",))
    images = CounterMetricFamily("maskjet_images", "Images detected on.", labels=("model",))
    found = CounterMetricFamily("maskjet_detections", "Detections returned.", labels=("model",))
    graphs = GaugeMetricFamily("maskjet_graphs", "CUDA graphs captured.", labels=("model",))
    fallbacks = CounterMetricFamily("maskjet_fallbacks", "Slower paths taken.", labels=("model", "reason"))
    devices = set()
    for name, dispatcher in dispatchers.items():
        report = dispatcher.model.report()
        devices.add(report.device.partition(" ")[0])
        depth.add_metric((name,), dispatcher.depth)
        images.add_metric((name,), report.images)
        found.add_metric((name,), report.detections)
        captured = [text for text in report.graphs.values() if text.startswith("1 launch")]
        graphs.add_metric((name,), len(captured))
        for reason, times in report.fallbacks.items():
            fallbacks.add_metric((name, reason), times)
    yield from (depth, images, found, graphs, fallbacks, _gpu_memory(devices))


def _collect_sources(states: Mapping[str, SourceState]) -> Iterator[Metric]:
    labels = ("source",)
    connected = GaugeMetricFamily("maskjet_source_connected", "1 while a source is open.", labels=labels)
    lag = GaugeMetricFamily("maskjet_source_lag_seconds", "How late a live source's frames are.", labels=labels)
    latency = GaugeMetricFamily("maskjet_source_latency_seconds", "From a packet to its result, p99.", labels=labels)
    reconnects = CounterMetricFamily("maskjet_source_reconnects", "Times a source was opened again.", labels=labels)
    bad_frames = CounterMetricFamily("maskjet_source_bad_frames", "Bad frames, and gaps.", labels=labels)
    for identity, state in states.items():
        connected.add_metric((identity,), state.connected)
        reconnects.add_metric((identity,), state.reconnects)
        bad_frames.add_metric((identity,), state.bad_frames)
        if state.lag_s is not None:
            lag.add_metric((identity,), state.lag_s)
        if state.latency_s is not None:
            latency.add_metric((identity,), state.latency_s)
    yield from (connected, lag, latency, reconnects, bad_frames)


def _gpu_memory(devices: Iterable[str]) -> Metric:
    import torch

    family = GaugeMetricFamily("maskjet_gpu_memory_bytes", "GPU memory held by PyTorch.", labels=("device", "kind"))
    for device in sorted(devices):
        if device.startswith("cuda"):
            family.add_metric((device, "allocated"), torch.cuda.memory_allocated(device))
            family.add_metric((device, "reserved"), torch.cuda.memory_reserved(device))
    return family


class RequestCounter:
    """Outermost ASGI middleware: counts requests by route and outcome."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        if scope["type"] != "http" or is_from_worker(scope):
            await self._app(scope, receive, send)
            return
        outcome = "gone"

        async def watch(message: Message) -> None:
            nonlocal outcome
            if message["type"] == "http.response.start":
                outcome = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never text from clients
            self._metrics.requests.labels(route, "gone" if outcome == "499" else outcome).inc()


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format; with several processes those of all, labelled `process`."""
    text = generate_latest(request.app.state.service.metrics.registry)
    other_workers: OtherWorkers | None = request.app.state.other_workers
    if other_workers is not None and not is_from_worker(request.scope):
        texts = await other_workers.ask_all("/metrics", text.decode())
        answered = {str(number): each for number, each in texts.items() if each is not None}
        text = await asyncio.to_thread(merge, answered)
    return Response(text, media_type=CONTENT_TYPE_LATEST)

"""Measurements for Prometheus, in a registry of the application's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from maskjet.serve.siblings import Siblings, is_from_sibling

if TYPE_CHECKING:
    from maskjet.media.metering import SourceState
    from maskjet.serve.dispatcher import Dispatcher

router = APIRouter(tags=["health"])
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_LAGS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_IMAGES = (1, 2, 4, 8, 16, 32)
_BEAT_S = 0.01


class Metrics:
    """All measurements of one application.

    Args:
        dispatchers: Queues by model, read when the measurements are.
        is_ready: Tells whether the service is ready.
    """

    def __init__(self, dispatchers: Mapping[str, Dispatcher], is_ready: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        self.replica: str | None = None
        """Name of this replica of the service, a label of all measurements; None where there is one only."""
        self.requests = Counter(
            "maskjet_requests",
            "Requests by route and HTTP status, or gone.",
            ("route", "outcome"),
            registry=self.registry,
        )
        self.batch_images = Histogram(
            "maskjet_batch_images", "Images in a batch.", ("model",), buckets=_IMAGES, registry=self.registry
        )
        self.stage_seconds = Histogram(
            "maskjet_stage_seconds",
            "Seconds of decode, queue, predict and encode.",
            ("stage",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.frames = Counter("maskjet_frames", "Frames detected on, by source.", ("source",), registry=self.registry)
        self.dropped = Counter(
            "maskjet_frames_dropped", "Frames left out for newer ones, by source.", ("source",), registry=self.registry
        )
        self.streams = Gauge("maskjet_streams", "WebSockets that are open.", registry=self.registry)
        self.loop_lag = Histogram(
            "maskjet_loop_lag_seconds",
            f"How late the event loop was for what is due every {1000 * _BEAT_S:g} ms.",
            buckets=_LAGS,
            registry=self.registry,
        )
        self.most_loop_lag = Gauge(
            "maskjet_loop_lag_most_seconds", "The most that the event loop was late.", registry=self.registry
        )
        self.registry.register(_State(dispatchers, is_ready))

    def watch_sources(self, states: Callable[[], Mapping[str, SourceState]]) -> None:
        """Measure sources, too, as the function tells them by id."""
        self.registry.register(_Sources(states))

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        loop, most = asyncio.get_running_loop(), 0.0
        while True:
            due = loop.time() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            lag = max(0.0, loop.time() - due)
            self.loop_lag.observe(lag)
            if lag > most:
                most = lag
                self.most_loop_lag.set(most)

    def text(self) -> bytes:
        """The measurements in Prometheus' text format."""
        return generate_latest(self.registry if self.replica is None else _Labelled(self.registry, self.replica))


class _State(Collector):
    """What is read off the models when it is asked for."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher], is_ready: Callable[[], bool]) -> None:
        self._dispatchers, self._is_ready = dispatchers, is_ready

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The state now."""
        yield GaugeMetricFamily("maskjet_ready", "1 while requests are answered at once.", value=self._is_ready())
        depth = GaugeMetricFamily("maskjet_queue_depth", "Images that wait.", labels=("model",))
        images = CounterMetricFamily("maskjet_images", "Images detected on.", labels=("model",))
        found = CounterMetricFamily("maskjet_detections", "Detections returned.", labels=("model",))
        graphs = GaugeMetricFamily("maskjet_graphs", "CUDA graphs captured.", labels=("model",))
        fallbacks = CounterMetricFamily("maskjet_fallbacks", "Slower paths taken.", labels=("model", "reason"))
        devices = set()
        for name, dispatcher in self._dispatchers.items():
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


class _Sources(Collector):
    """What is read off the sources when it is asked for."""

    def __init__(self, states: Callable[[], Mapping[str, SourceState]]) -> None:
        self._states = states

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The state now."""
        labels = ("source",)
        connected = GaugeMetricFamily("maskjet_source_connected", "1 while a source is open.", labels=labels)
        lag = GaugeMetricFamily("maskjet_source_lag_seconds", "How late a live source's frames are.", labels=labels)
        reconnects = CounterMetricFamily("maskjet_source_reconnects", "Times a source was opened again.", labels=labels)
        bad_frames = CounterMetricFamily("maskjet_source_bad_frames", "Bad frames, and gaps.", labels=labels)
        for identity, state in self._states().items():
            connected.add_metric((identity,), state.connected)
            reconnects.add_metric((identity,), state.reconnects)
            bad_frames.add_metric((identity,), state.bad_frames)
            if state.lag_s is not None:
                lag.add_metric((identity,), state.lag_s)
        yield from (connected, lag, reconnects, bad_frames)


def _gpu_memory(devices: Iterable[str]) -> Metric:
    """Memory that PyTorch holds on the models' GPUs."""
    import torch

    family = GaugeMetricFamily("maskjet_gpu_memory_bytes", "GPU memory held by PyTorch.", labels=("device", "kind"))
    for device in sorted(devices):
        if device.startswith("cuda"):
            family.add_metric((device, "allocated"), torch.cuda.memory_allocated(device))
            family.add_metric((device, "reserved"), torch.cuda.memory_reserved(device))
    return family


class _Labelled(CollectorRegistry):
    """The measurements of a registry, with the replica's name as a label."""

    def __init__(self, registry: CollectorRegistry, replica: str) -> None:
        super().__init__()
        self._registry, self._replica = registry, replica

    def collect(self) -> Iterator[Metric]:
        """The measurements now."""
        for family in self._registry.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, "replica": self._replica}) for sample in family.samples
            ]
            yield family


class Counting:
    """Counts requests by route and outcome; a pure ASGI middleware outside of all others.

    Args:
        app: The application behind it.
        metrics: What it counts in.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and count it."""
        if scope["type"] != "http" or is_from_sibling(scope):
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
            route = getattr(scope.get("route"), "path", "other")  # never a client's own text
            self._metrics.requests.labels(route, "gone" if outcome == "499" else outcome).inc()


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Measurements in Prometheus' text format; with several processes those of all, each with its process."""
    text: bytes = request.app.state.service.metrics.text()
    siblings: Siblings | None = request.app.state.siblings
    if siblings is not None and not is_from_sibling(request.scope):
        text = await siblings.metrics(text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)

"""Measurements of the service's benchmark, and their table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.serve_load import Outcome
from maskjet.detections import Detections
from maskjet.host import measuring
from maskjet.host.tables import shown
from maskjet.host.timing import percentile
from maskjet.parity.pair import pair

_SAME_CONFIDENCE, _SAME_IOU = 0.02, 0.98  # of an answer that equals `predict` but for the last bits of a batch


@dataclass(frozen=True)
class Agreement:
    """How answers compare with `predict` on the same JPEGs."""

    answers: int
    """Answers that were compared."""
    equal: int
    """Answers equal to `predict`'s, number by number and byte by byte."""
    close: int
    """Further answers with the same detections, no confidence off by more than 0.02, no mask's IoU below 0.98."""
    matched: float
    """Share of all detections that are matched with one of `predict`'s, 0..1."""

    @property
    def different(self) -> int:
        """Answers with other detections."""
        return self.answers - self.equal - self.close


def agree(outcome: Outcome, expected: Sequence[Mapping[str, Any]]) -> Agreement:
    """Compare all answers of a load with the expected ones.

    Args:
        outcome: What the clients saw.
        expected: `Detections.as_dict` by image.
    """
    equal = close = answers = 0
    matched = found = 0
    for image, known in outcome.answers.items():
        wanted = Detections.from_dict(expected[image])
        for body, times in known.items():
            answers += times
            fields = json.loads(body)
            pairing = pair(wanted, Detections.from_dict(fields))
            matched, found = matched + times * pairing.matched, found + times * pairing.found
            if fields == expected[image]:
                equal += times
            elif (
                pairing.share == 1
                and max(pairing.confidence_differences, default=0) <= _SAME_CONFIDENCE
                and min(pairing.mask_ious, default=1) >= _SAME_IOU
            ):
                close += times
    return Agreement(answers, equal, close, matched / found if found else 1.0)


@dataclass(frozen=True)
class ServeCost:
    """One server under one load."""

    server: str
    """Name of the server."""
    size_hw: tuple[int, int]
    """(height, width) of the images, in pixels."""
    clients: int
    """Connections; of an open loop the most at a time."""
    rate: float | None
    """Requests per second of an open loop; None for a closed one, in which each client waits for its answer."""
    per_second: float
    """Requests answered per second, median of the runs."""
    p50_ms: float
    """Median time of a request, median of the runs."""
    p95_ms: float
    """95th percentile, median of the runs."""
    p99_ms: float
    """99th percentile, median of the runs."""
    requests: int
    """Requests that were timed, in all runs."""
    errors: int
    """Requests without an answer with 200, in all runs."""
    late_ms: float | None
    """99th percentile of how late the load generator sent a request of an open loop."""
    agreement: Agreement | None
    """How all answers compare with `predict`'s; None for the floor."""
    load: float
    """Load average of the machine's last minute after the runs."""

    @property
    def spread(self) -> float:
        """p99 divided by p50."""
        return self.p99_ms / self.p50_ms if self.p50_ms else 0.0


def sum_up(
    outcomes: Sequence[Outcome],
    *,
    server: str,
    size_hw: tuple[int, int],
    clients: int,
    rate: float | None,
    expected: Sequence[Mapping[str, Any]] | None,
    load: float,
) -> ServeCost:
    """Sum up the runs of one server under one load; each number is the median of the runs'.

    Args:
        outcomes: One for each run.
        server: Name of the server.
        size_hw: Size of the images.
        clients: Connections.
        rate: Requests per second of an open loop, or None.
        expected: `Detections.as_dict` by image; None to compare nothing.
        load: Load average of the machine.
    """
    every = Outcome()
    for each in outcomes:
        every.merge(each)
    times = [each.latencies_ms for each in outcomes if each.latencies_ms]

    def median(values: Iterable[float]) -> float:
        return statistics.median([*values] or [0.0])

    return ServeCost(
        server=server,
        size_hw=size_hw,
        clients=clients,
        rate=rate,
        per_second=median(each.per_second for each in outcomes),
        p50_ms=median(statistics.median(each) for each in times),
        p95_ms=median(percentile(each, 0.95) for each in times),
        p99_ms=median(percentile(each, 0.99) for each in times),
        requests=len(every.latencies_ms),
        errors=every.errors,
        late_ms=percentile(every.late_ms, 0.99) if every.late_ms else None,
        agreement=None if expected is None else agree(every, expected),
        load=load,
    )


@dataclass(frozen=True)
class Ceiling:
    """The model without a network between, on the same JPEGs."""

    size_hw: tuple[int, int]
    """(height, width) of the images, in pixels."""
    stream_fps: float
    """Frames per second of `Model.stream` from images in memory."""
    stream_how: str
    """Sources and batches in flight of the fastest stream."""
    files_fps: float
    """Frames per second of `Model.stream` from JPEG files."""
    files_how: str
    """Sources and batches in flight of the fastest stream."""
    decode_ms: float
    """Median time of decoding a JPEG."""
    predict_ms: float
    """Median time of `Model.predict` on an image in memory."""
    encode_ms: float
    """Median time of `as_dict` and JSON."""

    def __str__(self) -> str:
        height, width = self.size_hw
        return (
            f"{width}×{height} without HTTP: stream {self.stream_fps:.1f}/s from memory ({self.stream_how}), "
            f"{self.files_fps:.1f}/s from JPEG files ({self.files_how}); medians: decode {self.decode_ms:.2f} ms, "
            f"predict {self.predict_ms:.2f} ms, encode {self.encode_ms:.2f} ms"
        )


@dataclass(frozen=True)
class ServeReport(measuring.MeasuredReport):
    """All measurements of a run."""

    measurements: Sequence[ServeCost]
    ceilings: Sequence[Ceiling] = ()
    """The model's speed without a network between, by size."""
    model: str = "demo"
    """The model."""
    steps: Mapping[str, Any] | None = None
    """`Model.report()` of our engine."""
    runs: int = 1
    """Runs of each load."""
    seconds: float = 1.0
    """Measured seconds of each run in a closed loop."""

    def rows(self) -> list[tuple[str, ...]]:
        """The table."""
        header = ("size", "server", "load", "req/s", "p50 ms", "p95 ms", "p99 ms", "p99/p50", "n", "errors", "equal")
        rows: list[tuple[str, ...]] = [header]
        for cost in self.measurements:
            height, width = cost.size_hw
            load = f"{cost.clients} clients" if cost.rate is None else f"{shown(cost.rate, 1)}/s"
            times = (cost.per_second, cost.p50_ms, cost.p95_ms, cost.p99_ms)
            numbers = (*(shown(each, 1) for each in times), shown(cost.spread, 2), str(cost.requests), str(cost.errors))
            rows.append((f"{width}×{height}", cost.server, load, *numbers, _shown(cost.agreement)))
        return rows

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.ceilings)])


def _shown(agreement: Agreement | None) -> str:
    if agreement is None:
        return "-"
    if agreement.equal == agreement.answers:
        return "all"
    return f"{agreement.equal}+{agreement.close}/{agreement.answers}, {agreement.matched:.1%} matched"

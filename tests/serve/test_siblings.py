"""Between the processes of a service: measurements of all in one text, and messages."""

import asyncio
import math
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from maskjet.devices import Place
from maskjet.serve.handover import Channel, WorkerHandle
from maskjet.serve.metrics import merge
from tests.serve.client import run


def text_of(requests, seconds, only=None):
    registry = CollectorRegistry()
    counter = Counter("jobs", 'Jobs, with "quotes"\nand a line.', ("route",), registry=registry)
    counter.labels('/a"\\\n').inc(requests)
    histogram = Histogram("took_seconds", "Time.", buckets=(1.0, 2.0), registry=registry)
    for each in seconds:
        histogram.observe(each)
    if only is not None:
        Gauge(only, "Of one process.", registry=registry).set(math.inf)
    return generate_latest(registry).decode()


def samples_of(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_each_sample_has_its_process_and_each_family_is_one():
    texts = {0: text_of(3, [0.5, 1.5]), 2: text_of(4, [9.0], only="lonely")}
    merged = merge({str(number): text for number, text in texts.items()}, "process").decode()
    expected = {
        (name, tuple(sorted([*labels, ("process", str(number))]))): value
        for number, text in texts.items()
        for (name, labels), value in samples_of(text).items()
    }
    assert samples_of(merged) == expected
    described = [line.split()[2] for line in merged.splitlines() if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert {"jobs_total", "took_seconds", "lonely"} <= set(described)
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert families["jobs"].documentation == 'Jobs, with "quotes"\nand a line.'
    assert families["jobs"].type == "counter"
    assert families["took_seconds"].type == "histogram"


@run
async def test_a_process_that_ends_with_its_failure_unread_is_not_waited_for():
    mine, its = Channel.pair()
    worker = WorkerHandle(Place(0, "cpu", {}), SimpleNamespace(returncode=1), Channel(mine))

    def receive(message, _):
        worker.failure = message[1], message[2]
        worker.dismiss(60)

    other = Channel(its)
    worker.channel.start(receive)
    other.send("failed", "DeviceError", "The device failed.")
    other.close()
    timers = asyncio.get_running_loop()._scheduled
    assert worker.close() == []
    assert worker.end == "failed: The device failed."
    assert all(timer.cancelled() for timer in timers if timer._callback == worker._give_up)

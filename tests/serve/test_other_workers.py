"""Between the processes of a service: measurements of all in one text, the table they share, and who is one of them."""

import math
import os
from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from maskjet.serve.metrics import merge
from maskjet.serve.other_workers import OtherWorkers, is_from_worker
from maskjet.serve.process_table import ProcessTable


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
    merged = merge({str(number): text for number, text in texts.items()}).decode()
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


def test_the_process_with_the_fewest_connections_accepts_unless_it_hangs_or_is_full():
    table = ProcessTable(3)
    other = ProcessTable(3, table.descriptor)  # as a worker sees it
    for number, row in enumerate(other.rows[:2]):
        row.connections = number
        row.turn()
    assert [table.has_fewest(number) for number in range(2)] == [True, False]  # the third does not serve
    other.rows[1].connections -= 1
    assert table.has_fewest(1)
    table.rows[0].connections += 3
    other.rows[1].connections += 4
    assert table.count_connections() == 7
    assert not table.has_fewest(1)
    other.rows[0].is_full = 1  # it has no descriptor left
    assert table.has_fewest(1)
    other.rows[0].is_full = 0
    table.rows[0].turned_ns -= 2 * 10**9
    assert table.has_fewest(1)
    table.clear(1)
    assert (other.rows[1].connections, other.rows[1].is_alive, other.were_all_ready) == (0, False, False)
    table.note_all_ready()
    assert other.were_all_ready
    os.close(table.descriptor)


def test_only_processes_that_show_the_secret_are_no_clients():
    other_workers = OtherWorkers(None, number=1, device="cpu", secret="abc")
    scope = {"app": SimpleNamespace(state=SimpleNamespace(other_workers=other_workers)), "headers": [(b"host", b"abc")]}
    assert not is_from_worker(scope)
    for value, is_one in ((b"abd", False), (b"", False), (b"abc", True)):
        assert is_from_worker({**scope, "headers": [(b"x-maskjet-secret", value)]}) is is_one
    scope["app"].state.other_workers = None  # one process has none, whatever a client sends
    assert not is_from_worker({**scope, "headers": [(b"x-maskjet-secret", b"abc")]})

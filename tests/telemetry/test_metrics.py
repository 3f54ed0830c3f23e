"""Metrics: read on collection, added up over caches, counters that never fall."""

from __future__ import annotations

import math

import pytest
from banyankv.errors import ConfigError
from banyankv.telemetry import CATALOGUE, Outcome, Reading, Telemetry
from banyankv.telemetry.readings import Kind

L1, L2 = (("tier", "l1"),), (("tier", "l2"),)


class Numbers:
    """Statistics of a cache, and how often they were read."""

    def __init__(self, hits: int = 0, leases: int = 0) -> None:
        self.hits = hits
        self.leases = leases
        self.reads = 0

    def read(self):
        self.reads += 1
        yield Reading("banyankv.match.hit", self.hits, L1)
        yield Reading("banyankv.match.hit", 2 * self.hits, L2)
        yield Reading("banyankv.lease.count", self.leases)


def test_values_are_those_at_the_time_of_collection(sampled):
    numbers = Numbers()
    sampled.telemetry.register_metrics(numbers.read)
    numbers.hits, numbers.leases = 5, 3
    assert sampled.values("banyankv.match.hit") == {L1: 5, L2: 10}
    numbers.hits, numbers.leases = 8, 1
    assert sampled.values("banyankv.match.hit") == {L1: 8, L2: 16}
    assert sampled.values("banyankv.lease.count") == {(): 1}


def test_one_collection_reads_once_and_sees_one_state(sampled):
    numbers = Numbers()

    def read():
        numbers.hits += 1
        numbers.leases += 1
        return numbers.read()

    sampled.telemetry.register_metrics(read)
    for _ in range(3):
        before = numbers.reads
        found = sampled.metrics()
        assert numbers.reads == before + 1
        hits = found["banyankv.match.hit"][L1].value
        assert found["banyankv.lease.count"][()].value == hits == numbers.hits


def test_open_caches_are_added_up(sampled):
    sampled.telemetry.register_metrics(Numbers(hits=1, leases=2).read)
    sampled.telemetry.register_metrics(Numbers(hits=10, leases=20).read)
    assert sampled.values("banyankv.match.hit") == {L1: 11, L2: 22}
    assert sampled.values("banyankv.lease.count") == {(): 22}


def test_a_closed_cache_leaves_its_counts_and_takes_its_levels_along(sampled):
    closing, staying = Numbers(hits=1, leases=2), Numbers(hits=10, leases=20)
    close = sampled.telemetry.register_metrics(closing.read)
    sampled.telemetry.register_metrics(staying.read)
    closing.hits = 4
    close()
    close()
    reads = closing.reads
    assert sampled.values("banyankv.match.hit") == {L1: 14, L2: 28}
    assert sampled.values("banyankv.lease.count") == {(): 20}
    assert closing.reads == reads


def test_closing_one_registration_leaves_an_equal_one(sampled):
    numbers = Numbers(hits=1, leases=2)
    close = sampled.telemetry.register_metrics(numbers.read)
    sampled.telemetry.register_metrics(numbers.read)
    close()
    close()
    assert sampled.values("banyankv.lease.count") == {(): 2}


@pytest.mark.parametrize(
    ("reading", "says"),
    [
        (Reading("banyankv.match.guessed", 1), "banyankv.match.guessed"),
        (Reading("banyankv.match.hit", 1, (("session", "chat-17"),)), "session"),
    ],
)
def test_an_unknown_metric_or_label_is_refused_at_once(sampled, reading, says):
    with pytest.raises(ConfigError, match=says):
        sampled.telemetry.register_metrics(lambda: [reading])
    assert sampled.metrics() == {}


def test_kinds_and_units_reach_the_exporter(sampled):
    readings = [Reading(name, 1) for name in CATALOGUE]
    sampled.telemetry.register_metrics(lambda: readings)
    data = sampled.reader.get_metrics_data()
    [scope] = data.resource_metrics[0].scope_metrics
    exported = {metric.name: metric for metric in scope.metrics}
    assert exported.keys() == CATALOGUE.keys()
    for name, metric in exported.items():
        assert metric.unit == CATALOGUE[name].unit
        assert metric.data.is_monotonic is (CATALOGUE[name].kind is Kind.COUNTER)


def test_names_follow_the_conventions():
    for name, metric in CATALOGUE.items():
        assert name.startswith("banyankv.")
        assert not name.endswith("_total")
        assert metric.unit == "By" or (metric.unit[0], metric.unit[-1]) == ("{", "}")
        assert metric.labels <= {
            "actor",
            "component",
            "tier",
            "reason",
            "state",
            "src",
            "dst",
        }


def test_the_acquire_duration_is_recorded_once_a_request_in_seconds(sampled):
    for nanoseconds in (40_000, 3_000_000):
        request = sampled.telemetry.begin(None, 1)
        sampled.telemetry.finish(request, Outcome(tokens=1, acquire_ns=nanoseconds))
    point = sampled.metrics()["banyankv.acquire.duration"][()]
    assert point.count == 2
    assert math.isclose(point.sum, 0.00304)
    filled = [
        bound
        for bound, count in zip(point.explicit_bounds, point.bucket_counts, strict=False)
        if count
    ]
    assert [math.isclose(a, b) for a, b in zip(filled, (5e-5, 5e-3), strict=True)] == [True, True]


def test_without_a_provider_nothing_is_recorded_and_two_caches_share_the_instruments():
    first, second = Telemetry(), Telemetry()
    first.finish(None, Outcome(tokens=1))
    numbers = Numbers()
    closes = [telemetry.register_metrics(numbers.read) for telemetry in (first, second)]
    for close in closes:
        close()
    assert first._metrics is second._metrics

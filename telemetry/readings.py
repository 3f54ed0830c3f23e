"""The metrics' catalogue, and the readings by which a cache's statistics become metrics."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping

import msgspec

from ..errors import ConfigError


class Kind(enum.Enum):
    """What a metric's readings mean: a total that only grows, or a level that comes and goes."""

    COUNTER = "counter"
    LEVEL = "level"


class Metric(msgspec.Struct, frozen=True):
    """One metric that banyankv exports; `unit` is a UCUM code, `labels` all that it may carry.

    Names carry no `_total`: Prometheus exporters append it. Labels are words of closed lists, never
    a session, request or hash, which would make a time series of each.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: frozenset[str] = frozenset()


def _counter(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(f"banyankv.{name}", Kind.COUNTER, unit, description, frozenset(labels))


def _level(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(f"banyankv.{name}", Kind.LEVEL, unit, description, frozenset(labels))


CATALOGUE: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _counter("requests", "{request}", "Requests that asked for a lease"),
        _counter("match.requested", "{token}", "Prompt tokens asked for"),
        _counter("match.hit", "{token}", "Prompt tokens reused, by tier they came from", "tier"),
        _counter("evicted", "{page}", "Pages that left a tier for good", "component", "tier"),
        _counter(
            "demoted",
            "{page}",
            "Pages that left a tier while the one below kept them",
            "component",
            "tier",
        ),
        _counter("promoted", "{page}", "Pages copied up to a tier", "component", "tier"),
        _counter("transfer.io", "By", "Bytes moved between tiers", "src", "dst"),
        _counter("recoveries", "{recovery}", "Crashes that a cache went through", "actor"),
        _counter("forgotten", "{token}", "Tokens that were forgotten at crashes", "tier"),
        _level("pool.usage", "{page}", "Pages of a pool by state", "component", "tier", "state"),
        _level("node.count", "{node}", "Nodes of the tree"),
        _level("lease.count", "{lease}", "Live leases"),
        _level("transfer.in_flight", "{transfer}", "Copies and store calls under way"),
        _level("waiter.count", "{request}", "Requests that wait for room"),
    )
}
"""All metrics read from statistics, by name; a cache need not report every one of them."""


class Reading(msgspec.Struct, frozen=True):
    """One value of one metric of `CATALOGUE`; `labels` as (label, value), a subset of its labels."""

    name: str
    value: int
    labels: tuple[tuple[str, str], ...] = ()


ReadStats = Callable[[], Iterable[Reading]]
"""Reads a cache's statistics. Called on the metric exporter's thread: it may only copy numbers."""


def metric_of(reading: Reading) -> Metric:
    """Find the metric of `reading`; raises `ConfigError` for a name or label it does not know."""
    metric = CATALOGUE.get(reading.name)
    if metric is None:
        raise ConfigError(f"{reading.name!r} is not a metric of banyankv; add it to the catalogue")
    unknown = {label for label, _ in reading.labels} - metric.labels
    if unknown:
        allowed = ", ".join(sorted(metric.labels)) or "none"
        raise ConfigError(f"{reading.name}: labels {sorted(unknown)} are not among: {allowed}")
    return metric

"""Metrics: observable instruments read from the caches' own statistics when somebody collects.

A counter call costs 25 µs and a histogram record 15, so the caches count for themselves and only
the acquire duration is recorded, once a request.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from .readings import CATALOGUE, Kind, ReadStats, metric_of

Labels = tuple[tuple[str, str], ...]
Totals = dict[str, dict[Labels, int]]

ACQUIRE_BOUNDARIES = (
    *(mantissa * 10.0**exponent for exponent in range(-5, 1) for mantissa in (1, 2.5, 5)),
    10.0,
)
"""Seconds, from 10 µs (a hit on L1) to the default deadline for room."""


def _sum_into(totals: Totals, read: ReadStats, *, counters_only: bool = False) -> None:
    for reading in read():
        if metric_of(reading).kind is Kind.COUNTER or not counters_only:
            totals[reading.name][reading.labels] += reading.value


class Metrics:
    """All instruments of one meter, fed by the caches that are open, their readings added up.

    A process has one of these for its global meter (`global_metrics`), because a meter ignores the
    callbacks of a second instrument of the same name. Safe to use from any thread.
    """

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.Lock()
        self._sources: dict[object, ReadStats] = {}
        self._retired: Totals = defaultdict(lambda: defaultdict(int))
        self._snapshot: Totals = {}
        self._observed: set[str] = set(CATALOGUE)
        self._acquire = meter.create_histogram(
            "banyankv.acquire.duration",
            unit="s",
            description="Time from acquire to lease",
            explicit_bucket_boundaries_advisory=ACQUIRE_BOUNDARIES,
        )
        for metric in CATALOGUE.values():
            create = (
                meter.create_observable_counter
                if metric.kind is Kind.COUNTER
                else meter.create_observable_up_down_counter
            )
            callback = functools.partial(self._observe, metric.name)
            create(metric.name, [callback], unit=metric.unit, description=metric.description)

    def register(self, read: ReadStats) -> Callable[[], None]:
        """Report what `read` reads from now on, until the returned function is called.

        `read` is called once here, so that a reading outside the catalogue raises `ConfigError`
        at once, and once more by that function: counters keep the last totals of a closed cache,
        since a counter must not fall. Closing twice changes nothing.
        """
        for reading in read():
            metric_of(reading)
        key = object()
        with self._lock:
            self._sources[key] = read

        def close() -> None:
            with self._lock:
                if self._sources.pop(key, None) is not None:
                    _sum_into(self._retired, read, counters_only=True)

        return close

    def record_acquire(self, nanoseconds: int) -> None:
        """Record the duration of one acquire; next to nothing while no provider is set."""
        self._acquire.record(nanoseconds / 1e9)

    def _observe(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            # A collection asks for every instrument once, without saying when it begins: it has
            # begun anew when an instrument is asked for again. So one collection sees one state.
            if name in self._observed:
                self._snapshot = self._read()
                self._observed.clear()
            self._observed.add(name)
            values = self._snapshot.get(name, {})
        return [Observation(value, dict(labels)) for labels, value in values.items()]

    def _read(self) -> Totals:
        totals: Totals = defaultdict(lambda: defaultdict(int))
        for name, values in self._retired.items():
            totals[name].update(values)
        for read in self._sources.values():
            _sum_into(totals, read)
        return totals


@functools.cache
def global_metrics() -> Metrics:
    """Get the instruments of the global meter; a provider that is set later is found then."""
    return Metrics(get_meter("banyankv"))


def metrics_of(provider: MeterProvider | None) -> Metrics:
    """Get the instruments of `provider`, or of whatever provider is global when it is None."""
    return global_metrics() if provider is None else Metrics(provider.get_meter("banyankv"))

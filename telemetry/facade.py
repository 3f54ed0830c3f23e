"""The one object that a cache holds to be observed."""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    ProxyTracerProvider,
    TracerProvider,
    get_tracer,
    get_tracer_provider,
)

from ..actors.observer import Fact, Hop
from .logs import get_logger, log_request, logs_requests, warn_of
from .metrics import metrics_of
from .readings import ReadStats
from .request import Outcome, RequestTrace, begin_request
from .spans import PREFIX, SpanObserver, span_attributes, span_name

_LOOK = 0.01
"""Seconds from one look for the host's tracer provider to the next: a look costs 2 µs."""


class Telemetry:
    """Spans, metrics and log lines of one cache; an `Observer` for its actors.

    Uses the providers given, or by default the host's global ones, also where the host sets them
    only later: its tracer provider is found within 10 ms. With neither provider nor enabled log
    level nothing is built for a request.

    Attributes:
        logger: a structlog logger whose events carry trace ids.

    """

    hops = False

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self.logger = get_logger()
        # The global tracer is a proxy that finds the host's provider once there is one.
        self._tracer = (
            get_tracer("banyankv")
            if tracer_provider is None
            else tracer_provider.get_tracer("banyankv")
        )
        self._traces = tracer_provider is not None
        self._look_at = 0.0
        self._spans = SpanObserver(self._tracer)
        self._metrics = metrics_of(meter_provider)

    def begin(self, session: str | None, tokens: int) -> RequestTrace | None:
        """Begin a request of `tokens` prompt tokens; None when it is not traced.

        The caller's current span becomes the parent. Whoever gets a `RequestTrace` passes it to
        `finish`, and its `trace` to every message and fact that it causes; None means no trace.
        """
        if not self._traces and not self._look():
            return None
        span = self._tracer.start_span("banyankv.request")
        return begin_request(span, session, tokens) if span.is_recording() else None

    def _look(self) -> bool:
        """Return whether the host has set a tracer provider by now."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK
        self._traces = not isinstance(get_tracer_provider(), ProxyTracerProvider)
        return self._traces

    def reads(self, request: RequestTrace | None) -> bool:
        """Return whether anybody reads a request's outcome; if not, its duration is all to `record`."""
        return request is not None or logs_requests()

    def record(self, acquire_ns: int) -> None:
        """Record the duration of a request's acquire; `finish` does it as well."""
        self._metrics.record_acquire(acquire_ns)

    def finish(self, request: RequestTrace | None, outcome: Outcome) -> None:
        """End a request, traced or not: its root span, its duration, its line in the log."""
        self.record(outcome.acquire_ns)
        if request is None:
            log_request(outcome, None)
        else:
            request.finish(outcome)
            log_request(outcome, request.trace)

    def fact(self, fact: Fact) -> None:
        """Take one fact: a span where it carries a trace; a notable one also has a line in the log."""
        self._spans.fact(fact)
        if fact.notable:
            warn_of(span_name(fact).removeprefix(PREFIX), span_attributes(fact), fact.error)

    def hop(self, hop: Hop) -> None:
        """Take no hop: `hops` says that none is wanted."""

    def register_metrics(self, read: ReadStats) -> Callable[[], None]:
        """Export what `read` reads until the function returned here is called, at close.

        `read` runs on the exporter's thread. Raises `ConfigError` for readings that are not in the
        catalogue.
        """
        return self._metrics.register(read)

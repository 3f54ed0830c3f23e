"""What observing costs a request: off, sampled out and sampled, in microseconds of one call.

Run `python benchmarks/telemetry_micro.py`. Each figure is the best of several rounds, so that
other work on the machine weighs little. Bounds: `begin` 1 µs when off, 8 µs when sampled out.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence

from banyankv.actors.observer import Fact, Trace
from banyankv.telemetry import Outcome, Telemetry
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased

ROUNDS = 7
CALLS = 10_000


class AcquireDone(Fact, frozen=True, kw_only=True):
    """A fact of a usual size."""

    tokens: int = 4096
    length: int = 4000
    rounds: int = 1


class Discard(SpanExporter):
    """Takes spans and keeps nothing, so that only our own and the SDK's cost is measured."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def cost(call: Callable[[], object], calls: int = CALLS) -> float:
    """Measure one call of `call` in microseconds."""
    return min(timeit.repeat(call, number=calls, repeat=ROUNDS)) / calls * 1e6


def provider(sampler: Sampler) -> TracerProvider:
    made = TracerProvider(sampler=sampler)
    made.add_span_processor(BatchSpanProcessor(Discard()))
    return made


def report(label: str, telemetry: Telemetry) -> None:
    outcome = Outcome(tokens=4096, session="chat-17", l1=4000, acquire_ns=50_000)
    traced = Trace(trace_id="0af7651916cd43dd8448eb211c80319c", span_id=7)
    fact = AcquireDone(started=1, ended=2)
    child = AcquireDone(started=1, ended=2, trace=traced)

    def request() -> None:
        telemetry.finish(telemetry.begin("chat-17", 4096), outcome)

    print(
        f"{label:<28}"
        f"{cost(lambda: telemetry.begin('chat-17', 4096)):10.2f}"
        f"{cost(request):16.2f}"
        f"{cost(lambda: telemetry.fact(fact)):16.2f}"
        f"{cost(lambda: telemetry.fact(child), 2_000):18.2f}"
    )


def main() -> None:
    out = ParentBased(TraceIdRatioBased(0.0))
    every = ParentBased(TraceIdRatioBased(1.0))
    meters = MeterProvider([InMemoryMetricReader()])
    print(
        f"{'µs a call':<28}{'begin':>10}{'begin+finish':>16}{'untraced fact':>16}{'traced fact':>18}"
    )
    report("off", Telemetry())
    report("sampled out", Telemetry(tracer_provider=provider(out)))
    report("sampled out, metrics", Telemetry(tracer_provider=provider(out), meter_provider=meters))
    report("sampled", Telemetry(tracer_provider=provider(every)))


if __name__ == "__main__":
    main()
